//! `SELECT * FROM duralite_log`: the transactions in a log, as [`duralite_wal::Listing`] has them. They
//! are those of one moment, when the statement begins to read. The log goes on meanwhile, and waits only for
//! one pass over its frames in memory.

use duralite_wal::Listing;

use super::view::{Cell, Rows, View};
use crate::callbacks::ask::Subject;
use crate::errors::{During, Failure};
use crate::json;

/// A row for each transaction, oldest first. No rows where no log serves the database.
pub const LOG: View = View {
    name: c"duralite_log",
    declaration: c"CREATE TABLE x(position INTEGER, number INTEGER, time_ms INTEGER, first_frame INTEGER, \
                   last_frame INTEGER, frames INTEGER, bytes INTEGER, db_pages INTEGER, durable INTEGER, pages TEXT, \
                   schema TEXT HIDDEN)",
    schema_column: 10,
    rows,
};

fn rows(subject: &Subject<'_>) -> Result<Box<dyn Rows>, Failure> {
    let attachment = match subject {
        Subject::Ours(db) => db.in_service(),
        Subject::Plain(_) => None,
    };
    let listing = attachment.map(|attachment| attachment.log().list()).transpose();
    listing.map_or_else(
        |error| Err(Failure::of(&error, During::Read)),
        |listing| Ok(Box::new(listing.unwrap_or_default()) as Box<dyn Rows>),
    )
}

impl Rows for Listing {
    fn count(&self) -> usize {
        self.transactions.len()
    }

    fn cell(&self, row: usize, column: usize) -> Cell {
        let Some(listed) = self.transactions.get(row) else { return Cell::Null };
        let transaction = &listed.transaction;
        match column {
            0 => Cell::of(listed.position),
            1 => Cell::of(transaction.sequence),
            2 if transaction.time_ms != 0 => Cell::of(transaction.time_ms),
            3 => Cell::of(transaction.first_frame),
            4 => Cell::of(transaction.last_frame),
            5 => Cell::of(self.pages_of(listed).len()),
            6 => listed.bytes.map_or(Cell::Null, Cell::of),
            7 => Cell::of(transaction.db_pages),
            8 => Cell::of(listed.durable),
            9 => Cell::Text(json::array(self.pages_of(listed))),
            _ => Cell::Null,
        }
    }
}
