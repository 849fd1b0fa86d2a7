//! Finds the log that a database names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use duralite_format::LogId;
use duralite_format::guard::{DatabaseHeader, JournalKind};
use duralite_wal::engine::media::{MediaSet, SHARED_MEMORY_DIR};
use duralite_wal::log::offline;
use duralite_wal::placement::{self, FoundLog};
use duralite_wal::{DatabaseIdentity, Descriptor, LogError, LogPlacement, engines};

use crate::target::Target;

/// Returns one log placement for each engine, for logs in this directory.
fn directories(dir: &Path) -> impl Iterator<Item = LogPlacement> {
    engines::all().map(move |engine| directory_of(engine, dir))
}

/// Returns the log placement (engine and media) for an engine whose logs are in this directory.
pub fn directory_of(engine: &'static Descriptor, dir: &Path) -> LogPlacement {
    LogPlacement::at(engine, dir, &MediaSet::default()).as_found()
}

/// Returns the directories where a log may be: those that the user named, those in the environment, shared memory,
/// and the database's own directory.
pub fn candidates(target: &Target) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = target.log_dir.iter().chain(&target.nvram_dir).cloned().collect();
    dirs.extend(std::env::var_os("DURALITE_LOG_DIR").map(PathBuf::from));
    dirs.extend(std::env::var_os("DURALITE_NVRAM").filter(|dir| dir != "emulate").map(PathBuf::from));
    dirs.push(SHARED_MEMORY_DIR.into());
    dirs.extend(target.path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf)));
    dirs.dedup();
    dirs
}

/// Finds the log with this id, and its directory.
pub fn find(target: &Target, id: LogId) -> Option<FoundLog> {
    let database = target.path.canonicalize().unwrap_or_else(|_| target.path.clone());
    candidates(target).iter().flat_map(|dir| directories(dir)).find_map(|placement| {
        let path = placement.find(&database, id).ok().flatten()?;
        Some(FoundLog { placement, path, id })
    })
}

/// Looks for a file that has the name of the log with this id, but that this user may not read. Returns its path.
pub fn unreadable(target: &Target, id: LogId) -> Option<PathBuf> {
    let name = target.path.file_name()?.to_string_lossy().into_owned();
    let names = [format!("{name}-duralite-{id}"), format!("{name}-duralite")];
    let paths = candidates(target).into_iter().flat_map(|dir| names.clone().map(|name| dir.join(name)));
    let is_denied = |path: &PathBuf| {
        let opened = std::fs::File::open(path);
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    paths.into_iter().find(is_denied)
}

/// Finds the log that was made for this database, if the database's header does not say which log that is.
///
/// # Errors
/// `Io`; `TwoLogs` if several logs may be the newest.
pub fn find_by_owner(target: &Target) -> Result<Option<FoundLog>, LogError> {
    let identity = DatabaseIdentity::of(&target.path)?;
    let log_dirs: Vec<_> = candidates(target).iter().flat_map(|dir| directories(dir)).collect();
    placement::made_for(&log_dirs, &identity)
}

/// Returns whether the path is a log file.
pub fn is_log(path: &Path) -> bool {
    placement::is_log_name(path) && placement::describe(path).is_ok()
}

/// The place of a database's newest commits.
pub enum Place {
    /// The commits are in this log.
    Log(PathBuf),
    /// The commits are in a log that was not found. The text is the message for the user.
    Missing(String),
    /// The commits are in the database file.
    NoLog,
}

/// A log may appear or disappear just as the command looks for it. So the command repeats the search up to `TRIES`
/// times, with the pause `BETWEEN`.
const TRIES: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(10);

/// Reads a database's header and finds the newest commits. Programs may open or close the database at the same time. So
/// this function accepts a missing log or a damaged header only if it reads the same header twice in a row.
///
/// # Errors
/// `Io`; the header keeps changing.
pub fn place(target: &Target) -> Result<(DatabaseHeader, Place)> {
    let mut last = None;
    for _ in 0..TRIES {
        let header = offline::inspect(&target.path)?;
        let place = match header {
            DatabaseHeader::Guarded { log_id, provisional, .. } => match find(target, log_id) {
                Some(log) => return Ok((header, Place::Log(log.path))),
                None if provisional => Place::NoLog,
                None => Place::Missing(missing(target, log_id)),
            },
            DatabaseHeader::Damaged => Place::NoLog,
            _ => return Ok((header, Place::NoLog)),
        };
        if last.replace(header) == Some(header) {
            return Ok((header, place));
        }
        std::thread::sleep(BETWEEN);
    }
    bail!(
        "programs open and close {} faster than this command can look at it; try again",
        target.path.display()
    )
}

/// Returns the path of a target's log: the target itself if it is a log, else the log that the database names.
pub fn log_file(target: &Target) -> Result<PathBuf> {
    if is_log(&target.path) {
        return Ok(target.path.clone());
    }
    match place(target)? {
        (_, Place::Log(log)) => Ok(log),
        (_, Place::Missing(why)) => bail!(why),
        (header, Place::NoLog) => bail!(without_log(&target.path, header)),
    }
}

/// Returns the message for a database that has no log.
pub fn without_log(database: &Path, header: DatabaseHeader) -> String {
    format!("{} has no log: it is {}", database.display(), describe(header))
}

/// Returns the message for a log that was not found.
pub fn missing(target: &Target, id: LogId) -> String {
    let database = target.path.display();
    if let Ok(Some(deleted)) = placement::find_deleted(id) {
        let (log, process) = (deleted.path.display(), deleted.process);
        return format!(
            "the newest commits of {database} are in log {log}, which was deleted; process {process} has the \
             log open: save the commits by `duralite salvage {database} OUT`, or by closing every connection \
             of the process without killing it"
        );
    }
    let dirs: Vec<String> = candidates(target).iter().map(|dir| dir.display().to_string()).collect();
    format!(
        "the newest commits of {database} are in log {id}, which is in none of {}; name its directory with --log-dir",
        dirs.join(", ")
    )
}

/// Describes a database by its header.
pub fn describe(header: DatabaseHeader) -> &'static str {
    match header {
        DatabaseHeader::Empty => "an empty file",
        DatabaseHeader::NotSqlite => "not a SQLite database",
        DatabaseHeader::Plain { wal: true, .. } => "a plain SQLite database in WAL mode",
        DatabaseHeader::Plain { wal: false, .. } => "a plain SQLite database",
        DatabaseHeader::Guarded { provisional: true, .. } => {
            "guarded by a log that has no commits: a program has the database open, or had it open when that \
             program or the system stopped"
        }
        DatabaseHeader::Guarded { kind: JournalKind::Wal, .. } => {
            "guarded: its newest commits are in a Duralite log"
        }
        DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. } => {
            "guarded: its rollback journal is in a Duralite log"
        }
        DatabaseHeader::Damaged => "guarded, but the guard is damaged",
    }
}
