//! Runs a workload on a configuration. Every run starts from the same database.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags, params_from_iter};

use super::config::Config;
use super::generate::{Statement, Workload};

/// The database with which each run of a workload starts, as the content of a file. There are two versions, one for
/// rollback journals and one for WAL.
pub struct Template {
    rollback: Vec<u8>,
    wal: Vec<u8>,
}

impl Template {
    /// Creates the databases, with temporary files in `dir`.
    ///
    /// # Errors
    /// An error of SQLite or of the file system.
    pub fn new(dir: &Path, workload: &Workload) -> Result<Self> {
        let path = dir.join("template.db");
        remove(&path);
        let conn = Connection::open(&path)?;
        conn.execute_batch("PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN")?;
        conn.execute_batch(workload.schema)?;
        for statement in &workload.fill {
            conn.prepare_cached(statement.sql)?
                .execute(params_from_iter(&statement.values))
                .with_context(|| statement.sql)?;
        }
        conn.execute_batch("COMMIT")?;
        let rollback = fs::read(&path)?;
        conn.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
        drop(conn);
        let wal = fs::read(&path)?;
        remove(&path);
        Ok(Self { rollback, wal })
    }
}

/// A database file that is deleted when this value is dropped.
pub struct Database {
    path: PathBuf,
    config: Config,
}

