//! Compares what is in the database with what was acknowledged: a process of its own, so that it
//! can hang or die without the one that asks.
//!
//! It answers each line that it is given by one of its own: `ok` and the number of transactions.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use duralite_testkit::stock;
use rusqlite::Connection;

use super::orders::Orders;
use super::session::{self, Kept};
use crate::acks::Acknowledged;
use crate::board::Note;
use crate::plan::WAL;
use crate::site::{DATABASE, check_plain};
use crate::{Phase, ledger};

/// Rows that a light check looks at, at least.
const NEWEST: i64 = 200;

/// What an auditor can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Makes the database.
    Create(u32, u32),
    /// A check of what is newest, on a connection that stays open.
    Light,
    /// The same, on a connection of its own.
    Visit,
    /// A check of everything, on a connection that stays open.
    Full,
    /// A check of everything, then the last close, and a check by stock SQLite; whether shared
    /// memory may be left.
    Settle(bool),
}

impl Question {
    pub(crate) fn line(self) -> String {
        match self {
            Self::Create(page_bytes, auto_vacuum) => format!("create {page_bytes} {auto_vacuum}"),
            Self::Light => "light".to_owned(),
            Self::Visit => "visit".to_owned(),
            Self::Full => "full".to_owned(),
            Self::Settle(allow_segments) => format!("settle {allow_segments}"),
        }
    }

    fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words[..] {
            ["create", page_bytes, auto_vacuum] => Self::Create(page_bytes.parse()?, auto_vacuum.parse()?),
            ["light"] => Self::Light,
            ["visit"] => Self::Visit,
            ["full"] => Self::Full,
            ["settle", allow_segments] => Self::Settle(allow_segments.parse()?),
            _ => bail!("unknown question: {line}"),
        })
    }
}

struct Auditor<'a> {
    orders: &'a Orders,
    acknowledged: Acknowledged,
    conn: Option<Kept>,
    /// What this connection has seen: with it, the log has had a process all the time.
    seen: i64,
}

pub(crate) fn serve(orders: &Orders, note: &Note) -> Result<()> {
    let acknowledged = Acknowledged::open(&orders.acks)?;
    let mut auditor = Auditor { orders, acknowledged, conn: None, seen: 0 };
    note.phase(Phase::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let question = Question::parse(&line?)?;
        note.phase(Phase::Reading)?;
        let total = auditor.answer(question).with_context(|| question.line())?;
        note.phase(Phase::Ready)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "ok {total}")?;
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
                // What somebody had made who died before the database named it goes when the next log is made.
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
        // First what was acknowledged, so that what is read then must have it.
        let lowest = self.acknowledged.refresh()?;
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => session::open(&self.orders.uris, 0, self.orders.busy, "")?,
        };
        let conn = self.conn.insert(conn);
        let total = begin(conn, self.orders.busy)?;
        ensure!(total >= self.seen, "lost: {total} transactions are there, and {} were seen", self.seen);
        verify(conn, &self.acknowledged, total, lowest, all)?;
        conn.execute_batch("COMMIT").context("COMMIT")?;
        self.seen = total;
        self.acknowledged.forget_before(total - ledger::WINDOW);
        Ok(total)
    }

    /// In rollback mode who only reads makes no log, and clears away none that somebody had made who died before it counted.
    fn write_once(&self) -> Result<()> {
        let Some(conn) = self.conn.as_ref().filter(|_| self.orders.journal != WAL) else { return Ok(()) };
        let version = "PRAGMA user_version=1; PRAGMA user_version=0";
        session::patiently(self.orders.busy, version, || conn.execute_batch(version))
    }

    /// Nobody has the database open.
    fn check_stock(&mut self, allow_segments: bool) -> Result<i64> {
        let path = self.orders.board.with_file_name(DATABASE);
        check_plain(&path, &self.orders.log_dir, allow_segments)?;
        let conn = Kept::new(open_stock(&path)?);
        let total = begin(&conn, Duration::ZERO)?;
        verify(&conn, &self.acknowledged, total, None, true).context("stock SQLite")?;
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

/// Begins to read; returns how many transactions there are.
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
