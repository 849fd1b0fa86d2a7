//! A connection to a database of SQLite, or of a system that is compared with SQLite. The workloads use
//! only this interface.

use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use duralite::Attempts;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::mode::Mode;
use crate::concurrent;
use crate::workload::status;

/// The number of prepared statements that a connection caches. Every workload has fewer.
const STATEMENTS: usize = 64;
/// The result code `SQLITE_BUSY`. The next constant is `SQLITE_BUSY_SNAPSHOT`.
pub(super) const BUSY: i32 = 5;
pub(super) const BUSY_SNAPSHOT: i32 = 517;

/// The reason why a transaction failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// SQLite returned this code because of another transaction. The writer runs its transaction again.
    Lost(i32),
    /// Any other error. It ends the measurement.
    Broken(anyhow::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error().map(|error| error.extended_code) {
            Some(code) if code & 0xff == BUSY => Self::Lost(code),
            _ => Self::Broken(error.into()),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Lost(code) => anyhow::anyhow!("SQLite's code is {code}"),
            Failure::Broken(error) => error,
        }
    }
}

/// The result of a step of a transaction.
pub(super) type Done<T> = Result<T, Failure>;

/// A connection.
pub(super) trait Client {
    /// Runs a statement that returns no row. Returns the number of rows that it changed.
    fn run(&mut self, sql: &str, values: &[i64]) -> Done<u64>;
    /// Returns the number in the first row of a query; `None` if there is no row, or if the number is NULL.
    fn ask(&mut self, sql: &str, values: &[i64]) -> Done<Option<i64>>;
    /// Returns the answer of `PRAGMA integrity_check`.
    fn integrity(&mut self) -> Result<String>;
    /// Returns whether a transaction is open.
    fn is_open(&self) -> Result<bool>;
}

/// A database to which connections can be made.
pub(super) trait Base: Sync {
    fn client(&self) -> Result<Box<dyn Client>>;
    /// Returns the URI by which other processes can open the database; `None` if they cannot.
    fn uri(&self) -> Option<&str>;
}

/// Makes a fresh database of SQLite in `dir`, and fills its log once, so that the log hardly grows during a
/// run.
///
/// # Errors
/// An error of SQLite, or a mode that is not in effect.
pub(super) fn fresh(dir: &Path, mode: Mode) -> Result<Box<dyn Base>> {
    let uri = concurrent::fresh(dir, mode.parameters().as_deref());
    let kept = concurrent::prepare(&uri)?;
    if let Some(wanted) = mode.concurrency() {
        let status = status(&kept)?;
        let state = status.get("state").map(String::as_str);
        ensure!(state == Some("active"), "{uri}: the engine is {state:?}");
        let value: String = kept.query_row("PRAGMA duralite_concurrent", [], |row| row.get(0))?;
        ensure!(value == wanted, "{uri}: concurrent is {value}");
    }
    Ok(Box::new(Sqlite { uri, _kept: kept.into() }))
}

struct Sqlite {
    uri: String,
    /// A connection that stays open while others work. Without it, the last of the others would delete the
    /// log when it closes.
    _kept: Mutex<Connection>,
}

impl Base for Sqlite {
    fn client(&self) -> Result<Box<dyn Client>> {
        open(&self.uri)
    }

    fn uri(&self) -> Option<&str> {
        Some(&self.uri)
    }
}

/// Opens a connection of SQLite to a database that [`fresh`] has made.
///
/// # Errors
/// An error of SQLite.
pub(super) fn open(uri: &str) -> Result<Box<dyn Client>> {
    let conn = concurrent::open(uri)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(Box::new(conn))
}

impl Client for Connection {
    fn run(&mut self, sql: &str, values: &[i64]) -> Done<u64> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(values))? as u64)
    }

    fn ask(&mut self, sql: &str, values: &[i64]) -> Done<Option<i64>> {
        let mut statement = self.prepare_cached(sql)?;
        let found = statement.query_row(params_from_iter(values), |row| row.get(0)).optional()?;
        Ok(found.flatten())
    }

    fn integrity(&mut self) -> Result<String> {
        Ok(self.query_row("PRAGMA integrity_check", [], |row| row.get(0))?)
    }

    fn is_open(&self) -> Result<bool> {
        Ok(!self.is_autocommit())
    }
}

/// Makes one attempt at a transaction: runs the statement `begin`, does the work, and commits. If anything
/// fails, rolls back.
pub(super) fn attempt<T>(
    client: &mut dyn Client,
    begin: &str,
    work: impl FnOnce(&mut dyn Client) -> Done<T>,
) -> Done<T> {
    client.run(begin, &[])?;
    let result = work(client).and_then(|value| client.run("COMMIT", &[]).map(|_| value));
    if result.is_err() && client.is_open().context("a connection is lost")? {
        client.run("ROLLBACK", &[])?;
    }
    result
}

/// Returns the statement with which an attempt begins.
pub(super) fn begin(mode: Mode, attempts: &Attempts) -> &'static str {
    mode.begin().unwrap_or_else(|| attempts.begin())
}
