//! What a log's file says about itself, and to which database the log belongs (invariants 3 and 13). This module only
//! decides. It changes nothing, and returns each decision as a value, on which the caller acts.
//!
//! There are three questions. May this process use the log that a database names ([`check_owner`])? If log and database
//! do not name each other, may the log be applied to the database ([`claim`])? And what becomes of a log beside a
//! database that names no log ([`fate`])?

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use duralite_format::{FileIdentity, FormatError, LogId};
use duralite_medium::process::OwnFile;

use super::names;
use crate::engine::descriptor::{Descriptor, HEAD_BYTES, LogHead, LogPlacement, OpenFile};
use crate::shared::{identity, log_file};
use crate::{DatabaseIdentity, LogError, engines};

/// Opens an existing log of any engine.
///
/// # Errors
/// `Io`; `Format` if the first bytes are not those of a log.
pub(super) fn open_log(path: &Path, write: bool) -> Result<OwnFile, LogError> {
    log_file::open(path, write, |bytes| engines::by_magic(bytes).is_some())
}

/// Opens an existing log of any engine, and reads its head.
///
/// # Errors
/// As [`open_log`]; `Format` if the head is illegible.
pub(super) fn open_and_read(path: &Path, write: bool) -> Result<(OwnFile, Head), LogError> {
    let file = open_log(path, write)?;
    let head = Head::read(path, &file)?;
    Ok((file, head))
}

/// What the head of a log's file says about the log's database. Every engine's logs have this head.
pub(super) struct Head {
    /// The engine that wrote the log.
    pub(super) engine: &'static Descriptor,
    pub(super) log_id: LogId,
    db_inode: u64,
    db_birth_ns: u64,
    path: Vec<u8>,
    /// The file in which the log was made, if it is known.
    made_in: Option<FileIdentity>,
    /// The number of the device that the log's file is on. It is not in the head: see [`DatabaseIdentity::device`].
    device: u64,
}

impl Head {
    /// Reads and checks the superblock of an open file.
    pub(super) fn read(log: &Path, file: &OwnFile) -> Result<Self, LogError> {
        let bytes = log_file::first_bytes(log, file, HEAD_BYTES)?;
        let unknown = || LogError::Format { log: log.to_path_buf(), source: FormatError::Magic };
        let engine = engines::by_magic(&bytes).ok_or_else(unknown)?;
        let LogHead { log_id, db_inode, db_birth_ns, path, made_in, .. } =
            (engine.inspect)(&OpenFile { path: log, file }, &bytes)?;
        let meta = file.metadata().map_err(|error| LogError::io("examine", log, &error))?;
        Ok(Self { engine, log_id, db_inode, db_birth_ns, path, made_in, device: meta.dev() })
    }

