//! Which processes have a log open: by the memory that they share, and what the kernel says of them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Result;
use duralite_journal::DatabaseIdentity;
use duralite_journal::directory::{self, Watch};
use serde_json::{Value, json};

/// A process that has a log open.
pub(crate) struct Holder {
    /// Its number, as it sees it itself.
    pid: u64,
    /// What it runs; `None` where that is not to be seen from here, as in another container.
    program: Option<String>,
}

impl Holder {
    pub(crate) fn as_json(&self) -> Value {
        json!({ "pid": self.pid, "program": self.program })
    }
}

/// A holder's object, for people.
pub(crate) fn in_words(holder: &Value) -> String {
    let pid = &holder["pid"];
    match holder["program"].as_str() {
        Some(program) => format!("process {pid}, {program}"),
        None => format!("process {pid}, of another user or another container"),
    }
}

/// Those of a log that live; nobody when its users have gone meanwhile.
///
/// # Errors
/// As [`Watch::open`].
pub(crate) fn of(log: &Path) -> Result<Vec<Holder>> {
    let id = directory::describe(log)?.id;
    // The log has the mode and the owner of its database, which may be somewhere else by now.
    let Some(watch) = Watch::open(log, id, &DatabaseIdentity::of(log)?)? else { return Ok(Vec::new()) };
    let Some(glance) = watch.look()? else { return Ok(Vec::new()) };
    let living = glance.processes.iter().filter(|process| process.is_alive);
    Ok(living.map(|process| Holder { pid: process.pid, program: program(process.pid, log) }).collect())
}

/// The name of a process that has the file open. A process has its number in its own container: here another one may have it.
fn program(pid: u64, file: &Path) -> Option<String> {
    // By its number: one that was made without a name is not called by the one that it has got.
    let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let file = fs::metadata(file).map(number).ok()?;
    let mut open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    if !open.any(|entry| fs::metadata(entry.path()).map(number).is_ok_and(|number| number == file)) {
        return None;
    }
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}
