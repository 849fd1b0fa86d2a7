//! Finding the log that a database names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use duralite_journal::directory::{self, FoundLog};
use duralite_journal::media::{MediaSet, SHARED_MEMORY_DIR};
use duralite_journal::{DatabaseIdentity, Descriptor, LogDirectory, engines, offline};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{DatabaseHeader, JournalKind};

use crate::target::Target;

/// A directory of files, as what each engine would have its logs in it.
fn directories(dir: &Path) -> impl Iterator<Item = LogDirectory> {
    engines::all().map(move |engine| directory_of(engine, dir))
}

/// The directory of a log of this engine.
pub(crate) fn directory_of(engine: &'static Descriptor, dir: &Path) -> LogDirectory {
    LogDirectory::at(engine, dir, &MediaSet::default()).as_found()
}

/// The places where a log may be: the one given, the one in the environment, shared memory,
/// and beside the database.
pub(crate) fn candidates(target: &Target) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = target.log_dir.iter().chain(&target.nvram_dir).cloned().collect();
    dirs.extend(std::env::var_os("DURALITE_LOG_DIR").map(PathBuf::from));
    dirs.extend(std::env::var_os("DURALITE_NVRAM").filter(|dir| dir != "emulate").map(PathBuf::from));
    dirs.push(SHARED_MEMORY_DIR.into());
    dirs.extend(target.path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf)));
    dirs.dedup();
    dirs
}

/// The log of this id, with its directory.
pub(crate) fn find(target: &Target, id: LogId) -> Option<FoundLog> {
    let database = target.path.canonicalize().unwrap_or_else(|_| target.path.clone());
    candidates(target).iter().flat_map(|dir| directories(dir)).find_map(|log_dir| {
        let path = log_dir.find(&database, id).ok().flatten()?;
        Some(FoundLog { log_dir, path, id })
    })
}

/// What is called like the log of this id, where this user may not read it.
pub(crate) fn unreadable(target: &Target, id: LogId) -> Option<PathBuf> {
    let name = target.path.file_name()?.to_string_lossy().into_owned();
    let names = [format!("{name}-duralite-{id}"), format!("{name}-duralite")];
    let paths = candidates(target).into_iter().flat_map(|dir| names.clone().map(|name| dir.join(name)));
    let is_denied = |path: &PathBuf| {
        let opened = std::fs::File::open(path);
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    paths.into_iter().find(is_denied)
}

/// The log that was made for a database whose header does not say so.
pub(crate) fn find_by_owner(target: &Target) -> Option<FoundLog> {
    let identity = DatabaseIdentity::of(&target.path).ok()?;
    let log_dirs: Vec<_> = candidates(target).iter().flat_map(|dir| directories(dir)).collect();
    directory::made_for(&log_dirs, &identity).ok().flatten()
}

/// Whether the path itself is a log file.
pub(crate) fn is_log(path: &Path) -> bool {
    directory::is_log_name(path) && directory::describe(path).is_ok()
}

/// Where the newest commits of a database are.
pub(crate) enum Place {
    /// In this log.
    Log(PathBuf),
    /// In a log that is not found; what to say.
    Missing(String),
    /// In the database file.
    NoLog,
}

/// For so long a log is looked for again that goes or comes at that moment.
const TRIES: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(10);

/// What a database's header says, and where its newest commits are. Programs may open and close the database meanwhile, so what
/// would be bad news is looked at again.
///
/// # Errors
/// `Io`.
pub(crate) fn place(target: &Target) -> Result<(DatabaseHeader, Place)> {
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
    bail!("{} is opened and closed faster than it can be looked at", target.path.display())
}

/// The log file of a target: itself, or the one that the database names.
pub(crate) fn log_file(target: &Target) -> Result<PathBuf> {
    if is_log(&target.path) {
        return Ok(target.path.clone());
    }
    match place(target)? {
        (_, Place::Log(log)) => Ok(log),
        (_, Place::Missing(why)) => bail!(why),
        (header, Place::NoLog) => bail!(without_log(&target.path, header)),
    }
}

/// What to say of a database that has no log.
pub(crate) fn without_log(database: &Path, header: DatabaseHeader) -> String {
    format!("{} has no log: it is {}", database.display(), describe(header))
}

/// What to say when a log is nowhere to be found.
pub(crate) fn missing(target: &Target, id: LogId) -> String {
    let database = target.path.display();
    if let Ok(Some(deleted)) = directory::find_deleted(id) {
        let (log, process) = (deleted.path.display(), deleted.process);
        return format!(
            "the newest commits of {database} are in log {log}, which was deleted; process {process} has it open: \
             `duralite salvage {database} OUT` saves it, and so does closing every connection of the process, without killing it"
        );
    }
    let dirs: Vec<String> = candidates(target).iter().map(|dir| dir.display().to_string()).collect();
    format!(
        "the newest commits of {database} are in log {id}, which is in none of {}; name its directory with --log-dir",
        dirs.join(", ")
    )
}

/// A database header in words.
pub(crate) fn describe(header: DatabaseHeader) -> &'static str {
    match header {
        DatabaseHeader::Empty => "an empty file",
        DatabaseHeader::NotSqlite => "not a SQLite database",
        DatabaseHeader::Plain { wal: true, .. } => "a plain SQLite database in WAL mode",
        DatabaseHeader::Plain { wal: false, .. } => "a plain SQLite database",
        DatabaseHeader::Guarded { provisional: true, .. } => {
            "guarded by a log that has no commits: it is open, or was when the system or its program stopped"
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