    /// Returns the path that the database had when the log was made. A very long path is truncated.
    pub(super) fn database(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.path))
    }

    /// Returns whether the log's database had this path when the log was made. Both paths may be truncated, because the
    /// log stores a very long path only in part.
    pub(super) fn was_made_at(&self, path: &[u8]) -> bool {
        self.path == path
    }

    /// Returns whether the log was made for this very database file.
    pub(super) fn is_of(&self, db: &DatabaseIdentity) -> bool {
        self.names(db) && !self.is_of_original_of(db)
    }

    /// Returns whether the log names the inode and the birth time of this file. Those are the same in a snapshot or a clone
    /// of the file system.
    fn names(&self, db: &DatabaseIdentity) -> bool {
        (self.db_inode, self.db_birth_ns) == (db.inode, db.birth_ns)
    }

    /// Returns whether this database is a snapshot or a clone, and the log belongs to its original. The log names both,
    /// since their inode and birth time are the same. The original is then still where it was when the log was made,
    /// and on another device than this database. Returns `false` for a log on the same device as this database: that
    /// log was copied with the database, and the original has its own.
    fn is_of_original_of(&self, db: &DatabaseIdentity) -> bool {
        self.device != db.device && self.original().is_some_and(|original| original.device != db.device)
    }

    /// Returns the database that the log was made for, if the path stored in the log still leads to that database. Does
    /// not open the file, because closing it would release all of the locks that this process has on it.
    fn original(&self) -> Option<DatabaseIdentity> {
        DatabaseIdentity::of(&self.database()).ok().filter(|found| self.names(found))
    }

    /// Returns whether the path that the database had when the log was made now leads to nothing. Returns `false` if
    /// this process cannot look there, or if another file has that path now. The original may then be behind a mount,
    /// or in another container.
    fn original_is_gone(&self) -> bool {
        let path = self.database();
        let is_missing = path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        is_missing && path.parent().is_some_and(Path::is_dir)
    }

    /// Returns whether an open file with this head, at the path `log`, is a copy of a log that no database except this
    /// one can need. A log that was only moved to another file system looks like a copy, but its database may still
    /// need it. So this method returns `true` only if the log belongs to this very database or was copied with it, or
    /// if the original database is gone.
    fn is_spare_copy(&self, log: &Path, file: &File, db: &DatabaseIdentity) -> bool {
        self.is_copied(file) && (self.is_of(db) || self.came_along(log, db) || self.original_is_gone())
    }

    /// Returns whether the log is beside the database, and was made for a file that had the same path as the database.
    fn is_replaced(&self, log: &Path, db: &DatabaseIdentity) -> bool {
        log.parent() == db.path.parent() && self.was_made_at(db.path_hint())
    }

    /// Returns the identity of the file in which the log was made, if it is known.
    pub(super) fn made_in(&self) -> Option<FileIdentity> {
        self.made_in
    }

    /// Returns whether an open file with this head is known to be another file than the one in which the log was made.
    fn is_copied(&self, file: &File) -> bool {
        self.made_in.is_some_and(|made_in| identity::of_log(file).is_some_and(|now| now != made_in))
    }

    /// Returns the relation between a database and the open log file with this head, at the path `log`.
    pub(super) fn relation(&self, log: &Path, file: &File, db: &DatabaseIdentity) -> Relation {
        if self.is_of(db) {
            Relation::Own
        } else if !self.is_copied(file) && self.is_replaced(log, db) {
            Relation::Replaced
        } else {
            Relation::Other
        }
    }

    /// Returns whether somebody may have copied the log at this path together with the directory of this database. Such
    /// a log is in that directory, or in a directory below it. In the second case the directory of the original
    /// database, if it still exists, must contain a directory with the same relative path.
    fn came_along(&self, log: &Path, db: &DatabaseIdentity) -> bool {
        let dir = log.parent().and_then(|dir| dir.canonicalize().ok()).unwrap_or_default();
        let Some(Ok(below)) = db.path.parent().map(|beside| dir.strip_prefix(beside)) else { return false };
        let original = self.database();
        let has_it = |beside: &Path| !beside.is_dir() || beside.join(below).is_dir();
        below.as_os_str().is_empty() || original.parent().is_some_and(has_it)
    }

    /// Releases what the log owns outside its file, before the file is deleted.
    pub(super) fn release(&self, path: &Path, file: &OwnFile) -> Result<(), LogError> {
        (self.engine.release)(&OpenFile { path, file })
    }

    /// Returns whether the log holds no commits; `false` if that cannot be determined. No process uses the log.
    pub(super) fn is_empty(&self, path: &Path, file: &OwnFile) -> bool {
        (self.engine.is_empty)(&OpenFile { path, file })
    }
}

/// The relation between a log and a database that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// The log was made for this very database file.
    Own,
    /// This file has replaced the file of the log's database. The log is no copy: it belonged to the old file.
    Replaced,
    /// The log is a copy, or belongs to another database.
    Other,
}

/// Checks that an open log is the one that this database names, and that the user who owns the log's file may write the
/// database.
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
        return Err(foreign(path, &head, db));
    }
    Ok(head)
}

/// Returns the error for a database that may not use this log.
pub(super) fn foreign(log: &Path, head: &Head, db: &DatabaseIdentity) -> LogError {
    LogError::Foreign { log: log.to_path_buf(), database: db.path.clone(), owner: head.database() }
}

/// A log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLog {
    /// The directory of the log, and the media.
    pub placement: LogPlacement,
    /// The path of the log's file.
    pub path: PathBuf,
    /// The log's id.
    pub id: LogId,
}

/// Whether a log may be applied to the database that names it, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The log was made for this very database file.
    Own,
    /// Somebody has copied database and log together, or moved them together to another file system, or another
    /// database file has replaced the log's own. The log may be applied to the database, and no other database can need
    /// it.
    Copy,
    /// Only the database was copied, so the original database needs the log.
    Foreign,
}

/// Decides what a database may do with the log that it names.
///
/// A user may copy a database together with its log, while they are in use or after a crash. Such a copy works as well
/// as a copy of a database and its `-wal` does with stock SQLite. But a copy of just the database must not take the log
/// of its original. The original may be where this process cannot see it: renamed, not mounted, or in another user's
/// directory. The original may also be open in this process, and opening and closing it here would release SQLite's
/// locks on it. So this function does not open the original. Instead the log's file shows whether it was copied or
/// moved, and its directory shows whether the database came with it.
///
/// # Errors
/// `Io` if the log cannot be opened, `Format` if it is of another version.
pub fn claim(log: &FoundLog, db: &DatabaseIdentity) -> Result<Claim, LogError> {
    match open_and_read(&log.path, false) {
        Ok((file, head)) => Ok(Signs::of(log, &file, &head, db).claim()),
        // Attaching the log will report what is wrong with this file. Under a provisional guard there may be no log at
        // all.
        Err(error) if error.says_none() && !error.is_other_version() => Ok(Claim::Foreign),
        Err(error) => Err(error),
    }
}

