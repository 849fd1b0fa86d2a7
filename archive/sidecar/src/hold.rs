//! Holds a snapshot of a database while the sidecar copies the snapshot's pages.
//!
//! A copy of a database needs two things: a position in the log, and the pages as they are at that position. A read
//! transaction returns the pages, wherever the engine keeps them. To get the position, a second connection holds
//! SQLite's WRITE lock while the read transaction begins. So no commit can come between the position and the snapshot.
//!
//! Both connections are in a child process. The sidecar's own process also opens and closes the database file. When a
//! process closes any descriptor of a file, the kernel releases all locks of that process on the file.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

/// How long a connection waits for a lock that another process holds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The child's first message. The child sends it when its snapshot has begun and it holds WRITE.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    /// The size of the database in pages.
    pages: u32,
    /// The page size in bytes.
    page_bytes: u32,
    /// The position after the newest transaction in the log; `None` if the log has no transaction.
    newest: Option<u64>,
}

/// What the parent tells the child to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    /// Release WRITE, and keep the snapshot until the child's standard input ends.
    Hold,
    /// Write all pages to standard output.
    Pages,
    /// Commit a transaction that changes nothing, and end. After that commit, no earlier transaction in the log can be
    /// replaced any more.
    Settle,
}

/// A snapshot that a child process holds. Dropping this value ends the snapshot.
pub struct Held {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Option<BufReader<ChildStdout>>,
    begun: Begun,
}

impl Held {
    /// Begins a snapshot. Nobody can commit until the caller calls [`Held::release_write`], so the caller must hurry.
    ///
    /// # Errors
    /// The reason that the child gives: the database is not in WAL mode, or is locked, or cannot be opened.
    pub fn begin(database: &Path, settings: &[(String, String)]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("hold").arg(database);
        for (name, value) in settings {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().map(BufReader::new);
        let mut held =
            Self { child, orders, answers, begun: Begun { pages: 0, page_bytes: 0, newest: None } };
        held.begun = held.answer()?;
        Ok(held)
    }

    /// Returns the size of the database in pages.
    pub fn pages(&self) -> u32 {
        self.begun.pages
    }

    /// Returns the page size in bytes.
    pub fn page_bytes(&self) -> u32 {
        self.begun.page_bytes
    }

    /// Returns the position after the newest transaction that the log had when the snapshot began; `None` if the log
    /// had no transaction.
    pub fn newest(&self) -> Option<u64> {
        self.begun.newest
    }

    /// Releases WRITE, and keeps the snapshot.
    ///
    /// # Errors
    /// The child process has ended.
    pub fn release_write(&mut self) -> Result<()> {
        self.order(Order::Hold)?;
        self.answer()
    }

    /// Returns the pages of the snapshot, one after another. The caller must have released WRITE. It must read all
    /// pages, or drop this value.
    ///
    /// # Errors
    /// The child process has ended.
    pub fn content(&mut self) -> Result<impl Read + '_> {
        self.order(Order::Pages)?;
        let bytes = u64::from(self.begun.pages) * u64::from(self.begun.page_bytes);
        Ok(self.answers.as_mut().context("the pipe of a child process")?.take(bytes))
    }

    /// Commits a transaction that changes nothing, and ends the snapshot. After that, every transaction in this
    /// snapshot is final.
    ///
    /// # Errors
    /// The commit failed, or the child process has ended.
    pub fn settle(mut self) -> Result<()> {
        self.order(Order::Settle)?;
        self.answer()
    }

    fn order(&mut self, order: Order) -> Result<()> {
        let orders = self.orders.as_mut().context("the pipe of a child process")?;
        writeln!(orders, "{}", serde_json::to_string(&order)?)?;
        Ok(orders.flush()?)
    }

    fn answer<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.answers.as_mut().context("the pipe of a child process")?.read_line(&mut line)?;
        let said: Result<T, String> = serde_json::from_str(&line)
            .map_err(|_| anyhow!("the process that holds a snapshot has ended"))?;
        said.map_err(|reason| anyhow!(reason))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The child ends when its standard input ends. If it is writing pages at that moment, it ends because its
        // output is closed.
        drop((self.orders.take(), self.answers.take()));
        // An error means that the child has ended already.
        let _ = self.child.wait();
    }
}

