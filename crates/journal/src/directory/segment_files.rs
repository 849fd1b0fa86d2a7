//! Opening the memory that the users of a log share.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use duralite_medium::process::OwnFile;
use rustix::fs::OFlags;

use super::waiting::{self, Lock, Pause};
use crate::hooks::{self, FileStep};
use crate::log_file::making::{adjust, is_in_place, open_new};
use crate::{DatabaseIdentity, JournalError};

/// What whoever attaches a log is told while another one does.
pub(super) const ATTACHING: &str = "another process opens its log just now";

/// The file of the shared segment of a new log, without a name where the file system can do that.
pub(super) fn create_segment(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, JournalError> {
    let failed = |error: io::Error| JournalError::io("make the shared memory of a log in", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let mode = segment_mode(db);
    let file = OwnFile::open(|| open_new(dir, path, mode)).map_err(failed)?;
    adjust(&file, mode, db).map_err(failed)?;
    Ok(file)
}

/// Who may use the shared memory: whoever may use the database, and as far as they may (invariant 13).
fn segment_mode(db: &DatabaseIdentity) -> u32 {
    db.mode & 0o666
}

/// How the file of a shared segment is opened: never through a symbolic link.
fn segment_options(write: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens the file of the shared segment, made if it is not there; nobody but the database's owner
/// and group may use it.
pub(super) fn open_segment(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, JournalError> {
    let failed = |error: io::Error| JournalError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let mode = segment_mode(db);
    let options = segment_options(true);
    match OwnFile::open(|| options.clone().mode(mode).create_new(true).open(path)) {
        Ok(file) => {
            adjust(&file, mode, db).map_err(failed)?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = OwnFile::open(|| options.open(path)).map_err(failed)?;
            if !db.trusts(&file.metadata().map_err(failed)?) {
                return Err(JournalError::Owner(path.to_path_buf()));
            }
            Ok(file)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the shared segment once more, which is locked; `None` when it has been deleted, together with the log.
pub(super) fn open_segment_again(path: &Path, locked: &File) -> Result<Option<OwnFile>, JournalError> {
    let failed = |error: io::Error| JournalError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    match OwnFile::open(|| segment_options(true).open(path)) {
        Ok(file) => Ok(is_in_place(path, locked)?.then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the shared segment as a user who may only read it.
pub(super) fn open_segment_read_only(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, JournalError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = "it is not there, and this user may only read the database: somebody who may write has to \
                       open it once";
            JournalError::io("open the shared memory of the log", path, &io::Error::new(error.kind(), why))
        }
        _ => JournalError::io("open the shared memory of the log", path, &error),
    };
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let file = OwnFile::open(|| segment_options(false).open(path)).map_err(failed)?;
    if !db.trusts(&file.metadata().map_err(failed)?) {
        return Err(JournalError::Owner(path.to_path_buf()));
    }
    Ok(file)
}

/// The file of the shared segment, locked: one process at a time attaches a log. That one may be recovering a
/// long log, or be stopped.
pub(super) fn lock_segment(
    path: &Path,
    db: &DatabaseIdentity,
    pause: Pause<'_>,
) -> Result<OwnFile, JournalError> {
    loop {
        let file = open_segment(path, db)?;
        let locked = waiting::lock(&file, Lock::Exclusive, pause);
        if !locked.map_err(|error| JournalError::io("lock", path, &error))? {
            return Err(JournalError::Busy { path: db.path.clone(), what: ATTACHING });
        }
        let links = file.metadata().map_err(|error| JournalError::io("examine", path, &error))?.nlink();
        // Somebody may have deleted it before it was locked.
        if links > 0 {
            return Ok(file);
        }
    }
}
