//! A model of an application. It says which statements the application runs on its database.

use rusqlite::types::Value;

use super::model::Model;
use super::paper::Trace;

/// The category under which table 3 counts a statement.
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
    /// Returns whether a statement of this category only reads.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Update
    }
}

/// A statement that an application prepares, and the function that draws its values.
pub struct Kind {
    /// The category of the statement.
    pub purpose: Purpose,
    /// How often the statement runs compared with others of its category. The first number holds outside a
    /// batch, the second between `BEGIN` and `COMMIT`.
    pub weights: (u64, u64),
    /// The SQL text.
    pub sql: &'static str,
    /// Draws the values.
    pub bind: fn(&mut Model) -> Vec<Value>,
}

/// The order of statements.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// At random, according to their weights.
    Mixed,
    /// One kind of statement after the other. Each kind runs as often as its number says.
    Phases(&'static [u32]),
}

/// Rows that are in the database at the start.
pub struct Fill {
    /// The number of rows.
    pub rows: u32,
    /// The insert.
    pub sql: &'static str,
    /// Draws the values.
    pub bind: fn(&mut Model) -> Vec<Value>,
}

/// An application.
pub struct App {
    /// The counts in the paper.
    pub paper: &'static Trace,
    /// Tables and indexes.
    pub schema: &'static str,
    /// The rows in the tables at the start.
    pub fill: &'static [Fill],
    /// The percentage of reads that are transactions of their own.
    pub reads_alone: u32,
    /// The order of statements.
    pub order: Order,
    /// The statements.
    pub kinds: &'static [Kind],
}

/// Makes an insert, update or delete.
#[must_use]
pub const fn update(weights: (u64, u64), sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Kind {
    Kind { purpose: Purpose::Update, weights, sql, bind }
}

/// Makes a read of one table.
#[must_use]
pub const fn select(weight: u64, sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Kind {
    Kind { purpose: Purpose::Select, weights: (weight, weight), sql, bind }
}

/// Makes a read of several tables.
#[must_use]
pub const fn join(weight: u64, sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Kind {
    Kind { purpose: Purpose::Join, weights: (weight, weight), sql, bind }
}

/// Makes the rows that are in the database at the start.
#[must_use]
pub const fn fill(rows: u32, sql: &'static str, bind: fn(&mut Model) -> Vec<Value>) -> Fill {
    Fill { rows, sql, bind }
}
