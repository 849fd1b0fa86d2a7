//! What workload and oracle alike ask of SQLite.

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

/// SQLite's name for its write-ahead log.
pub const WAL: &str = "wal";

/// Puts the connection and its database in a journal mode.
///
/// # Errors
/// What SQLite says, or the mode that it stays in.
pub fn use_mode(conn: &Connection, mode: &str) -> Result<()> {
    let now: String = conn.query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))?;
    ensure!(now == mode, "the journal mode is {now}, not {mode}");
    Ok(())
}

/// Makes a checkpoint of this kind.
///
/// # Errors
/// What SQLite says.
pub fn checkpoint(conn: &Connection, kind: &str) -> Result<()> {
    conn.query_row(&format!("PRAGMA wal_checkpoint({kind})"), [], |_| Ok(()))
        .with_context(|| format!("{kind} checkpoint"))
}

/// Rolls back, if SQLite has not done it by itself, as it does after some errors.
///
/// # Errors
/// What SQLite says.
pub fn roll_back(conn: &Connection) -> Result<()> {
    if !conn.is_autocommit() {
        conn.execute_batch("ROLLBACK")?;
    }
    Ok(())
}

/// Commits these statements as one transaction.
///
/// # Errors
/// What SQLite says.
pub fn commit(conn: &Connection, statements: &str) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {statements} COMMIT"))
}

/// Whether a log that may not grow is full. What SQLite's users do then is a checkpoint.
#[must_use]
pub fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}
