//! Turso with MVCC, that is, with `BEGIN CONCURRENT`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use turso::{Connection, Database, Error, Value};

use crate::kv::{Db, Done, Fail, Schema, Session, Span, Tx, Visit, Work};

struct Turso {
    database: Database,
    schema: Schema,
}

pub(super) fn open(dir: &Path, schema: Schema) -> Result<Box<dyn Db>> {
    let runtime = Builder::new_current_thread().build()?;
    let path = dir.join("turso.db");
    let path = path.to_str().context("a path that is no text")?;
    let database = runtime.block_on(async {
        let database = turso::Builder::new_local(path).build().await?;
        let conn = database.connect()?;
        conn.pragma_update("journal_mode", "'mvcc'").await?;
        for table in schema {
            conn.execute(&format!("CREATE TABLE {table}(k BLOB PRIMARY KEY, v BLOB)"), ()).await?;
        }
        Ok::<_, Error>(database)
    })?;
    Ok(Box::new(Turso { database, schema }))
}

impl Db for Turso {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let conn = self.database.connect()?;
        conn.busy_timeout(Duration::from_secs(20))?;
        let runtime = Builder::new_current_thread().build()?;
        runtime.block_on(conn.pragma_update("synchronous", "FULL"))?;
        Ok(Box::new(TursoSession { conn, runtime, schema: self.schema }))
    }
}

struct TursoSession {
    conn: Connection,
    runtime: Runtime,
    schema: Schema,
}

fn fail(error: Error) -> Fail {
    let text = error.to_string();
    if matches!(error, Error::Busy(_) | Error::BusySnapshot(_)) || text.contains("onflict") {
        return Fail::Retry;
    }
    Fail::Broken(error.into())
}

impl TursoSession {
    fn execute(&self, sql: &str, values: Vec<Value>) -> Done<()> {
        self.runtime.block_on(async {
            let mut statement = self.conn.prepare_cached(sql).await.map_err(fail)?;
            statement.execute(values).await.map(drop).map_err(fail)
        })
    }

    fn query(&self, sql: &str, values: Vec<Value>, visit: &mut Visit<'_>) -> Done<()> {
        self.runtime.block_on(async {
            let mut statement = self.conn.prepare_cached(sql).await.map_err(fail)?;
            let mut rows = statement.query(values).await.map_err(fail)?;
            while let Some(row) = rows.next().await.map_err(fail)? {
                let (key, value) = (row.get_value(0).map_err(fail)?, row.get_value(1).map_err(fail)?);
                let empty = Vec::new();
                if !visit(key.as_blob().unwrap_or(&empty), value.as_blob().unwrap_or(&empty)) {
                    break;
                }
            }
            Ok(())
        })
    }
}

impl Session for TursoSession {
    fn attempt(&mut self, _writes: bool, work: &mut Work<'_>) -> Done<()> {
        self.execute("BEGIN CONCURRENT", Vec::new())?;
        let done = work(self).and_then(|()| self.execute("COMMIT", Vec::new()));
        if done.is_err() && !self.conn.is_autocommit()? {
            self.execute("ROLLBACK", Vec::new())?;
        }
        done
    }
}

impl Tx for TursoSession {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        let mut found = None;
        let sql = format!("SELECT k, v FROM {} WHERE k = ?1", self.schema[table]);
        self.query(&sql, vec![Value::Blob(key.to_vec())], &mut |_, value| {
            found = Some(value.to_vec());
            true
        })?;
        Ok(found)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        let table = self.schema[table];
        let sql = format!("INSERT INTO {table} VALUES(?1, ?2) ON CONFLICT(k) DO UPDATE SET v = ?2");
        self.execute(&sql, vec![Value::Blob(key.to_vec()), Value::Blob(value.to_vec())])
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        let sql = format!("DELETE FROM {} WHERE k = ?1", self.schema[table]);
        self.execute(&sql, vec![Value::Blob(key.to_vec())])
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        let Span { from, to, is_reverse } = span;
        let order = if is_reverse { " DESC" } else { "" };
        let sql =
            format!("SELECT k, v FROM {} WHERE k >= ?1 AND k < ?2 ORDER BY k{order}", self.schema[table]);
        self.query(&sql, vec![Value::Blob(from.to_vec()), Value::Blob(to.to_vec())], visit)
    }
}
