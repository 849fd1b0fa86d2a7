//! SQL that both the workload and the oracle use.

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

/// SQLite's name for its write-ahead log.
pub const WAL: &str = "wal";

/// Switches the connection and its database to a journal mode.
///
/// # Errors
/// The error of SQLite, or an error that names the mode if the mode did not change.
pub fn use_mode(conn: &Connection, mode: &str) -> Result<()> {
    let now: String = conn.query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))?;
    ensure!(now == mode, "the journal mode is {now}, not {mode}");
    Ok(())
}

/// Runs a checkpoint of this kind.
///
/// # Errors
/// An error of SQLite.
pub fn checkpoint(conn: &Connection, kind: &str) -> Result<()> {
    conn.query_row(&format!("PRAGMA wal_checkpoint({kind})"), [], |_| Ok(()))
        .with_context(|| format!("{kind} checkpoint"))
}

/// Rolls the transaction back, unless SQLite has already rolled it back, as it does after some errors.
///
/// # Errors
/// An error of SQLite.
pub fn roll_back(conn: &Connection) -> rusqlite::Result<()> {
    if !conn.is_autocommit() {
        conn.execute_batch("ROLLBACK")?;
    }
    Ok(())
}

/// Commits these statements as one transaction.
///
/// # Errors
/// An error of SQLite.
pub fn commit(conn: &Connection, statements: &str) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {statements} COMMIT"))
}

/// Commits these statements as one transaction that begins without a lock. On a concurrent connection it
/// waits for other transactions only when it commits.
///
/// # Errors
/// An error of SQLite.
pub fn commit_beside(conn: &Connection, statements: &str) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN; {statements} COMMIT"))
}

/// Returns whether the error says that a log with a size limit is full. An application then runs a
/// checkpoint.
#[must_use]
pub fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// Returns whether the error says that other connections are in the way.
#[must_use]
pub fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}
