//! Runs many connections that commit at once, in threads of one process or in processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// The time for which a connection waits for a lock before SQLite returns `SQLITE_BUSY`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// The statement that creates the table into which all connections insert.
pub(crate) const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT NOT NULL)";
/// The insert of each commit. Its parameter is a [`payload`].
pub(crate) const INSERT: &str = "INSERT INTO t(v) VALUES(?1)";

/// Returns a hundred bytes.
pub(crate) fn payload() -> String {
    "x".repeat(100)
}

/// The result of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    /// The number of commits.
    pub commits: u64,
    /// The longest time of one commit.
    pub worst: Duration,
    /// The number of times that SQLite returned `SQLITE_BUSY`.
    pub busy: u64,
}

/// The results of all connections.
#[derive(Debug, Clone)]
pub struct Crowd {
    shares: Vec<Share>,
    seconds: f64,
}

impl Crowd {
    /// Returns the commits per second of all connections together.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.shares.iter().map(|share| share.commits as f64).sum::<f64>() / self.seconds
    }

    /// Returns the number of commits of the slowest connection, divided by the mean number of all
    /// connections.
    #[must_use]
    pub fn slowest_to_mean(&self) -> f64 {
        let mean = self.per_second() * self.seconds / self.shares.len() as f64;
        self.shares.iter().map(|share| share.commits).min().unwrap_or(0) as f64 / mean
    }

    /// Returns the time of the longest commit in milliseconds.
    #[must_use]
    pub fn worst_ms(&self) -> f64 {
        self.shares.iter().map(|share| share.worst.as_secs_f64() * 1e3).fold(0.0, f64::max)
    }

    /// Returns how often SQLite returned `SQLITE_BUSY`.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.shares.iter().map(|share| share.busy).sum()
    }
}

/// Opens a connection in WAL mode with a busy timeout and durable commits.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn open(uri: &str) -> Result<Connection> {
    crate::register()?;
    crate::with_reason(|| connect(uri))
}

fn connect(uri: &str) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(uri, flags).with_context(|| uri.to_owned())?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    Ok(conn)
}

/// Creates an empty table. Then commits until the log has been filled once, so that it hardly grows during
/// the measurement. These commits do not wait for the disk.
pub(crate) fn prepare(uri: &str) -> Result<Connection> {
    let conn = open(uri)?;
    conn.execute_batch(TABLE)?;
    conn.pragma_update(None, "synchronous", "OFF")?;
    for _ in 0..1100 {
        conn.execute("INSERT INTO t(v) VALUES('warm')", [])?;
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    Ok(conn)
}

/// Commits one insert per transaction until the time is over.
fn commit_for(conn: &Connection, time: Duration) -> Result<Share> {
    let mut share = Share::default();
    let payload = payload();
    let mut insert = conn.prepare(INSERT)?;
    let start = Instant::now();
    while start.elapsed() < time {
        let began = Instant::now();
        match insert.execute([&payload]) {
            Ok(_) => share.commits += 1,
            Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::DatabaseBusy => {
                share.busy += 1;
            }
            Err(error) => return Err(error.into()),
        }
        share.worst = share.worst.max(began.elapsed());
    }
    Ok(share)
}

/// Lets `count` threads commit, each on a connection of its own.
///
/// # Errors
/// An error of SQLite.
pub fn threads(uri: &str, count: usize, time: Duration) -> Result<Crowd> {
    let keep = prepare(uri)?;
    let shares = together(count, |_| open(uri), |_, conn| commit_for(&conn, time))?;
    drop(keep);
    Ok(Crowd { shares, seconds: time.as_secs_f64() })
}

/// Starts `count` threads. Each thread first calls `open`, and then `work` with the result. All threads
/// have called `open` before the first one calls `work`.
///
/// # Errors
/// The first error of a thread.
pub(crate) fn together<C, T: Send>(
    count: usize,
    open: impl Fn(usize) -> Result<C> + Sync,
    work: impl Fn(usize, C) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let barrier = Barrier::new(count);
    let (open, work, barrier) = (&open, &work, &barrier);
    std::thread::scope(|scope| {
        let run = move |number| {
            let opened = open(number);
            barrier.wait();
            work(number, opened?)
        };
        let workers: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        let results = workers.into_iter().map(|worker| worker.join());
        results.map(|result| result.unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))).collect()
    })
}

/// With this first argument the program runs as a worker process; see [`worker`].
pub const WORKER: &str = "bench-worker";

/// Lets `count` processes commit, each on a connection of its own. Each process is this program, started
/// with the argument [`WORKER`].
///
/// # Errors
/// An error of SQLite, or of starting a process.
pub fn processes(uri: &str, count: usize, time: Duration) -> Result<Crowd> {
    let keep = prepare(uri)?;
    let arguments = [WORKER.to_owned(), uri.to_owned(), time.as_millis().to_string()];
    let mut shares = Vec::new();
    for line in programs_together(&vec![arguments; count])? {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [commits, worst, busy] = numbers[..] else { anyhow::bail!("a worker said {line:?}") };
        shares.push(Share { commits, worst: Duration::from_micros(worst), busy });
    }
    drop(keep);
    Ok(Crowd { shares, seconds: time.as_secs_f64() })
}

/// Starts this program once for each set of arguments. When all processes are ready (see [`wait_for_go`]),
/// lets them begin. Returns the line that each process prints as its result.
///
/// # Errors
/// A process cannot be started, or fails. A process that fails has printed the reason on standard error.
pub(crate) fn programs_together<const N: usize>(arguments: &[[String; N]]) -> Result<Vec<String>> {
    let program = std::env::current_exe()?;
    let start = |arguments: &[String; N]| {
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut children = arguments.iter().map(start).collect::<std::io::Result<Vec<Child>>>()?;
    let mut outputs = Vec::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().context("a worker without output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line == "ready\n", "a worker said {line:?}");
        outputs.push(output);
    }
    for child in &mut children {
        child.stdin.take().context("a worker without input")?.write_all(b"go\n")?;
    }
    let mut lines = Vec::new();
    for (child, mut output) in children.iter_mut().zip(outputs) {
        let mut line = String::new();
        output.read_line(&mut line)?;
        let status = child.wait()?;
        ensure!(status.success(), "a worker failed: {status}");
        lines.push(line);
    }
    Ok(lines)
}

/// Reports that this worker process is ready, and waits until the parent lets all workers begin.
///
/// # Errors
/// An error if the parent is gone.
pub(crate) fn wait_for_go() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Does the work of a worker process: reports that it is ready, waits for the parent, commits, and reports
/// the result.
///
/// # Errors
/// An error of SQLite.
pub fn worker(uri: &str, time: Duration) -> Result<()> {
    let conn = open(uri)?;
    wait_for_go()?;
    let share = commit_for(&conn, time)?;
    writeln!(std::io::stdout(), "{} {} {}", share.commits, share.worst.as_micros(), share.busy)?;
    Ok(())
}

/// Returns the URI of a fresh database in `dir`: on stock SQLite, or on Duralite with these parameters.
#[must_use]
pub fn fresh(dir: &Path, parameters: Option<&str>) -> String {
    for end in ["", "-wal", "-shm", "-journal"] {
        drop(std::fs::remove_file(dir.join(format!("crowd.db{end}"))));
    }
    let path = dir.join("crowd.db");
    match parameters {
        None => format!("file:{}", path.display()),
        Some("") => format!("file:{}?vfs=duralite", path.display()),
        Some(parameters) => format!("file:{}?vfs=duralite&{parameters}", path.display()),
    }
}
