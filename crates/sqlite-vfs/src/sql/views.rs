//! The contents of the tables `duralite`, `duralite_log` and `duralite_conflicts`, and JSON text. Nothing
//! here calls SQLite.

use std::ffi::{CStr, c_int};
use std::fmt::Write as _;

use duralite_wal::Listing;

use crate::attachment::conflicts::HotPage;
use crate::callbacks::ask::Subject;
use crate::errors::{During, Failure};
use crate::status::{self, Status};

/// One value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A value that is unknown or does not exist.
    Null,
    /// INTEGER.
    Integer(i64),
    /// TEXT.
    Text(String),
}

impl Cell {
    /// Makes an INTEGER of a number, or the greatest INTEGER if the number does not fit.
    pub fn of(number: impl TryInto<i64>) -> Self {
        Self::Integer(number.try_into().unwrap_or(i64::MAX))
    }
}

/// The rows of a table, all as they were at one moment.
pub trait Rows {
    /// Returns the number of rows.
    fn count(&self) -> usize;

    /// Returns the value of a column in a row, both counted from 0. `row` is less than the number of rows,
    /// and `column` is not the hidden column.
    fn cell(&self, row: usize, column: usize) -> Cell;
}

/// A table that exists without `CREATE`. The table's last column is hidden, and names the schema whose
/// database the table shows.
pub struct View {
    /// The table's name in SQL.
    pub name: &'static CStr,
    /// The declaration for `sqlite3_declare_vtab`.
    pub declaration: &'static CStr,
    /// The index of the hidden column.
    pub schema_column: c_int,
    /// Reads the rows as they are now.
    pub rows: fn(&Subject<'_>) -> Result<Box<dyn Rows>, Failure>,
}

/// The table of `SELECT name, value FROM duralite`, with the rows of `PRAGMA duralite`.
pub const STATUS: View = View {
    name: c"duralite",
    declaration: c"CREATE TABLE x(name TEXT, value, schema TEXT HIDDEN)",
    schema_column: 2,
    rows: status_rows,
};

fn status_rows(subject: &Subject<'_>) -> Result<Box<dyn Rows>, Failure> {
    Ok(Box::new(status_of(subject)))
}

/// Returns the status of a database, whether or not Duralite serves it.
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

/// The table of `SELECT * FROM duralite_log`. It has a row for each transaction in the log, oldest first, as
/// [`Listing`] has them. The table has no rows if no log serves the database. The rows are a copy, made when
/// the statement begins to read. To make the copy, one pass goes over the log's frames in memory. Commits
/// wait during that pass, and then continue.
pub const LOG: View = View {
    name: c"duralite_log",
    declaration: c"CREATE TABLE x(position INTEGER, number INTEGER, time_ms INTEGER, first_frame INTEGER, \
                   last_frame INTEGER, frames INTEGER, bytes INTEGER, db_pages INTEGER, durable INTEGER, pages TEXT, \
                   schema TEXT HIDDEN)",
    schema_column: 10,
    rows: log_rows,
};

fn log_rows(subject: &Subject<'_>) -> Result<Box<dyn Rows>, Failure> {
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
            9 => Cell::Text(json_array(self.pages_of(listed))),
            _ => Cell::Null,
        }
    }
}

/// The table of `SELECT count, page, name FROM duralite_conflicts`, with the lines of `PRAGMA
/// duralite_conflicts`.
pub const CONFLICTS: View = View {
    name: c"duralite_conflicts",
    declaration: c"CREATE TABLE x(count INTEGER, page INTEGER, name TEXT, schema TEXT HIDDEN)",
    schema_column: 3,
    rows: conflict_rows,
};

fn conflict_rows(subject: &Subject<'_>) -> Result<Box<dyn Rows>, Failure> {
    Ok(Box::new(match subject {
        Subject::Ours(db) => db.hot_pages(),
        Subject::Plain(_) => Vec::new(),
    }))
}

impl Rows for Vec<HotPage> {
    fn count(&self) -> usize {
        self.len()
    }

    fn cell(&self, row: usize, column: usize) -> Cell {
        match (self.get(row), column) {
            (Some(hot), 0) => Cell::of(hot.count),
            (Some(hot), 1) => Cell::of(hot.page),
            (Some(hot), 2) => Cell::Text(hot.owner().to_owned()),
            _ => Cell::Null,
        }
    }
}

/// Returns a JSON object. A value whose text is that of a number becomes a number, and any other value
/// becomes a string.
pub fn json_object(status: &Status) -> String {
    let mut json = String::from("{");
    for (i, (name, value)) in status.iter().enumerate() {
        json.push_str(if i == 0 { "" } else { "," });
        quote(&mut json, name);
        json.push(':');
        match status::number(value) {
            Some(number) => push_number(&mut json, number),
            None => quote(&mut json, value),
        }
    }
    json.push('}');
    json
}

/// Returns a JSON array.
fn json_array(numbers: &[u32]) -> String {
    let mut json = String::from("[");
    for (i, number) in numbers.iter().enumerate() {
        json.push_str(if i == 0 { "" } else { "," });
        push_number(&mut json, i64::from(*number));
    }
    json.push(']');
    json
}

fn push_number(json: &mut String, number: i64) {
    // Writing to a string cannot fail.
    let _ = write!(json, "{number}");
}

fn quote(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\0'..='\x1f' => {
                // As above.
                let _ = write!(json, "\\u{:04x}", u32::from(character));
            }
            _ => json.push(character),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_and_numbers_are_not() {
        let text = |text: &str| text.to_owned();
        let status = vec![
            ("a", text("7")),
            ("b", text("-7")),
            ("c", text("07")),
            ("d", text("7.5")),
            ("e", text("/\"q\"\\\t\u{1}é")),
        ];
        assert_eq!(json_object(&status), r#"{"a":7,"b":-7,"c":"07","d":"7.5","e":"/\"q\"\\\u0009\u0001é"}"#);
        assert_eq!(json_object(&Vec::new()), "{}");
    }

    #[test]
    fn numbers_are_listed() {
        assert_eq!(json_array(&[]), "[]");
        assert_eq!(json_array(&[1, u32::MAX]), "[1,4294967295]");
    }
}
