//! Finding the log that a database names, or that was made for it.

use std::path::{Path, PathBuf};

use duralite_format::LogId;

use super::head::Head;
use super::names::{self, Kind};
use super::open::open_log;
use crate::engine::descriptor::{Descriptor, HEAD_BYTES, LogPlacement};
use crate::shared::log_file;
use crate::{DatabaseIdentity, ErrorKind, LogError};

/// A log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    /// The directory of the log, and its media.
    pub placement: LogPlacement,
    /// The file.
    pub path: PathBuf,
    /// Its identity.
    pub id: LogId,
}

/// Whether a log can serve a database that it does not name by inode, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The log was made for this very file.
    Own,
    /// Database and log are copies of another pair, or that pair moved to another file system; or the database was
    /// replaced in its place. The log may be applied to the database, and no other database can need it.
    Copy,
    /// Only the database was copied: the original database needs the log.
    Foreign,
}

/// Reads the head of a log; `None` when no log has this name, or its head says nothing. An error where that cannot be
/// determined: a log that cannot be opened at present is not missing.
fn read_head(path: &Path) -> Result<Option<Head>, LogError> {
    match open_log(path, false).and_then(|file| Head::read(path, &file)) {
        Ok(head) => Ok(Some(head)),
        Err(error) if error.says_none() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a file with this name exists whose head is illegible: damaged, or of another version. A caller that attaches
/// the log gets the error.
fn is_illegible(path: &Path) -> bool {
    let read = open_log(path, false).and_then(|file| Head::read(path, &file));
    matches!(read, Err(LogError::Format { .. }))
}

/// Whether a file is the log with this id in another version of the engine's format. Every version has the id in the
/// same place. A caller that attaches the log learns its version. A damaged log is not found by its id: under a
/// provisional guard, a power loss may have left a damaged log, and then no commit is missing.
fn is_of_other_version(path: &Path, engine: &Descriptor, id: LogId) -> bool {
    let Ok(file) = open_log(path, false) else { return false };
    let other = matches!(Head::read(path, &file), Err(error) if error.is_other_version());
    let bytes = log_file::first_bytes(path, &file, HEAD_BYTES);
    other && bytes.is_ok_and(|bytes| bytes.starts_with(&engine.magic) && LogId::of_log(&bytes) == Some(id))
}

/// Finds the log with this id in a directory.
pub(super) fn by_id(
    placement: &LogPlacement,
    database: &Path,
    id: LogId,
) -> Result<Option<PathBuf>, LogError> {
    let is_it = |head: &Head| head.log_id == id && head.engine == placement.engine;
    let with_id = names::with_id(&placement.dir, database, id);
    let plain = names::plain(&placement.dir, database).filter(|_| database.parent() == Some(&*placement.dir));
    // The first error; it is returned if no name leads to the log.
    let mut unknown = None;
    for path in [Some(&with_id), plain.as_ref()].into_iter().flatten() {
        match read_head(path) {
            Ok(Some(head)) if is_it(&head) || *path == with_id && head.engine == placement.engine => {
                // A file whose name contains the id is the log, or is not what its name says. In the second case
                // attaching it fails.
                return Ok(Some(path.clone()));
            }
            Ok(_) => {}
            Err(error) => {
                unknown.get_or_insert(error);
            }
        }
    }
    if let Some(path) = [Some(with_id), plain].into_iter().flatten().find(|path| is_illegible(path)) {
        return Ok(Some(path));
    }
    match scan(placement, id, &is_it) {
        Ok(None) => unknown.map_or(Ok(None), Err),
        Err(error) => Err(unknown.unwrap_or(error)),
        found => found,
    }
}

/// Searches the whole directory, for the case that the database was renamed.
fn scan(
    placement: &LogPlacement,
    id: LogId,
    is_it: &dyn Fn(&Head) -> bool,
) -> Result<Option<PathBuf>, LogError> {
    let failed = |error: std::io::Error| LogError::io("read directory", &placement.dir, &error);
    let entries = match std::fs::read_dir(&placement.dir).map_err(failed) {
        Ok(entries) => entries,
        // A user who may not read a directory may still use its files by name.
        Err(error) if error.says_none() || error.kind() == ErrorKind::ReadOnly => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let named = match names::kind_of(&entry.file_name()) {
            Some(Kind::Plain) => true,
            Some(Kind::WithId(other)) => other == id,
            Some(Kind::Segment(_)) | None => false,
        };
        if !named {
            continue;
        }
        let path = entry.path();
        match read_head(&path) {
            Ok(Some(head)) if is_it(&head) => return Ok(Some(path)),
            Ok(None) if is_of_other_version(&path, placement.engine, id) => return Ok(Some(path)),
            // Logs of other databases may be unreadable for this user on purpose.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ReadOnly => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Finds the log that was made for a database whose header cannot name it, beside the database or in one of the
/// directories.
///
/// # Errors
/// `Io` where that cannot be determined.
pub fn made_for(log_dirs: &[LogPlacement], db: &DatabaseIdentity) -> Result<Option<FoundLog>, LogError> {
    for placement in log_dirs {
        let plain = names::plain(&placement.dir, &db.path);
        for path in plain.into_iter().chain(named_after(&placement.dir, &db.path)?) {
            let head = match read_head(&path) {
                Ok(Some(head)) => head,
                Ok(None) => continue,
                Err(error) if error.kind() == ErrorKind::ReadOnly => continue,
                Err(error) => return Err(error),
            };
            if head.is_of(db) && head.engine == placement.engine {
                return Ok(Some(FoundLog { placement: placement.clone(), path, id: head.log_id }));
            }
        }
    }
    Ok(None)
}

/// Files in a directory whose names are those of logs of this database.
fn named_after(dir: &Path, database: &Path) -> Result<Vec<PathBuf>, LogError> {
    let failed = |error: std::io::Error| LogError::io("read directory", dir, &error);
    let entries = match std::fs::read_dir(dir).map_err(failed) {
        Ok(entries) => entries,
        Err(error) if error.says_none() || error.kind() == ErrorKind::ReadOnly => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let paths =
        entries.filter_map(Result::ok).filter(|entry| names::belongs_to(&entry.file_name(), database));
    Ok(paths.map(|entry| entry.path()).collect())
}

/// What a database may do with the log that it names.
///
/// A user who copies a database and its log, live or after a crash, gets what a user of stock SQLite gets who copies a
/// database and its `-wal`. A copy of the database alone must not take the log of its original. The original may be
/// where this process cannot see it: renamed, not mounted, or in another user's directory. It may also be open in this
/// process, so that opening it here and closing it would release SQLite's locks on it. So the original is not examined:
/// the log itself shows whether it is a copy.
///
/// # Errors
/// `Io` where the log cannot be opened, `Format` where it is of another version.
pub fn claim(log: &FoundLog, db: &DatabaseIdentity) -> Result<Claim, LogError> {
    let opened = open_log(&log.path, false).and_then(|file| Ok((Head::read(&log.path, &file)?, file)));
    let (head, file) = match opened {
        Ok(opened) => opened,
        // Attaching the log reports what the file is. Under a provisional guard there need not be a log.
        Err(error) if error.says_none() && !error.is_other_version() => return Ok(Claim::Foreign),
        Err(error) => return Err(error),
    };
    if head.is_of(db) {
        return Ok(Claim::Own);
    }
    // The log must have the name that this database's own log would have; a log found only by its id is another's.
    let with_id = names::with_id(&log.placement.dir, &db.path, log.id);
    if log.path != with_id && names::plain(&log.placement.dir, &db.path).is_none_or(|plain| log.path != plain)
    {
        return Ok(Claim::Foreign);
    }
    // SQLite would apply a `-wal` file in the same place too.
    let is_replaced = log.path.parent() == db.path.parent() && head.was_made_at(db.path_hint());
    Ok(if head.is_copy(&file) || is_replaced { Claim::Copy } else { Claim::Foreign })
}
