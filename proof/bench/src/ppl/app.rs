//! What an application does to its database.

use rusqlite::types::Value;

use super::model::Model;
use super::paper::Trace;

/// What table 3 counts a statement as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An insert, update or delete.
    Update,
    /// A read of several tables.
    Join,
    /// Any other read.
    Select,
}

impl Purpose {
    /// Whether it writes nothing.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Update
    }
}

/// A statement that an application prepares, and how its values are drawn.
pub struct Kind {
    /// What it counts as.
    pub purpose: Purpose,
    /// How often it is chosen among those of its purpose: alone, and between `BEGIN` and `COMMIT`.
    pub weights: (u64, u64),
    /// Its text.
    pub sql: &'static str,
    /// Its values.
    pub bind: fn(&mut Model) -> Vec<Value>,
}

/// In which order statements come.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// As the weights say, by chance.
    Mixed,
    /// So many of each kind, one kind after the other.
    Phases(&'static [u32]),
}

/// Rows that are there from the beginning.
pub struct Fill {
    /// How many.
    pub rows: u32,
    /// The insert.
    pub sql: &'static str,
    /// Its values.
    pub bind: fn(&mut Model) -> Vec<Value>,
}

/// An application.
pub struct App {
    /// What the paper counted.
    pub paper: &'static Trace,
    /// Tables and indexes.
    pub schema: &'static str,
    /// What is in them at the beginning.
    pub fill: &'static [Fill],
    /// How many of a hundred reads are transactions of their own.
    pub reads_alone: u32,
    /// In which order statements come.
    pub order: Order,
    /// The statements.
    pub kinds: &'static [Kind],
}

/// An insert, update or delete.
#[must_use]
pub const fn update(weights: (u64, u64), sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Kind {
    Kind { purpose: Purpose::Update, weights, sql, bind }
}

/// A read of one table.
#[must_use]
pub const fn select(weight: u64, sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Kind {
    Kind { purpose: Purpose::Select, weights: (weight, weight), sql, bind }
}

/// A read of several tables.
#[must_use]
pub const fn join(weight: u64, sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Kind {
    Kind { purpose: Purpose::Join, weights: (weight, weight), sql, bind }
}

/// Rows to begin with.
#[must_use]
pub const fn fill(rows: u32, sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Fill {
    Fill { rows, sql, bind }
}
