//! The tasks that the benchmark runs in processes of their own.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, OpenFlags};

use crate::concurrent;
use crate::workload::{median, status};

/// Starts and exits.
pub(super) const NOTHING: &str = "nothing";
/// Opens the database, commits one insert, and closes the database.
pub(super) const INSERT: &str = "insert";
/// Opens the database, reads a row, and closes the database.
pub(super) const SELECT: &str = "select";
/// Commits a number of times without a checkpoint, prints the size of the log, and waits to be killed.
pub(super) const COMMIT: &str = "commit";
/// Opens and reads the database. Prints the time that this took in microseconds, and the number of rows.
pub(super) const RECOVER: &str = "recover";
/// Fills a database to a given size. Prints inserts and updates per second, and the resident memory in MiB.
pub(super) const SIZE: &str = "size";
/// Measures the same as [`SIZE`], but on a small database. The number on the command line is the length of
/// the log in frames. The task makes the log that long before each round.
pub(super) const LENGTH: &str = "length";

/// The number of rows in a transaction of [`COMMIT`].
pub(super) const ROWS_EACH: u64 = 3;

/// The size of a row of `filler` in bytes. Four rows fill a page.
const ROW_BYTES: i64 = 1024;
/// The largest number of rows that one transaction inserts into `filler`.
const BATCH_ROWS: i64 = 10_000;
/// To lengthen the log, the task updates this many rows of `filler`. The next constant is the number of these
/// rows in a page.
const LONG_ROWS: i64 = 1000;
const PAGE_ROWS: i64 = 4;

/// Runs one task, and prints its results.
///
/// # Errors
/// An error of SQLite, or a task that does not exist.
pub fn work(task: &str, uri: &str, numbers: &[u64]) -> Result<()> {
    let figures = match (task, numbers) {
        (NOTHING, []) => Vec::new(),
        (INSERT, []) => insert(uri)?,
        (SELECT, []) => select(uri)?,
        (COMMIT, [commits]) => return commit(uri, *commits),
        (RECOVER, []) => recover(uri)?,
        (SIZE, [bytes, transactions, rounds]) => size(uri, *bytes, *transactions, *rounds)?,
        (LENGTH, [frames, transactions, rounds]) => length(uri, *frames, *transactions, *rounds)?,
        _ => bail!("no task {task} with {} numbers", numbers.len()),
    };
    say(&figures)
}

fn say(figures: &[f64]) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{}", figures.iter().map(f64::to_string).collect::<Vec<_>>().join(" "))?;
    Ok(out.flush()?)
}

/// Opens an existing database in WAL mode, as programs do. Registers Duralite only if the database uses it.
fn open(uri: &str) -> Result<Connection> {
    if uri.contains("vfs=duralite") {
        crate::register()?;
    }
    crate::with_reason(|| {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
        let conn = Connection::open_with_flags(uri, flags).with_context(|| uri.to_owned())?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        Ok(conn)
    })
}

fn close(conn: Connection) -> Result<()> {
    conn.close().map_err(|(_, error)| error.into())
}

fn insert(uri: &str) -> Result<Vec<f64>> {
    let conn = open(uri)?;
    conn.execute(concurrent::INSERT, [concurrent::payload()])?;
    close(conn)?;
    Ok(Vec::new())
}

fn select(uri: &str) -> Result<Vec<f64>> {
    let conn = open(uri)?;
    conn.query_row("SELECT v FROM t WHERE id=1", [], |row| row.get::<_, String>(0))?;
    close(conn)?;
    Ok(Vec::new())
}

fn commit(uri: &str, commits: u64) -> Result<()> {
    let conn = concurrent::open(uri)?;
    conn.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(()))?;
    conn.execute_batch(concurrent::TABLE)?;
    let payload = concurrent::payload();
    let mut insert = conn.prepare(concurrent::INSERT)?;
    for _ in 0..commits {
        conn.execute_batch("BEGIN")?;
        for _ in 0..ROWS_EACH {
            insert.execute([&payload])?;
        }
        conn.execute_batch("COMMIT")?;
    }
    say(&[log_bytes(&conn, uri)?])?;
    std::io::stdin().read_line(&mut String::new())?;
    bail!("it was not killed");
}

/// For Duralite, returns the number of bytes of the log that are in use. For stock SQLite, returns the size
/// of the log file.
fn log_bytes(conn: &Connection, uri: &str) -> Result<f64> {
    if uri.contains("vfs=duralite") {
        return shown(conn, "log_bytes");
    }
    let path = conn.path().context("a database without a path")?;
    Ok(std::fs::metadata(format!("{path}-wal"))?.len() as f64)
}

