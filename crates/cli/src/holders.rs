//! The processes that have a log open. Their shared memory lists them, and `/proc` says which programs they run.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Result;
use duralite_wal::DatabaseIdentity;
use duralite_wal::placement::{self, Watch};
use serde_json::{Value, json};

/// A process that has a log open.
pub(crate) struct Holder {
    /// The process id in the process's own pid namespace.
    pid: u64,
    /// The program's name; `None` if this process cannot see it in `/proc`, for example because it runs in another
    /// container.
    program: Option<String>,
}

impl Holder {
    pub(crate) fn as_json(&self) -> Value {
        json!({ "pid": self.pid, "program": self.program })
    }
}

/// Describes a holder for the user.
pub(crate) fn in_words(holder: &Value) -> String {
    let pid = &holder["pid"];
    match holder["program"].as_str() {
        Some(program) => format!("process {pid}, {program}"),
        None => format!("process {pid}, of another user or another container"),
    }
}

/// Returns the living processes that have the log open. The list is empty if all of them have closed the log in the
/// meantime.
///
/// # Errors
/// As [`Watch::open`].
pub(crate) fn of(log: &Path) -> Result<Vec<Holder>> {
    let id = placement::describe(log)?.id;
    // The database may have moved since the log was made. So pass the log file's identity instead of the database's.
    // `open` uses only the mode and the owner, which are the same for both files.
    let Some(watch) = Watch::open(log, id, &DatabaseIdentity::of(log)?)? else { return Ok(Vec::new()) };
    let Some(glance) = watch.look()? else { return Ok(Vec::new()) };
    let living = glance.processes.iter().filter(|process| process.is_alive);
    Ok(living.map(|process| Holder { pid: process.pid, program: program(process.pid, log) }).collect())
}

/// Returns the program of the process `pid`, if that process has the file open. A pid is valid in its own namespace
/// only, so in this namespace the pid may belong to another process, which does not have the file open.
fn program(pid: u64, file: &Path) -> Option<String> {
    // This function compares inodes and not names, because `/proc` does not show the name of a file that was created
    // without one and named later.
    let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let file = fs::metadata(file).map(number).ok()?;
    let mut open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    if !open.any(|entry| fs::metadata(entry.path()).map(number).is_ok_and(|number| number == file)) {
        return None;
    }
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}
