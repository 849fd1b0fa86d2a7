//! `SELECT name, value FROM duralite`.

use super::view::{Cell, Rows, View};
use crate::callbacks::ask::Subject;
use crate::errors::Failure;
use crate::status::{self, Status};

/// The rows of `PRAGMA duralite`.
pub const STATUS: View = View {
    name: c"duralite",
    declaration: c"CREATE TABLE x(name TEXT, value, schema TEXT HIDDEN)",
    schema_column: 2,
    rows,
};

fn rows(subject: &Subject<'_>) -> Result<Box<dyn Rows>, Failure> {
    Ok(Box::new(status_of(subject)))
}

/// The status of any database.
pub fn status_of(subject: &Subject<'_>) -> Status {
    match subject {
        Subject::Ours(db) => status::of(db),
        Subject::Plain(why) => status::plain(why),
    }
}

impl Rows for Status {
    fn count(&self) -> usize {
        self.len()
    }

    fn cell(&self, row: usize, column: usize) -> Cell {
        match (self.get(row), column) {
            (Some((name, _)), 0) => Cell::Text((*name).to_owned()),
            (Some((_, value)), 1) => {
                status::number(value).map_or_else(|| Cell::Text(value.clone()), Cell::Integer)
            }
            _ => Cell::Null,
        }
    }
}
