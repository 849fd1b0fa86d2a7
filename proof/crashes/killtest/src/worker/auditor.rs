//! Compares the database with the acknowledgements. The auditor is a separate process, so the process that
//! asks it survives if the auditor hangs or dies.
//!
//! The auditor reads one [`Question`] from each line of its input. It answers with one line, an [`Answer`].
//! If it finds a loss, it ends with an error.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use duralite_testkit::stock;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::orders::Orders;
use super::session::{self, Kept};
use crate::acks::Acknowledged;
use crate::board::Note;
use crate::plan::WAL;
use crate::site::{DATABASE, check_plain};
use crate::{Phase, lanes, ledger};

/// A light check reads at least this many of the newest rows.
const NEWEST: i64 = 200;

/// A question to the auditor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Make the database, with this page size and `auto_vacuum`.
    Create(u32, u32),
    /// Check the newest transactions, on a connection that stays open.
    Light,
    /// Check the newest transactions, on a connection that only this check uses.
    Visit,
    /// Check all transactions, on a connection that stays open.
    Full,
    /// Commit a transaction.
    Commit,
    /// Check all transactions, close the last connection, and check again with stock SQLite. The value says
    /// whether shared memory of logs may remain.
    Settle(bool),
}

/// The auditor's answer if nothing is lost.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The number of transactions in the database.
    total: i64,
}

struct Auditor<'a> {
    orders: &'a Orders,
    acknowledged: Acknowledged,
    /// The acknowledgements in the lanes; `None` if the plan has no lanes.
    lanes: Option<lanes::Acknowledged>,
    conn: Option<Kept>,
    /// The number of transactions that the auditor has seen on this connection. None of them may be lost,
    /// because the log has stayed in use since the connection was opened.
    seen: i64,
}

pub(crate) fn serve(orders: &Orders, note: &Note) -> Result<()> {
    let acknowledged = Acknowledged::open(&orders.acks)?;
    let lanes = orders.concurrent.then(|| lanes::Acknowledged::open(&orders.lane_acks)).transpose()?;
    let mut auditor = Auditor { orders, acknowledged, lanes, conn: None, seen: 0 };
    note.phase(Phase::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?).context("no question")?;
        note.phase(Phase::Reading)?;
        let total = auditor.answer(question).with_context(|| format!("{question:?}"))?;
        note.phase(Phase::Ready)?;
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, &Answer { total })?;
        writeln!(out)?;
        out.flush()?;
    }
    auditor.close()
}

