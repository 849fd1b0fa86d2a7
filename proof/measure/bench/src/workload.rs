//! Runs one kind of statement on one connection, on one table of 100-byte rows, as in the paper's Mobibench.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags, params};

/// The number of bytes in a row's payload.
const ROW_BYTES: usize = 100;

/// The change that a transaction makes to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Append rows.
    Insert,
    /// Replace the payload of existing rows, in order.
    Update,
    /// Delete existing rows, in order.
    Delete,
}

impl Operation {
    /// All operations, in the order of the paper's table 2.
    pub const ALL: [Self; 3] = [Self::Insert, Self::Delete, Self::Update];

    /// Returns the operation's name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// The place of the database, and the software that serves it.
#[derive(Debug, Clone)]
pub enum Target {
    /// `:memory:`.
    Memory,
    /// A file on disk, through stock SQLite in WAL mode.
    Stock,
    /// A file on disk, through stock SQLite with a rollback journal, in this journal mode.
    Rollback(&'static str),
    /// A file through Duralite's `nvwal`, with these URI parameters.
    Nvwal(Vec<(&'static str, String)>),
    /// A file through Duralite, with these URI parameters.
    Duralite(Vec<(&'static str, String)>),
    /// A file through Duralite, in this journal mode, with these URI parameters.
    DuraliteIn(&'static str, Vec<(&'static str, String)>),
}

impl Target {
    /// Returns whether the target has a write-ahead log.
    #[must_use]
    pub fn has_wal(&self) -> bool {
        match self {
            Self::Memory | Self::Rollback(_) => false,
            Self::Stock | Self::Nvwal(_) | Self::Duralite(_) => true,
            Self::DuraliteIn(mode, _) => *mode == "WAL",
        }
    }

    fn journal_mode(&self) -> &'static str {
        match self {
            Self::Rollback(mode) | Self::DuraliteIn(mode, _) => mode,
            _ => "WAL",
        }
    }

    /// Returns the name or the URI with which SQLite opens the database.
    fn name(&self, path: &Path) -> String {
        let (fixed, parameters) = match self {
            Self::Memory => return ":memory:".to_owned(),
            Self::Stock | Self::Rollback(_) => return path.display().to_string(),
            Self::Nvwal(parameters) => ("&journal=nvwal&nvram=emulate", parameters),
            Self::Duralite(parameters) | Self::DuraliteIn(_, parameters) => ("", parameters),
        };
        let mut uri = format!("file:{}?vfs=duralite{fixed}", path.display());
        for (name, value) in parameters {
            uri.push_str(&format!("&{name}={value}"));
        }
        uri
    }
}

/// The open database of a run. Dropping this value deletes the database's files.
pub struct Session {
    conn: Option<Connection>,
    files: Vec<PathBuf>,
    rows: i64,
    payload: u64,
}

/// The time of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// The number of transactions.
    pub transactions: u32,
    /// The time for all transactions.
    pub elapsed: Duration,
}

impl Run {
    /// Returns the transactions per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        f64::from(self.transactions) / self.elapsed.as_secs_f64()
    }

    /// Returns the microseconds per transaction.
    #[must_use]
    pub fn micros(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e6 / f64::from(self.transactions)
    }
}

impl Session {
    /// Makes a fresh database in `dir` with 4 KiB pages, the target's journal mode and `synchronous=FULL`.
    /// Opens one connection, with exclusive or normal locking. With `checkpoints`, leaves SQLite's automatic
    /// checkpoints at their default. Otherwise turns them off.
    ///
    /// # Errors
    /// An error of SQLite, or a medium or a journal mode that the target did not ask for.
    pub fn open(dir: &Path, target: &Target, exclusive: bool, checkpoints: bool) -> Result<Self> {
        crate::register()?;
        crate::with_reason(|| Self::prepare(dir, target, exclusive, checkpoints))
    }

    fn prepare(dir: &Path, target: &Target, exclusive: bool, checkpoints: bool) -> Result<Self> {
        let path = dir.join("bench.db");
        let files: Vec<PathBuf> =
            ["", "-wal", "-shm", "-journal"].iter().map(|end| dir.join(format!("bench.db{end}"))).collect();
        files.iter().for_each(|file| drop(std::fs::remove_file(file)));
        let conn = Self::connect(&path, target)?;
        conn.pragma_update(None, "page_size", 4096)?;
        if exclusive {
            conn.query_row("PRAGMA locking_mode=EXCLUSIVE", [], |_| Ok(()))?;
        }
        if !matches!(target, Target::Memory) {
            let wanted = target.journal_mode();
            let mode: String =
                conn.query_row(&format!("PRAGMA journal_mode={wanted}"), [], |row| row.get(0))?;
            ensure!(mode.eq_ignore_ascii_case(wanted), "journal mode is {mode}");
            conn.pragma_update(None, "synchronous", "FULL")?;
            if !checkpoints {
                conn.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(()))?;
            }
        }
        conn.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT NOT NULL)")?;
        Ok(Self { conn: Some(conn), files, rows: 0, payload: 0x9E37_79B9_7F4A_7C15 })
    }

