//! What a table shows, without SQLite.

use std::ffi::{CStr, c_int};

use crate::callbacks::ask::Subject;
use crate::errors::Failure;

/// One value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// Not known, or there is none.
    Null,
    /// INTEGER.
    Integer(i64),
    /// TEXT.
    Text(String),
}

impl Cell {
    /// An INTEGER; the greatest one where it is too large.
    pub fn of(number: impl TryInto<i64>) -> Self {
        Self::Integer(number.try_into().unwrap_or(i64::MAX))
    }
}

/// The rows of a table, as they were at one moment.
pub trait Rows {
    /// How many there are.
    fn count(&self) -> usize;

    /// A value: of a row below the count, and a column that is not hidden, counted from 0.
    fn cell(&self, row: usize, column: usize) -> Cell;
}

/// A table that exists without being made. Its last column is hidden: the schema that it is about.
pub struct View {
    /// Its name in SQL.
    pub name: &'static CStr,
    /// As `sqlite3_declare_vtab` wants it.
    pub declaration: &'static CStr,
    /// The place of the hidden column.
    pub schema_column: c_int,
    /// Looks now.
    pub rows: fn(&Subject<'_>) -> Result<Box<dyn Rows>, Failure>,
}
