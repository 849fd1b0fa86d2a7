//! SQLite, either unchanged or with `waldio` as its log.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use crate::kv::{Db, Done, Fail, Memory, Schema, Session, Span, Tx, Visit, Work};

struct Sqlite {
    uri: String,
    /// The size of each connection's cache.
    cache_kib: u64,
    statements: Vec<Statements>,
}

/// The SQL statements for one table.
struct Statements {
    get: String,
    put: String,
    delete: String,
    up: String,
    down: String,
}

impl Statements {
    fn of(table: &str) -> Self {
        let select = format!("SELECT k, v FROM {table} WHERE k >= ?1 AND k < ?2 ORDER BY k");
        Self {
            get: format!("SELECT v FROM {table} WHERE k = ?1"),
            put: format!("INSERT INTO {table} VALUES(?1, ?2) ON CONFLICT(k) DO UPDATE SET v = ?2"),
            delete: format!("DELETE FROM {table} WHERE k = ?1"),
            down: format!("{select} DESC"),
            up: select,
        }
    }
}

pub(super) fn open(dir: &Path, waldio: Option<&Path>, schema: Schema, memory: Memory) -> Result<Box<dyn Db>> {
    let path = dir.join("sqlite.db");
    let uri = match waldio {
        None => format!("file:{}", path.display()),
        Some(logs) => {
            duralite_bench::register()?;
            format!("file:{}?vfs=duralite&engine=waldio&log_dir={}", path.display(), logs.display())
        }
    };
    let cache_kib = (memory.cache_bytes / memory.connections.max(1)) >> 10;
    let conn = connect(&uri, cache_kib)?;
    for table in schema {
        conn.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {table}(k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID"
        ))?;
    }
    drop(conn);
    let statements = schema.iter().map(|table| Statements::of(table)).collect();
    Ok(Box::new(Sqlite { uri, cache_kib, statements }))
}

fn connect(uri: &str, cache_kib: u64) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    duralite_bench::with_reason(|| {
        let conn = Connection::open_with_flags(uri, flags)?;
        conn.busy_timeout(Duration::from_secs(20))?;
        conn.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "cache_size", -(cache_kib as i64))?;
        conn.set_prepared_statement_cache_capacity(64);
        Ok(conn)
    })
}

impl Db for Sqlite {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(SqliteSession {
            conn: connect(&self.uri, self.cache_kib)?,
            statements: &self.statements,
        }))
    }
}

struct SqliteSession<'d> {
    conn: Connection,
    statements: &'d [Statements],
}

/// Converts an error. The benchmark tries a transaction again if the database was busy.
fn fail(error: rusqlite::Error) -> Fail {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Fail::Retry,
        _ => Fail::Broken(error.into()),
    }
}

impl SqliteSession<'_> {
    fn execute(&self, sql: &str) -> Done<()> {
        self.conn.prepare_cached(sql).and_then(|mut statement| statement.execute([])).map(drop).map_err(fail)
    }
}

impl Session for SqliteSession<'_> {
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()> {
        self.execute(if writes { "BEGIN IMMEDIATE" } else { "BEGIN" })?;
        let done = work(self).and_then(|()| self.execute("COMMIT"));
        if done.is_err() && !self.conn.is_autocommit() {
            self.execute("ROLLBACK")?;
        }
        done
    }
}

impl Tx for SqliteSession<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        let mut statement = self.conn.prepare_cached(&self.statements[table].get).map_err(fail)?;
        statement.query_row([key], |row| row.get(0)).optional().map_err(fail)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        let mut statement = self.conn.prepare_cached(&self.statements[table].put).map_err(fail)?;
        statement.execute(params![key, value]).map(drop).map_err(fail)
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        let mut statement = self.conn.prepare_cached(&self.statements[table].delete).map_err(fail)?;
        statement.execute([key]).map(drop).map_err(fail)
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        let Span { from, to, is_reverse } = span;
        let texts = &self.statements[table];
        let sql = if is_reverse { &texts.down } else { &texts.up };
        let mut statement = self.conn.prepare_cached(sql).map_err(fail)?;
        let mut rows = statement.query(params![from, to]).map_err(fail)?;
        while let Some(row) = rows.next().map_err(fail)? {
            let key = row.get_ref(0).map_err(fail)?.as_blob()?;
            if !visit(key, row.get_ref(1).map_err(fail)?.as_blob()?) {
                break;
            }
        }
        Ok(())
    }
}