    fn connect(path: &Path, target: &Target) -> Result<Connection> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_URI;
        let name = target.name(path);
        Connection::open_with_flags(&name, flags).with_context(|| name)
    }

    /// Closes the connection. It is the last one of its database, so SQLite removes the log.
    pub fn close(&mut self) {
        self.conn = None;
    }

    /// Opens the database of a closed session again, with normal locking, `synchronous=FULL` and no automatic
    /// checkpoints.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn reopen(&mut self, target: &Target) -> Result<()> {
        crate::with_reason(|| {
            let conn = Self::connect(self.path(), target)?;
            conn.pragma_update(None, "synchronous", "FULL")?;
            conn.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(()))?;
            self.conn = Some(conn);
            Ok(())
        })
    }

    /// Returns the connection.
    ///
    /// # Errors
    /// An error if the session is closed.
    pub fn conn(&self) -> Result<&Connection> {
        self.conn.as_ref().context("the session is closed")
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.files[0]
    }

    /// Fills the table in one transaction, with rows for updates and deletes.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn fill(&mut self, rows: u32) -> Result<()> {
        self.conn()?.execute_batch("BEGIN")?;
        self.rows = 0;
        for _ in 0..rows {
            let payload = self.next_payload();
            self.conn()?.prepare_cached("INSERT INTO t(v) VALUES(?1)")?.execute(params![payload])?;
        }
        self.conn()?.execute_batch("COMMIT")?;
        Ok(())
    }

    /// Makes updates and deletes begin with the first row again.
    pub fn rewind(&mut self) {
        self.rows = 0;
    }

    /// Grows the log. To do so it commits `2 * pages` transactions of one page each to a separate table,
    /// without syncing.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn grow_log(&self, pages: u32) -> Result<()> {
        let conn = self.conn()?;
        conn.execute_batch(
            "PRAGMA synchronous=OFF; CREATE TABLE filler(x INTEGER); INSERT INTO filler VALUES(0)",
        )?;
        let mut statement = conn.prepare("UPDATE filler SET x=x+1")?;
        for _ in 0..2 * pages {
            statement.execute([])?;
        }
        drop(statement);
        conn.execute_batch("PRAGMA synchronous=FULL")?;
        Ok(())
    }

    /// Runs `transactions` transactions of `per_transaction` operations each.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn run(&mut self, operation: Operation, transactions: u32, per_transaction: u32) -> Result<Run> {
        let sql = match operation {
            Operation::Insert => "INSERT INTO t(v) VALUES(?1)",
            Operation::Update => "UPDATE t SET v=?1 WHERE id=?2",
            Operation::Delete => "DELETE FROM t WHERE id=?2 AND ?1 IS NOT NULL",
        };
        let payloads: Vec<String> = (0..64).map(|_| self.next_payload()).collect();
        let conn = self.conn()?;
        let mut statement = conn.prepare(sql)?;
        let mut begin = conn.prepare("BEGIN")?;
        let mut commit = conn.prepare("COMMIT")?;
        let mut row = self.rows;
        let start = Instant::now();
        for _ in 0..transactions {
            if per_transaction > 1 {
                begin.execute([])?;
            }
            for _ in 0..per_transaction {
                row += 1;
                let payload = &payloads[row as usize % payloads.len()];
                let changed = match operation {
                    Operation::Insert => statement.execute(params![payload])?,
                    Operation::Update | Operation::Delete => statement.execute(params![payload, row])?,
                };
                debug_assert_eq!(changed, 1);
            }
            if per_transaction > 1 {
                commit.execute([])?;
            }
        }
        let elapsed = start.elapsed();
        drop((statement, begin, commit));
        self.rows = row;
        Ok(Run { transactions, elapsed })
    }

    /// Runs `transactions` inserts, each in a transaction of its own. Returns the microseconds of each
    /// insert.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn latencies(&mut self, transactions: u32) -> Result<Vec<f64>> {
        let payload = self.next_payload();
        let mut statement = self.conn()?.prepare("INSERT INTO t(v) VALUES(?1)")?;
        (0..transactions)
            .map(|_| {
                let start = Instant::now();
                statement.execute(params![payload])?;
                Ok(start.elapsed().as_secs_f64() * 1e6)
            })
            .collect()
    }

    /// Returns the rows of `PRAGMA duralite`.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn status(&self) -> Result<HashMap<String, String>> {
        status(self.conn()?)
    }

    /// Returns a number from [`Session::status`].
    ///
    /// # Errors
    /// An error of SQLite, or a name that `PRAGMA duralite` does not show.
    pub fn counter(&self, name: &str) -> Result<f64> {
        let status = self.status()?;
        let value = status.get(name).with_context(|| format!("PRAGMA duralite shows no {name}"))?;
        Ok(value.parse()?)
    }

    fn next_payload(&mut self) -> String {
        let mut text = String::with_capacity(ROW_BYTES);
        while text.len() < ROW_BYTES {
            self.payload ^= self.payload << 13;
            self.payload ^= self.payload >> 7;
            self.payload ^= self.payload << 17;
            text.push(char::from(b'a' + (self.payload % 26) as u8));
        }
        text
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.conn = None;
        self.files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// Returns the rows of `PRAGMA duralite` on a connection, by name.
///
/// # Errors
/// An error of SQLite.
pub fn status(conn: &Connection) -> Result<HashMap<String, String>> {
    let text: String = conn.query_row("PRAGMA duralite", [], |row| row.get(0))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect())
}

/// Returns the median: the middle value, or the mean of the two middle values.
#[must_use]
pub fn median(figures: impl AsRef<[f64]>) -> f64 {
    let mut sorted = figures.as_ref().to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Returns the smallest of the values for which at least a fraction `part` of all values are as small or
/// smaller; `None` if there are no values. The values must be in ascending order.
#[must_use]
pub fn percentile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_those_of_the_books() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([0.0; 0]).is_nan());
        let values: Vec<u32> = (1..=200).collect();
        let of = |part| percentile(&values, part);
        assert_eq!([of(0.0), of(0.5), of(0.99), of(1.0)], [Some(1), Some(100), Some(198), Some(200)]);
        assert_eq!(percentile::<f64>(&[], 0.5), None);
    }
}
