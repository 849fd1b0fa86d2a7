//! Opening the segment, the memory that the users of a log share.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use duralite_medium::process::OwnFile;
use rustix::fs::OFlags;

use crate::hooks::{self, FileStep};
use crate::shared::log_file::{self, Lock, Pause, adjust, is_in_place, open_new};
use crate::{DatabaseIdentity, LogError};

/// The error for a process that attaches a log while another process does.
pub(super) const ATTACHING: &str = "another process is opening its log; try again";

/// Creates the file of the segment of a new log, without a name where the file system supports that.
pub(super) fn create_segment(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("make the shared memory of a log in", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let mode = segment_mode(db);
    let file = OwnFile::open(|| open_new(dir, path, mode)).map_err(failed)?;
    adjust(&file, mode, db).map_err(failed)?;
    Ok(file)
}

/// The mode of the segment's file: a user has the same access to it as to the database (invariant 13).
fn segment_mode(db: &DatabaseIdentity) -> u32 {
    db.mode & 0o666
}

/// The options for opening a segment's file: never through a symbolic link.
fn segment_options(write: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens the file of the segment, and creates it if it does not exist. A file that a user has made who may not write
/// the database is refused.
pub(super) fn open_segment(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("open the shared memory of the log", path, &error);
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
                return Err(LogError::Owner(path.to_path_buf()));
            }
            Ok(file)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the segment, which is locked, once more; `None` when it has been deleted, together with the log.
pub(super) fn open_segment_again(path: &Path, locked: &File) -> Result<Option<OwnFile>, LogError> {
    let failed = |error: io::Error| LogError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    match OwnFile::open(|| segment_options(true).open(path)) {
        Ok(file) => Ok(is_in_place(path, locked)?.then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the segment for a user who may only read it.
pub(super) fn open_segment_read_only(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = "it does not exist, and this user may only read the database: a user who may write has \
                       to open the database once";
            LogError::io("open the shared memory of the log", path, &io::Error::new(error.kind(), why))
        }
        _ => LogError::io("open the shared memory of the log", path, &error),
    };
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let file = OwnFile::open(|| segment_options(false).open(path)).map_err(failed)?;
    if !db.trusts(&file.metadata().map_err(failed)?) {
        return Err(LogError::Owner(path.to_path_buf()));
    }
    Ok(file)
}

/// Opens and locks the file of the segment: only one process at a time attaches a log. That process may be recovering a
/// long log, or be stopped, so this waits only as long as `pause` permits.
pub(super) fn lock_segment(
    path: &Path,
    db: &DatabaseIdentity,
    pause: Pause<'_>,
) -> Result<OwnFile, LogError> {
    loop {
        let file = open_segment(path, db)?;
        let locked = log_file::lock(&file, Lock::Exclusive, pause);
        if !locked.map_err(|error| LogError::io("lock", path, &error))? {
            return Err(LogError::Busy { path: db.path.clone(), what: ATTACHING });
        }
        let links = file.metadata().map_err(|error| LogError::io("examine", path, &error))?.nlink();
        // Another process may have deleted the file before it was locked.
        if links > 0 {
            return Ok(file);
        }
    }
}
