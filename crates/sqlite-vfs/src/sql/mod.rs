//! What this library adds to SQL: the functions `duralite_last_error()` and `duralite_json()`, and the tables
//! `duralite`, `duralite_log` and `duralite_conflicts`. None of them writes anything.
#![allow(unsafe_code)] // registers with a connection of SQLite's

mod functions;
mod table;
mod values;
mod views;

use duralite_sqlite_ffi::Connection;

use crate::sqlite::Sqlite;

/// Gives a connection the functions and the tables. Ignores a failure, after which the connection has to do
/// without them.
///
/// # Safety
/// `db` is an open connection of this SQLite.
pub unsafe fn add(sqlite: &'static Sqlite, db: *mut Connection) {
    // SAFETY: as promised by the caller.
    unsafe {
        functions::add(sqlite, db);
        table::add(sqlite, db);
    }
}