/// The signs by which [`claim`] decides whether a log belongs to the database that names it.
struct Signs {
    /// Whether the log was made for exactly this database file.
    is_own: bool,
    /// Whether the log has the name that this database's own log would have. A log that was found only by its id belongs to
    /// another database.
    is_named_after: bool,
    /// Whether the log is a copy that no other database can need; see `Head::is_spare_copy`.
    is_copy: bool,
    /// Whether the log is beside the database, and was made for an earlier file with the same path. The database may
    /// use such a log, just as SQLite would apply a `-wal` file that it finds there.
    is_replaced: bool,
}

impl Signs {
    fn of(log: &FoundLog, file: &File, head: &Head, db: &DatabaseIdentity) -> Self {
        let dir = &log.placement.dir;
        let plain = names::plain(dir, &db.path);
        Self {
            is_own: head.is_of(db),
            is_named_after: log.path == names::with_id(dir, &db.path, log.id)
                || plain.is_some_and(|plain| log.path == plain),
            is_copy: head.is_spare_copy(&log.path, file, db),
            is_replaced: head.is_replaced(&log.path, db),
        }
    }

    /// Decides by the first fitting row of the table under "Which log belongs to which database" in the README.
    fn claim(&self) -> Claim {
        match self {
            Self { is_own: true, .. } => Claim::Own,
            Self { is_named_after: false, .. } => Claim::Foreign,
            Self { is_copy: true, .. } => Claim::Copy,
            Self { is_replaced: true, .. } => Claim::Copy,
            // Only the database was copied.
            Self { is_copy: false, is_replaced: false, .. } => Claim::Foreign,
        }
    }
}

/// What becomes of a log in the log directory of a database that names no log.
pub(super) enum Fate {
    /// The log stays as it is, because another database may need it.
    Stays,
    /// The log is deleted if no process uses it and it holds no commits. If the log is a copy, what it refers to
    /// outside its file stays, because it belongs to the original log.
    GoesIfEmpty { head: Head, is_copy: bool },
    /// The log's head is illegible, as the error says. The log is deleted if it is what a power loss has left of a log
    /// without commits.
    GoesIfTorn(LogError),
}

/// Decides by the first fitting row of the table under "A database that names no log" in the README. The log may be a
/// copy. For example, somebody copied a directory while a process was closing the database in it, and the copied
/// database no longer names the copied log.
pub(super) fn fate(path: &Path, file: &OwnFile, db: &DatabaseIdentity) -> Fate {
    let head = Head::read(path, file);
    let is_trusted = file.metadata().is_ok_and(|meta| db.trusts(&meta));
    let is_named_after = path.file_name().is_some_and(|name| names::belongs_to(name, &db.path));
    match head {
        _ if !is_trusted => Fate::Stays,
        Ok(head) if is_named_after && head.is_spare_copy(path, file, db) => {
            Fate::GoesIfEmpty { head, is_copy: true }
        }
        Ok(head) if head.is_of(db) => Fate::GoesIfEmpty { head, is_copy: false },
        Err(error) if is_named_after => Fate::GoesIfTorn(error),
        Ok(_) | Err(_) => Fate::Stays,
    }
}

/// Returns whether a file has the name of a log of this database, and an owner who may have made such a log.
pub(super) fn is_named_after(name: &OsStr, meta: &Metadata, db: &DatabaseIdentity) -> bool {
    names::belongs_to(name, &db.path) && db.trusts(meta)
}

/// Returns whether a log with an illegible head holds no commits. Returns `false` for a log of a version that this build does
/// not know.
pub(super) fn is_torn(path: &Path, file: &OwnFile, error: &LogError) -> bool {
    let LogError::Format { source: FormatError::Short { .. } | FormatError::Damaged { .. }, .. } = error
    else {
        return false;
    };
    let engine =
        log_file::first_bytes(path, file, HEAD_BYTES).ok().and_then(|bytes| engines::by_magic(&bytes));
    engine.is_some_and(|engine| (engine.is_empty)(&OpenFile { path, file }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inv03_a_snapshot_has_the_log_that_came_along_and_not_that_of_its_original() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        std::fs::write(&path, "").unwrap();
        let original = DatabaseIdentity::of(&path).unwrap();
        let (snapshots, third) = (original.device + 1, original.device + 2);
        let snapshot =
            DatabaseIdentity { path: "/snapshot/app.db".into(), device: snapshots, ..original.clone() };
        let log_on = |device| Head {
            engine: engines::ENGINES[0],
            log_id: LogId([7; 16]),
            db_inode: original.inode,
            db_birth_ns: original.birth_ns,
            path: original.path_hint().to_vec(),
            made_in: None,
            device,
        };
        for device in [original.device, third] {
            assert!(log_on(device).is_of(&original));
            assert!(!log_on(device).is_of(&snapshot), "the original needs this log");
        }
        assert!(log_on(snapshots).is_of(&snapshot), "the original has a log of its own");
        // The original is no longer at its path, so nothing shows that this file is not the original.
        std::fs::rename(&path, dir.path().join("moved.db")).unwrap();
        assert!(log_on(third).is_of(&snapshot));
    }
}
