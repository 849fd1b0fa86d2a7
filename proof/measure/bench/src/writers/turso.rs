//! Runs Turso with MVCC, where transactions begin with `BEGIN CONCURRENT`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use turso::{Connection, Database, Error, Value};

use super::client::{BUSY, BUSY_SNAPSHOT, Base, Client, Done, Failure};

/// The names that Turso's files may have.
const FILES: [&str; 3] = ["turso.db", "turso.db-wal", "turso.db-log"];

/// Makes a fresh database in `dir`.
///
/// # Errors
/// An error of Turso.
pub(super) fn fresh(dir: &Path) -> Result<Box<dyn Base>> {
    FILES.iter().for_each(|file| drop(std::fs::remove_file(dir.join(file))));
    let path = dir.join(FILES[0]);
    let path = path.to_str().context("a path that is no text")?;
    let database = runtime()?.block_on(async {
        let database = turso::Builder::new_local(path).build().await?;
        database.connect()?.pragma_update("journal_mode", "'mvcc'").await?;
        Ok::<_, Error>(database)
    })?;
    Ok(Box::new(Turso(database)))
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().build()?)
}

struct Turso(Database);

impl Base for Turso {
    fn client(&self) -> Result<Box<dyn Client>> {
        let (conn, runtime) = (self.0.connect()?, runtime()?);
        conn.busy_timeout(Duration::from_secs(20))?;
        runtime.block_on(conn.pragma_update("synchronous", "FULL"))?;
        Ok(Box::new(Session { conn, runtime }))
    }

    fn uri(&self) -> Option<&str> {
        None
    }
}

struct Session {
    conn: Connection,
    runtime: Runtime,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Busy(_) => Self::Lost(BUSY),
            Error::BusySnapshot(_) => Self::Lost(BUSY_SNAPSHOT),
            error if error.to_string().contains("onflict") => Self::Lost(BUSY_SNAPSHOT),
            error => Self::Broken(error.into()),
        }
    }
}

impl Session {
    /// Returns the first value of a query.
    fn first(&self, sql: &str, values: &[i64]) -> Done<Option<Value>> {
        self.runtime.block_on(async {
            let mut statement = self.conn.prepare_cached(sql).await?;
            let mut rows = statement.query(integers(values)).await?;
            let mut first = None;
            while let Some(row) = rows.next().await? {
                first = first.or(Some(row.get_value(0)?));
            }
            Ok(first)
        })
    }
}

fn integers(values: &[i64]) -> Vec<Value> {
    values.iter().map(|value| Value::Integer(*value)).collect()
}

impl Client for Session {
    fn run(&mut self, sql: &str, values: &[i64]) -> Done<u64> {
        self.runtime.block_on(async {
            let mut statement = self.conn.prepare_cached(sql).await?;
            Ok(statement.execute(integers(values)).await?)
        })
    }

    fn ask(&mut self, sql: &str, values: &[i64]) -> Done<Option<i64>> {
        Ok(self.first(sql, values)?.and_then(|value| value.as_integer().copied()))
    }

    fn integrity(&mut self) -> Result<String> {
        let answer = self.first("PRAGMA integrity_check", &[])?;
        let text = answer.as_ref().and_then(Value::as_text).context("integrity_check says nothing")?;
        Ok(text.clone())
    }

    fn is_open(&self) -> Result<bool> {
        Ok(!self.conn.is_autocommit()?)
    }
}
