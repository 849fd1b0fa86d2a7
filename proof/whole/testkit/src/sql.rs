//! Connections, and the results of statements.

use std::path::Path;

use rusqlite::types::{FromSql, Value};
use rusqlite::{Connection, Error, OpenFlags};

use crate::register;

/// The result of a statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The rows of the statement.
    Rows(Vec<Vec<Value>>),
    /// The extended result code and the message.
    Error(i32, String),
}

impl Outcome {
    /// Returns the rows, or SQLite's error.
    ///
    /// # Panics
    /// Panics if the error is not one of SQLite's.
    #[must_use]
    pub fn of(result: Result<Vec<Vec<Value>>, Error>) -> Self {
        match result {
            Ok(rows) => Self::Rows(rows),
            Err(error) => Self::Error(code(&error), error.to_string()),
        }
    }
}

/// Returns SQLite's extended result code.
#[must_use]
pub fn code(error: &Error) -> i32 {
    match error {
        Error::SqliteFailure(failure, _) => failure.extended_code,
        Error::SqlInputError { error, .. } => error.extended_code,
        other => panic!("not an error of SQLite's: {other}"),
    }
}

/// Opens a URI. The connection does not wait for locks.
///
/// # Errors
/// An error of SQLite.
pub fn connect(uri: &str) -> Result<Connection, Error> {
    register();
    let conn = Connection::open(uri)?;
    conn.busy_timeout(std::time::Duration::ZERO)?;
    Ok(conn)
}

/// Opens a file through the default VFS.
#[must_use]
pub fn stock(path: &Path) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let conn = Connection::open_with_flags(path, flags).unwrap();
    conn.busy_timeout(std::time::Duration::ZERO).unwrap();
    conn
}

/// Runs one statement to its end.
///
/// # Errors
/// An error of SQLite.
pub fn run(conn: &Connection, sql: &str) -> Result<Vec<Vec<Value>>, Error> {
    let mut statement = conn.prepare(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect())?;
    rows.collect()
}

/// Returns the first column of the first row.
#[must_use]
#[track_caller]
pub fn one<T: FromSql>(conn: &Connection, sql: &str) -> T {
    conn.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Returns the schema and the content of the database, in a fixed order.
#[must_use]
pub fn dump(conn: &Connection) -> Vec<(String, Vec<Vec<Value>>)> {
    let schema = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name";
    let mut content = vec![(String::from("schema"), run(conn, schema).unwrap())];
    let mut names = conn.prepare("SELECT name FROM sqlite_schema WHERE type='table' ORDER BY name").unwrap();
    let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
    for name in names.map(Result::unwrap) {
        let mut rows = run(conn, &format!("SELECT * FROM \"{name}\"")).unwrap();
        rows.sort_by_key(|row| format!("{row:?}"));
        content.push((name, rows));
    }
    content
}

/// Asserts that SQLite finds the database sound.
#[track_caller]
pub fn integrity(conn: &Connection) {
    assert_eq!(one::<String>(conn, "PRAGMA integrity_check"), "ok");
}
