//! The workloads: what transactions do.

mod orders;
mod queue;
mod rows;
mod turn;
mod web;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::client::{Client, attempt};

pub(super) use rows::Place;
pub(super) use turn::{Effects, Turn, Workload};

/// A kind of transaction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Each writer reads and updates its own rows. They are in leaf pages that no other writer uses.
    Own { reads: u64, updates: u64 },
    /// Inserts random keys into a table that has this many rows when a run begins.
    Keys { rows: i64 },
    /// Appends rows at the end of a table.
    Append { autoincrement: bool },
    /// Puts a task into a queue at one end, or takes a task from the other end.
    Queue,
    /// A web application.
    Web,
    /// A transaction places an order, makes a payment, or asks for a stock level. With `spread`, each row of
    /// a warehouse or a district has a leaf page of its own.
    Orders { warehouses: i64, spread: bool },
    /// Each writer first reads a row, and then either updates that row or inserts the next one. The [`Place`]
    /// decides between the two, and says where the row is.
    Turns(Place),
}

impl Work {
    pub(super) fn workload(self) -> Box<dyn Workload> {
        match self {
            Self::Own { reads, updates } => Box::new(rows::Own { reads, updates }),
            Self::Keys { rows } => Box::new(rows::Keys { rows }),
            Self::Append { autoincrement } => Box::new(rows::Append { autoincrement }),
            Self::Queue => Box::new(queue::Queue),
            Self::Web => Box::new(web::Web),
            Self::Orders { warehouses, spread } => Box::new(orders::Orders { warehouses, spread }),
            Self::Turns(place) => Box::new(rows::Turns(place)),
        }
    }
}

/// Creates and fills the tables.
///
/// # Errors
/// An error of SQLite.
pub(super) fn prepare(workload: &dyn Workload, client: &mut dyn Client, writers: usize) -> Result<Effects> {
    for statement in workload.tables().split_terminator(';') {
        client.run(statement, &[])?;
    }
    Ok(attempt(client, "BEGIN", |client| workload.fill(client, writers as i64))?)
}

/// Checks the result of all commits: each sum of [`Workload::sums`], and the structure of the database.
///
/// # Errors
/// An error if a sum is not what the commits should make it, or if the database is damaged.
pub(super) fn check(workload: &dyn Workload, client: &mut dyn Client, expected: &Effects) -> Result<()> {
    for (sql, expected) in workload.sums().iter().zip(expected) {
        let found = client.ask(sql, &[])?.unwrap_or(0);
        ensure!(found == *expected, "{sql}: {found} instead of {expected}");
    }
    let integrity = client.integrity()?;
    ensure!(integrity == "ok", "integrity_check: {integrity}");
    Ok(())
}
