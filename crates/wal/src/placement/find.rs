//! Finding the log that a database names, or that was made for it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use duralite_format::{FileIdentity, FormatError, LogId};
use duralite_medium::process::OwnFile;

use crate::engine::descriptor::{Descriptor, HEAD_BYTES, LogHead, LogPlacement, OpenFile};
use crate::placement::names;
use crate::placement::names::Kind;
use crate::shared::{identity, log_file};
use crate::{DatabaseIdentity, ErrorKind, LogError, engines};

// The head of a log file, which every engine's logs have.

/// What a log's superblock says about its database.
pub(super) struct Head {
    /// The engine that wrote it.
    pub(super) engine: &'static Descriptor,
    pub(super) log_id: LogId,
    pub(super) db_inode: u64,
    pub(super) db_birth_ns: u64,
    path: Vec<u8>,
    /// The file in which the log was made, where that is known.
    made_in: Option<FileIdentity>,
}

impl Head {
    /// Reads and checks the superblock of an open file.
    pub(super) fn read(path: &Path, file: &OwnFile) -> Result<Self, LogError> {
        let bytes = log_file::first_bytes(path, file, HEAD_BYTES)?;
        let unknown = || LogError::Format { log: path.to_path_buf(), source: FormatError::Magic };
        let engine = engines::by_magic(&bytes).ok_or_else(unknown)?;
        let LogHead { log_id, db_inode, db_birth_ns, path, made_in, .. } =
            (engine.inspect)(&OpenFile { path, file }, &bytes)?;
        Ok(Self { engine, log_id, db_inode, db_birth_ns, path, made_in })
    }

    /// The path of the database when the log was made, truncated if it is very long.
    pub(super) fn database(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.path))
    }

    /// Whether this was the path of the log's database when the log was made, or that path truncated if it is very
    /// long.
    pub(super) fn was_made_at(&self, path: &[u8]) -> bool {
        self.path == path
    }

    /// Whether the log was made for this very file.
    pub(super) fn is_of(&self, db: &DatabaseIdentity) -> bool {
        (self.db_inode, self.db_birth_ns) == (db.inode, db.birth_ns)
    }

    /// Whether an open file with this head is a copy, and not the file in which the log was made.
    pub(super) fn is_copy(&self, file: &File) -> bool {
        self.made_in.is_some_and(|made_in| identity::of_log(file).is_some_and(|now| now != made_in))
    }

    /// Releases what the log owns outside of its file, which is about to be deleted.
    pub(super) fn release(&self, path: &Path, file: &OwnFile) -> Result<(), LogError> {
        (self.engine.release)(&OpenFile { path, file })
    }

    /// Whether the log, which no process uses, holds no commits; `false` where that cannot be determined.
    pub(super) fn is_empty(&self, path: &Path, file: &OwnFile) -> bool {
        (self.engine.is_empty)(&OpenFile { path, file })
    }
}

/// Checks that an open log is the one that this database names, and that its owner may write the database.
pub(super) fn check_owner(
    path: &Path,
    file: &OwnFile,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
) -> Result<Head, LogError> {
    let head = Head::read(path, file)?;
    let meta = file.metadata().map_err(|error| LogError::io("examine", path, &error))?;
    if !db.trusts(&meta) {
        return Err(LogError::Owner(path.to_path_buf()));
    }
    if head.log_id != id || !(adopt || head.is_of(db)) {
        let (log, database) = (path.to_path_buf(), db.path.clone());
        return Err(LogError::Foreign { log, database, owner: head.database() });
    }
    Ok(head)
}

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

// Opening a file that has the name of a log.

/// Opens an existing log of any engine.
///
/// # Errors
/// `Io`; `Format` when the first bytes are not those of a log.
pub(super) fn open_log(path: &Path, write: bool) -> Result<OwnFile, LogError> {
    log_file::open(path, write, |bytes| engines::by_magic(bytes).is_some())
}
