//! What a command writes to a block device, request by request, and what for: the tool that the
//! WALDIO paper calls MOST.
//!
//! The kernel's `block_rq_issue` tracepoint says where each request goes and who issued it; FIEMAP
//! says where the blocks of the database and of its logs are. What is in neither and comes from
//! ext4's journal thread is the file system's journal.

mod draw;
mod files;
mod parse;
mod tracefs;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

pub use draw::{Marker, draw};
use files::{Device, Watched};
pub use parse::{Request, parse_line};
use tracefs::Session;

/// How often the files are looked at while the command runs: logs come and go.
const LOOK: Duration = Duration::from_millis(20);
/// How ext4's journal thread is named.
const JOURNAL_THREAD: &str = "jbd2/";

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The database file.
    Database,
    /// A log or journal of SQLite's or Duralite's.
    Log,
    /// The file system's journal.
    Journal,
    /// Anything else.
    Other,
}

impl Class {
    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Log => "log",
            Self::Journal => "file-system journal",
            Self::Other => "other",
        }
    }
}

/// A write request and what it is for.
#[derive(Debug, Clone, Serialize)]
pub struct Write {
    /// Seconds since the first.
    pub seconds: f64,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What for.
    pub class: Class,
}

/// Requests and bytes of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What was traced.
#[derive(Debug, Clone, Serialize)]
pub struct Trace {
    /// Every write with content, in order.
    pub writes: Vec<Write>,
    /// Flushes of the device's cache.
    pub flushes: u64,
    /// Events that the kernel had no room for.
    pub lost: u64,
}

impl Trace {
    /// Sums by class.
    #[must_use]
    pub fn volumes(&self) -> BTreeMap<Class, Volume> {
        let mut volumes = BTreeMap::new();
        for write in &self.writes {
            let volume: &mut Volume = volumes.entry(write.class).or_default();
            volume.requests += 1;
            volume.bytes += write.bytes;
        }
        volumes
    }

    fn of(requests: &[Request], watched: &Watched, lost: u64) -> Self {
        let start = requests.first().map_or(0.0, |request| request.seconds);
        let of_journal = |request: &&Request| request.bytes > 0 && request.task.starts_with(JOURNAL_THREAD);
        // A commit record that waits for a flush is issued by a worker of the kernel's: it continues
        // what the journal's thread wrote.
        let ends: HashSet<u64> =
            requests.iter().filter(of_journal).map(|request| request.offset + request.bytes).collect();
        let classify = |request: &Request| match watched.class_of(request.offset) {
            Some(class) => class,
            None if of_journal(&request) || ends.contains(&request.offset) => Class::Journal,
            None => Class::Other,
        };
        let writes = requests.iter().filter(|request| request.bytes > 0).map(|request| Write {
            seconds: request.seconds - start,
            offset: request.offset,
            bytes: request.bytes,
            class: classify(request),
        });
        let flushes = requests.iter().filter(|request| request.is_flush).count() as u64;
        Self { writes: writes.collect(), flushes, lost }
    }
}

/// Runs a command, and traces what is written meanwhile to the devices of these databases.
///
/// # Errors
/// When not root, without tracepoints, for a database that is on no block device, or when the
/// command cannot be started. Its own failure is its status.
pub fn trace(databases: &[PathBuf], command: &mut Command) -> Result<(Trace, ExitStatus)> {
    if !rustix::process::geteuid().is_root() {
        bail!("tracing needs root: the kernel's tracepoints are readable by nobody else");
    }
    let first = databases.first().context("name a database with --database")?;
    let device = Device::of(directory_of(first))?;
    if databases.iter().any(|database| Device::of(directory_of(database)).is_ok_and(|other| other != device))
    {
        bail!("the databases are on different devices; trace them one by one");
    }
    // The command gets the interrupt; what was set up here is taken down afterwards.
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Ordering::SeqCst) {
        ctrlc::set_handler(|| ()).context("cannot watch for Ctrl-C")?;
    }
    let mut watched = Watched::new(databases, &device);
    watched.look();
    let session = Session::start(&device)?;
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let status = loop {
        watched.look();
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(LOOK);
    };
    watched.look();
    let (text, lost) = session.finish()?;
    let mut requests: Vec<Request> = text.lines().filter_map(parse_line).collect();
    requests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok((Trace::of(&requests, &watched, lost), status))
}

fn directory_of(database: &Path) -> &Path {
    database.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
