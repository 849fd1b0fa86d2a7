//! Finding the log that a database names, or that was made for it.

use std::path::{Path, PathBuf};

use duralite_logfmt::LogId;

use super::DatabaseIdentity;
use super::head::Head;
use super::names::{self, Kind};
use super::open::open_log;
use crate::JournalError;
use crate::descriptor::LogDirectory;

/// A log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    /// Where it is, and on which media.
    pub log_dir: LogDirectory,
    /// The file.
    pub path: PathBuf,
    /// Its identity.
    pub id: LogId,
}

/// Whether and why a log can serve a database whose inode it does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It was made for this very file.
    Own,
    /// Database and log are copies of another pair, or that pair moved to another file system, or the database
    /// was replaced in its place: the log may be put home into it, and nobody else can want it.
    Copy,
    /// Only the database was copied: its original needs the log.
    Foreign,
}

fn read_head(path: &Path) -> Option<Head> {
    let file = open_log(path, false).ok()?;
    Head::read(path, &file).ok()
}

/// Whether a file of this name is there, and its head says nothing: damaged, or of another version. Whoever
/// attaches it is told.
fn is_illegible(path: &Path) -> bool {
    let read = open_log(path, false).and_then(|file| Head::read(path, &file));
    matches!(read, Err(JournalError::Format { .. }))
}

/// The log of this id in a directory.
pub(super) fn by_id(log_dir: &LogDirectory, database: &Path, id: LogId) -> Option<PathBuf> {
    let is_it =
        |path: &Path| read_head(path).is_some_and(|head| head.log_id == id && head.engine == log_dir.engine);
    let with_id = names::with_id(&log_dir.dir, database, id);
    let plain = names::plain(&log_dir.dir, database).filter(|_| database.parent() == Some(&*log_dir.dir));
    if let Some(path) = [Some(&with_id), plain.as_ref()].into_iter().flatten().find(|path| is_it(path)) {
        return Some(path.clone());
    }
    if read_head(&with_id).is_some_and(|head| head.engine == log_dir.engine) {
        // It is not what it is called.
        return Some(with_id);
    }
    if let Some(path) = [Some(with_id), plain].into_iter().flatten().find(|path| is_illegible(path)) {
        return Some(path);
    }
    // The database has another name now, or another one still.
    let entries = std::fs::read_dir(&log_dir.dir).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let named = match names::kind_of(&entry.file_name())? {
            Kind::Plain => true,
            Kind::WithId(other) => other == id,
            Kind::Segment(_) => false,
        };
        let path = entry.path();
        (named && is_it(&path)).then_some(path)
    })
}

/// The log that was made for a database whose header cannot say so, beside it or in one of the directories.
#[must_use]
pub fn made_for(log_dirs: &[LogDirectory], db: &DatabaseIdentity) -> Option<FoundLog> {
    log_dirs.iter().find_map(|log_dir| {
        let plain = names::plain(&log_dir.dir, &db.path);
        let others = named_after(&log_dir.dir, &db.path);
        plain.into_iter().chain(others).find_map(|path| {
            let head = read_head(&path)?;
            let usable = head.is_of(db) && head.engine == log_dir.engine;
            usable.then(|| FoundLog { log_dir: log_dir.clone(), path: path.clone(), id: head.log_id })
        })
    })
}

/// Files in a directory that are called like logs of this database.
pub(super) fn named_after<'a>(dir: &Path, database: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries.filter(|entry| names::belongs_to(&entry.file_name(), database)).map(|entry| entry.path())
}

/// What a database may do with the log that it names.
///
/// Whoever copies a database and its log, live or after a crash, gets what stock SQLite's users get who
/// copy a database and its `-wal`. What must not happen is that a copy of the database alone takes the log of
/// its original. The original may be where nobody here can see it: renamed, not mounted, or in a directory of
/// another user's. And it may be open in this process, so that opening it here and closing it would give back
/// SQLite's locks of it. So it is not asked: the log itself says whether it is a copy.
#[must_use]
pub fn claim(log: &FoundLog, db: &DatabaseIdentity) -> Claim {
    let Ok(file) = open_log(&log.path, false) else { return Claim::Foreign };
    let Ok(head) = Head::read(&log.path, &file) else { return Claim::Foreign };
    if head.is_of(db) {
        return Claim::Own;
    }
    // Found under the name that this database's own log would have, and not by its id only.
    let with_id = names::with_id(&log.log_dir.dir, &db.path, log.id);
    if log.path != with_id && names::plain(&log.log_dir.dir, &db.path).is_none_or(|plain| log.path != plain) {
        return Claim::Foreign;
    }
    // SQLite would take a `-wal` that lies there too.
    let is_replaced = log.path.parent() == db.path.parent() && head.was_made_at(db.path_hint());
    if head.is_copy(&file) || is_replaced { Claim::Copy } else { Claim::Foreign }
}