/// Returns a number from `PRAGMA duralite`.
fn shown(conn: &Connection, name: &str) -> Result<f64> {
    let status = status(conn)?;
    let value = status.get(name).with_context(|| format!("PRAGMA duralite shows no {name}"))?;
    Ok(value.parse()?)
}

fn recover(uri: &str) -> Result<Vec<f64>> {
    if uri.contains("vfs=duralite") {
        crate::register()?;
    }
    let start = Instant::now();
    let conn = open(uri)?;
    let rows: i64 = conn.query_row("SELECT max(id) FROM t", [], |row| row.get(0))?;
    let micros = start.elapsed().as_secs_f64() * 1e6;
    close(conn)?;
    Ok(vec![micros, rows as f64])
}

/// Makes a database with an empty table for inserts, and a table with `bytes` bytes of rows for updates.
/// Returns the connection, and the number of rows to update.
fn filled(uri: &str, bytes: i64) -> Result<(Connection, i64)> {
    let conn = concurrent::open(uri)?;
    conn.execute_batch(concurrent::TABLE)?;
    conn.execute_batch("CREATE TABLE filler(id INTEGER PRIMARY KEY, v TEXT NOT NULL, pad BLOB NOT NULL)")?;
    let rows = (bytes / ROW_BYTES).max(1);
    let mut left = rows;
    while left > 0 {
        let batch = left.min(BATCH_ROWS);
        conn.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<?1) \
             INSERT INTO filler(v, pad) SELECT hex(randomblob(50)), randomblob(880) FROM n",
            [batch],
        )?;
        left -= batch;
    }
    empty_log(&conn)?;
    Ok((conn, rows))
}

fn empty_log(conn: &Connection) -> Result<()> {
    let busy: i64 = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    ensure!(busy == 0, "the checkpoint was busy");
    Ok(())
}

/// The inserts per second, and the updates of random rows per second, for each round.
#[derive(Default)]
struct Rates {
    inserts: Vec<f64>,
    updates: Vec<f64>,
}

impl Rates {
    fn take(&mut self, conn: &Connection, transactions: u64, rows: i64) -> Result<()> {
        let payload = concurrent::payload();
        let mut insert = conn.prepare(concurrent::INSERT)?;
        let start = Instant::now();
        for _ in 0..transactions {
            insert.execute([&payload])?;
        }
        self.inserts.push(transactions as f64 / start.elapsed().as_secs_f64());
        let mut random = fastrand::Rng::with_seed(self.updates.len() as u64);
        let mut update = conn.prepare("UPDATE filler SET v=?1 WHERE id=?2")?;
        let start = Instant::now();
        for number in 0..transactions {
            // Each value is new, because SQLite commits nothing for a row that does not change.
            let value = format!("round {} row {number:>width$}", self.updates.len(), width = payload.len());
            let changed = update.execute((value, random.i64(1..=rows)))?;
            ensure!(changed == 1, "an update found {changed} rows");
        }
        self.updates.push(transactions as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }

    fn figures(self) -> Result<Vec<f64>> {
        Ok(vec![median(self.inserts), median(self.updates), resident_mib()?])
    }
}

fn size(uri: &str, bytes: u64, transactions: u64, rounds: u64) -> Result<Vec<f64>> {
    let (conn, rows) = filled(uri, bytes.try_into()?)?;
    let mut rates = Rates::default();
    for _ in 0..rounds {
        rates.take(&conn, transactions, rows)?;
    }
    rates.figures()
}

fn length(uri: &str, frames: u64, transactions: u64, rounds: u64) -> Result<Vec<f64>> {
    let (conn, rows) = filled(uri, LONG_ROWS * ROW_BYTES)?;
    conn.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(()))?;
    let mut rates = Rates::default();
    for _ in 0..rounds {
        empty_log(&conn)?;
        lengthen(&conn, frames as f64)?;
        rates.take(&conn, transactions, rows)?;
    }
    rates.figures()
}

/// Updates many pages per transaction until the log has `frames` frames.
fn lengthen(conn: &Connection, frames: f64) -> Result<()> {
    let mut update = conn.prepare("UPDATE filler SET v=hex(randomblob(50)) WHERE id<=?1")?;
    let mut have = shown(conn, "log_frames")?;
    while have < frames {
        let pages = (frames - have) as i64;
        update.execute([(pages * PAGE_ROWS).min(LONG_ROWS)])?;
        let now = shown(conn, "log_frames")?;
        ensure!(now > have, "the log went from {have} frames to {now}");
        have = now;
    }
    ensure!(have < frames * 1.1 + 10.0, "the log has {have} frames instead of {frames}");
    Ok(())
}

/// Returns the resident memory of this process in MiB.
fn resident_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