impl Auditor<'_> {
    fn answer(&mut self, question: Question) -> Result<i64> {
        match question {
            Question::Create(page_bytes, auto_vacuum) => self.create(page_bytes, auto_vacuum),
            Question::Light => self.check(false),
            Question::Full => self.check(true),
            Question::Commit => self.commit(),
            Question::Visit => {
                self.close()?;
                let total = self.check(false)?;
                self.close()?;
                Ok(total)
            }
            Question::Settle(allow_segments) => {
                self.check(true)?;
                self.write_once()?;
                self.close()?;
                // A process may have died after it had made a log but before the database named this log. The
                // next opening of the database makes another log, and deletes this one.
                self.check(false)?;
                self.close()?;
                self.check_stock(allow_segments)
            }
        }
    }

    fn create(&mut self, page_bytes: u32, auto_vacuum: u32) -> Result<i64> {
        let conn = duralite_testkit::connect(self.uri()?).context("cannot make the database")?;
        conn.execute_batch(&format!("PRAGMA page_size={page_bytes}; PRAGMA auto_vacuum={auto_vacuum};"))?;
        session::use_mode(&conn, &self.orders.journal, self.orders.busy)?;
        ledger::create(&conn)?;
        if self.lanes.is_some() {
            lanes::create(&conn)?;
        }
        session::close(Kept::new(conn))?;
        Ok(0)
    }

    fn uri(&self) -> Result<&str> {
        self.orders.uris.first().map(String::as_str).context("no URI")
    }

    fn close(&mut self) -> Result<()> {
        self.seen = 0;
        self.conn.take().map_or(Ok(()), session::close)
    }

    fn check(&mut self, all: bool) -> Result<i64> {
        // The acknowledgements are read first, so the number of transactions that is read next must include
        // all of them.
        let lowest = self.acknowledged.refresh()?;
        self.lanes.as_mut().map_or(Ok(()), lanes::Acknowledged::refresh)?;
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => session::open(&self.orders.uris, 0, self.orders.busy, "")?,
        };
        let conn = self.conn.insert(conn);
        let total = begin(conn, self.orders.busy)?;
        ensure!(total >= self.seen, "lost: {total} transactions are there, and {} were seen", self.seen);
        verify(conn, &self.acknowledged, total, lowest, all)?;
        self.lanes.as_ref().map_or(Ok(()), |lanes| lanes.verify(conn))?;
        conn.execute_batch("COMMIT").context("COMMIT")?;
        self.seen = total;
        self.acknowledged.forget_before(total - ledger::WINDOW);
        Ok(total)
    }

    /// Commits a transaction that needs the lock for writing. A process that died while it held that lock
    /// must not block the transaction.
    fn commit(&mut self) -> Result<i64> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => session::open(&self.orders.uris, 0, self.orders.busy, "")?,
        };
        let conn = self.conn.insert(conn);
        let counts = "UPDATE audits SET total = total + 1";
        session::when_there_is_room(self.orders.busy, conn, || {
            session::patiently(self.orders.busy, counts, || conn.execute_batch(counts))
        })?;
        Ok(self.seen)
    }

    /// In a rollback mode, writes once, because there only a writer makes a new log. This also deletes the
    /// log of a process that died before the database named it. Does nothing in WAL mode.
    fn write_once(&self) -> Result<()> {
        let Some(conn) = self.conn.as_ref().filter(|_| self.orders.journal != WAL) else { return Ok(()) };
        let version = "PRAGMA user_version=1; PRAGMA user_version=0";
        session::patiently(self.orders.busy, version, || conn.execute_batch(version))
    }

    /// Checks with stock SQLite. No process may have the database open.
    fn check_stock(&mut self, allow_segments: bool) -> Result<i64> {
        let path = self.orders.board.with_file_name(DATABASE);
        check_plain(&path, &self.orders.log_dir, allow_segments)?;
        let conn = Kept::new(open_stock(&path)?);
        let total = begin(&conn, Duration::ZERO)?;
        verify(&conn, &self.acknowledged, total, None, true).context("stock SQLite")?;
        self.lanes.as_ref().map_or(Ok(()), |lanes| lanes.verify(&conn)).context("stock SQLite")?;
        conn.execute_batch("COMMIT")?;
        session::close(conn)?;
        check_plain(&path, &self.orders.log_dir, allow_segments)?;
        Ok(total)
    }
}

fn open_stock(path: &Path) -> Result<Connection> {
    ensure!(path.exists(), "the database is gone");
    Ok(stock(path))
}

/// Begins a read transaction. Returns how many transactions the read transaction sees.
fn begin(conn: &Connection, busy: Duration) -> Result<i64> {
    session::patiently(busy, "BEGIN", || {
        if conn.is_autocommit() {
            conn.execute_batch("BEGIN")?;
        }
        ledger::total(conn)
    })
}

fn verify(
    conn: &Connection,
    acknowledged: &Acknowledged,
    total: i64,
    lowest: Option<i64>,
    all: bool,
) -> Result<()> {
    let newest = acknowledged.newest();
    ensure!(total >= newest, "lost: {total} transactions are there, and {newest} was acknowledged");
    let owner = |n| acknowledged.owner(n);
    if all {
        return ledger::verify_all(conn, total, owner);
    }
    ledger::verify_rows(conn, lowest.unwrap_or(total).min(total - NEWEST), total, owner)
}