/// Does the work of the child process. Reports an error on standard output, from which the parent reads it.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(database: &Path, settings: &[(String, String)]) -> Result<()> {
    match hold(database, settings) {
        Ok(()) => Ok(()),
        Err(error) => say::<()>(Err(format!("{}: {error:#}", database.display()))),
    }
}

fn hold(database: &Path, settings: &[(String, String)]) -> Result<()> {
    duralite::register().map_err(|error| anyhow!("{error}"))?;
    let writer = open(database, settings)?;
    let mode: String = writer.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        bail!(
            "the database is in journal mode {mode}, and only WAL mode has a log that can be followed; duralite enable changes it"
        );
    }
    let reader = open(database, settings)?;
    writer.execute_batch("BEGIN IMMEDIATE").map_err(reason)?;
    reader.execute_batch("BEGIN").map_err(reason)?;
    let pages = reader.query_row("PRAGMA page_count", [], |row| row.get(0)).map_err(reason)?;
    reader.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(reason)?;
    let page_bytes = reader.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(reason)?;
    let newest = writer
        .query_row("SELECT max(position) FROM duralite_log", [], |row| row.get::<_, Option<i64>>(0))
        .map_err(reason)?;
    say(Ok(Begun { pages, page_bytes, newest: newest.and_then(|newest| u64::try_from(newest).ok()) }))?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Order::Hold) => {
            writer.execute_batch("ROLLBACK").map_err(reason)?;
            say(Ok(()))?;
            // The parent closes the pipe when it has copied all pages, or when it dies.
            for order in std::io::stdin().lines() {
                if matches!(serde_json::from_str(&order?), Ok(Order::Pages)) {
                    write_pages(&reader)?;
                }
            }
            Ok(())
        }
        Ok(Order::Pages) => bail!("the pages were asked for before WRITE was released"),
        Ok(Order::Settle) => {
            let version: i64 =
                writer.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(reason)?;
            writer.execute_batch(&format!("PRAGMA user_version={version}; COMMIT")).map_err(reason)?;
            say(Ok(()))
        }
        Err(_) => Ok(()), // the parent has died
    }
}

/// Writes all pages that a connection sees, to standard output.
fn write_pages(reader: &Connection) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut select = reader.prepare_cached("SELECT data FROM sqlite_dbpage ORDER BY pgno").map_err(reason)?;
    let mut rows = select.query([]).map_err(reason)?;
    while let Some(row) = rows.next().map_err(reason)? {
        out.write_all(row.get_ref(0)?.as_blob()?)?;
    }
    Ok(out.flush()?)
}

fn say<T: Serialize>(what: Result<T, String>) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(&what)?)?;
    Ok(out.flush()?)
}

/// Opens a connection on Duralite. Commits on this connection do not wait for the archive. Only the commits of
/// applications have to wait.
///
/// # Errors
/// An error of SQLite, with Duralite's reason.
pub fn open(database: &Path, settings: &[(String, String)]) -> Result<Connection> {
    let mut given: Vec<(&str, &str)> =
        settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    given.extend([("strict", "off"), ("concurrent", "off"), ("replicated", "off")]);
    let uri = duralite::uri(std::path::absolute(database)?, &given);
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).map_err(reason)?;
    connection.busy_timeout(PATIENCE)?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(reason)?;
    Ok(connection)
}

/// Opens and closes a database in a child process. If no other process uses the database, this checkpoints and deletes
/// its log, and removes the guard.
///
/// # Errors
/// The reason that the child gives.
pub fn close(database: &Path, settings: &[(String, String)]) -> Result<()> {
    let mut held = Held::begin(database, settings)?;
    held.release_write()
}

/// Returns SQLite's error, with Duralite's reason if there is one.
fn reason(error: rusqlite::Error) -> anyhow::Error {
    match duralite::last_error() {
        Some(own) => anyhow!("{error} ({own})"),
        None => anyhow!(error),
    }
}
