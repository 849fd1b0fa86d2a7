//! The child process in which one store runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use duralite_store::{Options, Store};
use duralite_wal::metrics::Histogram;
use rustix::fs::Advice;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::SHARE_BYTES;
use super::case::{Case, Kind};
use super::group::Group;
use crate::kv::{Db, Memory};
use crate::measure::limits::CHILD;
use crate::nv::NvDb;
use crate::workload::{Workload, run};

pub(super) const STORE: &str = "duralite";

/// The numbers that a child has measured, each with its name.
pub(super) type Found = BTreeMap<String, f64>;

/// The task of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(super) store: String,
    pub(super) dir: PathBuf,
    pub(super) case: Case,
    pub(super) is_load: bool,
    pub(super) cache_bytes: u64,
    pub(super) seconds: f64,
}

impl Task {
    /// Runs the task in a child process, in a control group if possible.
    pub(super) fn run(&self, has_groups: bool) -> Result<Found> {
        forget(&self.dir)?;
        let group = has_groups.then(|| Group::new(self.cache_bytes + SHARE_BYTES)).transpose()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.env(CHILD, serde_json::to_string(self)?).stdin(Stdio::piped()).stdout(Stdio::piped());
        // By default, malloc makes an arena for nearly every thread. The group's memory limit is too low for that, so
        // the child may make only two arenas.
        command.env("MALLOC_ARENA_MAX", "2");
        let mut child = command.spawn()?;
        let mut begin = || -> Result<()> {
            if let Some(group) = &group {
                group.take(child.id())?;
            }
            child.stdin.take().context("no input")?.write_all(b"begin\n")?;
            Ok(())
        };
        let begun = begin();
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| said = line);
        }
        let status = child.wait()?;
        begun?;
        if !status.success() {
            bail!("its process ended with {status}");
        }
        let mut found: Found = serde_json::from_str(&said).context("a child's answer")?;
        if let Some(most) = group.as_ref().and_then(Group::most_bytes) {
            found.insert("group_bytes".to_owned(), most as f64);
        }
        Ok(found)
    }
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push(path);
        }
    }
    Ok(all)
}

/// Drops a directory's files from the system's cache. Files that were cached before the child started would not be
/// counted as memory of the child.
fn forget(dir: &Path) -> Result<()> {
    for path in files(dir)? {
        let file = File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Returns how many bytes a directory takes on the disk.
fn space_bytes(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    files(dir)?.iter().map(|path| Ok(fs::metadata(path)?.blocks() * 512)).sum()
}

/// Returns how many bytes devices have read and written for this process.
fn device_bytes() -> Result<(f64, f64)> {
    let text = fs::read_to_string("/proc/self/io")?;
    let field = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no such count")?;
        Ok(line.trim().parse()?)
    };
    Ok((field("read_bytes:")?, field("write_bytes:")? - field("cancelled_write_bytes:")?))
}

fn open(task: &Task, workload: &dyn Workload) -> Result<Box<dyn Db>> {
    if task.store == STORE {
        let options = Options::default().cache_bytes(task.cache_bytes);
        let db = NvDb::new(Store::open(task.dir.join("store"), options)?, workload.schema())?;
        let by_transactions = task.case.kind == Kind::LoadByTransactions;
        return Ok(Box::new(if by_transactions { db.by_transactions() } else { db }));
    }
    let memory = Memory {
        cache_bytes: task.cache_bytes,
        connections: task.case.threads,
        buffer_bytes: Some(SHARE_BYTES / 4),
    };
    crate::peers::open(&task.store, &task.dir, &task.dir, workload.schema(), memory)
}

/// Returns a percentile of the times, in microseconds.
fn microseconds(times: &Histogram, part: f64) -> f64 {
    times.percentile(part).unwrap_or(0) as f64 / 1000.0
}

/// Does the task of a child process: waits until the process is in its control group, does the work, and reports what
/// it measured.
pub(crate) fn child(task: &Task) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if line.is_empty() {
        bail!("nobody said that it may begin");
    }
    let workload = task.case.workload(task.cache_bytes)?;
    let db = open(task, &*workload)?;
    let (before, begun) = (device_bytes()?, Instant::now());
    let mut found = Found::new();
    if task.is_load {
        workload.load(&*db)?;
    } else {
        let threads = task.case.threads;
        let done = run(&*db, &*workload, threads, Duration::from_secs_f64(task.seconds))?;
        found.insert("commits".to_owned(), done.commits as f64);
        found.insert("per_second".to_owned(), done.commits as f64 / begun.elapsed().as_secs_f64());
        found.insert("p99_us".to_owned(), microseconds(&done.latencies, 0.99));
        found.insert("p999_us".to_owned(), microseconds(&done.latencies, 0.999));
        found.insert("scans".to_owned(), done.rolled_back as f64);
    }
    let read = device_bytes()?.0 - before.0;
    if !task.is_load && matches!(task.case.kind, Kind::TpcB | Kind::TpcC) {
        workload.check(&mut *db.session()?)?;
    }
    // Closes the store within the measured time, so that the time includes the work that the store has deferred.
    drop(db);
    found.insert("seconds".to_owned(), begun.elapsed().as_secs_f64());
    found.insert("read_bytes".to_owned(), read);
    found.insert("written_bytes".to_owned(), device_bytes()?.1 - before.1);
    found.insert("space_bytes".to_owned(), space_bytes(&task.dir)? as f64);
    found.insert("resident_bytes".to_owned(), crate::measure::limits::resident("VmHWM")?);
    println!("\n{}", serde_json::to_string(&found)?);
    Ok(())
}
