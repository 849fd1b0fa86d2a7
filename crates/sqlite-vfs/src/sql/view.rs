//! The content of a table, without SQLite.

use std::ffi::{CStr, c_int};

use crate::callbacks::ask::Subject;
use crate::errors::Failure;

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
    /// An INTEGER; the greatest one if the number is too large.
    pub fn of(number: impl TryInto<i64>) -> Self {
        Self::Integer(number.try_into().unwrap_or(i64::MAX))
    }
}

/// The rows of a table, as they were at one moment.
pub trait Rows {
    /// How many there are.
    fn count(&self) -> usize;

    /// The value of a column in a row. `row` is below the count. `column` is not the hidden one, and is
    /// counted from 0.
    fn cell(&self, row: usize, column: usize) -> Cell;
}

/// A table that exists without being made. Its last column is hidden: it names the schema that the table is
/// about.
pub struct View {
    /// Its name in SQL.
    pub name: &'static CStr,
    /// The declaration for `sqlite3_declare_vtab`.
    pub declaration: &'static CStr,
    /// The place of the hidden column.
    pub schema_column: c_int,
    /// Reads the rows as they are now.
    pub rows: fn(&Subject<'_>) -> Result<Box<dyn Rows>, Failure>,
}