impl Database {
    /// Writes the initial database to a file. The file is durable on return.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn new(dir: &Path, template: &Template, config: &Config) -> Result<Self> {
        crate::register()?;
        let path = dir.join("workload.db");
        remove(&path);
        fs::write(&path, if config.has_wal() { &template.wal } else { &template.rollback })?;
        File::open(&path)?.sync_all()?;
        File::open(dir)?.sync_all()?;
        Ok(Self { path, config: config.clone() })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the database with normal locking, `synchronous=FULL`, and the default automatic checkpoints unless the
    /// configuration asks for others.
    ///
    /// # Errors
    /// An error of SQLite, or the database is in another journal mode than the configuration's.
    pub fn open(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
        let uri = self.config.uri(&self.path);
        let conn =
            crate::with_reason(|| Ok(Connection::open_with_flags(&uri, flags)?)).with_context(|| uri)?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        if self.config.checkpoints_each_commit {
            conn.query_row("PRAGMA wal_autocheckpoint=1", [], |_| Ok(()))?;
        }
        let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        let wanted = if self.config.has_wal() { "wal" } else { "delete" };
        ensure!(mode == wanted, "journal mode is {mode}");
        Ok(conn)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(database: &Path) {
    for end in ["", "-wal", "-shm", "-journal"] {
        let mut name = database.as_os_str().to_owned();
        name.push(end);
        let _ = fs::remove_file(name);
    }
}

/// The times of a run.
pub struct Run {
    /// The time for all statements.
    pub elapsed: Duration,
    /// The microseconds of each statement. The time of a batch's last statement includes its `COMMIT`.
    pub latencies: Vec<f64>,
}

/// Runs all transactions of a workload.
///
/// # Errors
/// An error of SQLite.
pub fn run(conn: &Connection, workload: &Workload) -> Result<Run> {
    let plan = Plan::new(workload.statements());
    let mut prepared = plan.prepare(conn)?;
    let (mut begin, mut commit) = (conn.prepare("BEGIN")?, conn.prepare("COMMIT")?);
    let mut latencies = Vec::with_capacity(workload.statement_count());
    let mut steps = plan.steps.iter();
    let start = Instant::now();
    let mut last = start;
    for transaction in &workload.transactions {
        if transaction.batch {
            begin.execute([])?;
        }
        for (position, (statement, step)) in transaction.statements.iter().zip(&mut steps).enumerate() {
            execute(&mut prepared[*step], statement)?;
            if transaction.batch && position + 1 == transaction.statements.len() {
                commit.execute([])?;
            }
            let now = Instant::now();
            latencies.push((now - last).as_secs_f64() * 1e6);
            last = now;
        }
    }
    Ok(Run { elapsed: last - start, latencies })
}

/// Runs only the reads of a workload, and returns the time they took.
///
/// # Errors
/// An error of SQLite.
pub fn run_reads(conn: &Connection, workload: &Workload) -> Result<Duration> {
    let reads: Vec<&Statement> =
        workload.statements().filter(|statement| statement.purpose.reads()).collect();
    let plan = Plan::new(reads.iter().copied());
    let mut prepared = plan.prepare(conn)?;
    let start = Instant::now();
    for (statement, step) in reads.into_iter().zip(&plan.steps) {
        execute(&mut prepared[*step], statement)?;
    }
    Ok(start.elapsed())
}

/// Runs a statement. A read fetches every column of every row.
fn execute(prepared: &mut rusqlite::Statement<'_>, statement: &Statement) -> Result<()> {
    if !statement.purpose.reads() {
        prepared.execute(params_from_iter(&statement.values)).with_context(|| statement.sql)?;
        return Ok(());
    }
    let columns = prepared.column_count();
    let mut rows = prepared.query(params_from_iter(&statement.values))?;
    while let Some(row) = rows.next()? {
        for column in 0..columns {
            row.get_ref(column)?;
        }
    }
    Ok(())
}

/// The distinct SQL texts to prepare. For each step, the plan also has the index of the step's text.
struct Plan {
    texts: Vec<&'static str>,
    steps: Vec<usize>,
}

impl Plan {
    fn new<'a>(statements: impl Iterator<Item = &'a Statement>) -> Self {
        let mut known = HashMap::new();
        let mut plan = Self { texts: Vec::new(), steps: Vec::new() };
        for statement in statements {
            let step = *known.entry(statement.sql).or_insert_with(|| {
                plan.texts.push(statement.sql);
                plan.texts.len() - 1
            });
            plan.steps.push(step);
        }
        plan
    }

    fn prepare<'a>(&self, conn: &'a Connection) -> Result<Vec<rusqlite::Statement<'a>>> {
        self.texts.iter().map(|text| conn.prepare(text).with_context(|| *text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};

    use rusqlite::types::Value;

    use super::*;
    use crate::ppl::apps;
    use crate::ppl::config::Latency;

    /// Returns a digest of all rows of all tables.
    fn digest(path: &Path) -> u64 {
        let conn = Connection::open(path).unwrap();
        let mut tables =
            conn.prepare("SELECT name FROM sqlite_schema WHERE type='table' ORDER BY name").unwrap();
        let names: Vec<String> =
            tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let mut hasher = DefaultHasher::new();
        for name in names {
            let mut all = conn.prepare(&format!("SELECT * FROM {name} ORDER BY 1, 2")).unwrap();
            let columns = all.column_count();
            let mut rows = all.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let values: Vec<Value> = (0..columns).map(|column| row.get(column).unwrap()).collect();
                format!("{name} {values:?}").hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    #[test]
    fn a_workload_leaves_the_same_rows_whatever_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut configs = vec![Config::wal(), Config::nvwal(Latency::None)];
        configs.extend(Config::sectors(Latency::None));
        configs.extend(Config::of_paper(Latency::None));
        for app in apps::ALL {
            let workload = Workload::new(app, 3);
            let template = Template::new(dir.path(), &workload).unwrap();
            let digests = configs.iter().map(|config| {
                let database = Database::new(dir.path(), &template, config).unwrap();
                let conn = database.open().unwrap();
                let updates = workload.statements().filter(|statement| !statement.purpose.reads()).count();
                assert_eq!(run(&conn, &workload).unwrap().latencies.len(), workload.statement_count());
                assert!(conn.total_changes() >= updates as u64 * 9 / 10, "most updates find their row");
                run_reads(&conn, &workload).unwrap();
                drop(conn);
                digest(database.path())
            });
            let digests: Vec<u64> = digests.collect();
            assert!(digests.windows(2).all(|two| two[0] == two[1]), "{}: {digests:?}", app.paper.name);
        }
    }
}
