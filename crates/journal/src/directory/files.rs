//! Making and opening the files of a log.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use duralite_medium::MediumError;
use duralite_medium::block::sync_directory;
use duralite_medium::process::OwnFile;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;

use super::DatabaseIdentity;
use super::waiting::{self, Lock, Pause};
use crate::JournalError;
use crate::hooks::{self, FileStep};

/// What whoever attaches a log is told while another one does.
pub(super) const ATTACHING: &str = "another process opens its log just now";

/// Where this process's open files have names.
const OWN_FILES: &str = "/proc/self/fd";

/// A new log file with the owner and mode of the database (invariant 13).
pub(crate) fn make_file(dir: &Path, path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, JournalError> {
    let file = hooks::step(FileStep::Create, path)
        .and_then(|()| OwnFile::open(|| open_new(dir, path, db.mode & 0o666)))
        .map_err(|error| JournalError::io("make a log in", dir, &error))?;
    adjust(&file, db.mode & 0o666, db).map_err(|error| {
        drop(std::fs::remove_file(path));
        JournalError::io("set the owner of", path, &error)
    })?;
    Ok(file)
}

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

/// Gives a file mode and owner of the database: the mode given to open is cut by the umask, and
/// the owner is ours. Someone who may write the database but does not own it cannot give the file away,
/// but to the group that both belong to.
fn adjust(file: &File, mode: u32, db: &DatabaseIdentity) -> io::Result<()> {
    let meta = file.metadata()?;
    if (meta.uid(), meta.gid()) != (db.uid, db.gid) {
        unless_denied(fchown(file, Some(db.uid), Some(db.gid)).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => fchown(file, None, Some(db.gid)),
            _ => Err(error),
        }))?;
    }
    unless_denied(file.set_permissions(PermissionsExt::from_mode(mode)))
}

fn unless_denied(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// A new file, without a name where the file system can do that: a process that dies while it
/// makes a log then leaves nothing behind.
fn open_new(dir: &Path, path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode);
    let flag = |flag: OFlags| flag.bits().cast_signed();
    if Path::new(OWN_FILES).is_dir()
        && let Ok(file) = options.clone().custom_flags(flag(OFlags::TMPFILE)).open(dir)
    {
        return Ok(file);
    }
    options.create_new(true).custom_flags(flag(OFlags::NOFOLLOW)).open(path)
}

/// Gives a complete log its name, if it has none yet, and makes both durable.
pub(crate) fn publish(path: &Path, file: &File) -> io::Result<()> {
    sync(path, file)?;
    publish_provisionally(path, file)?;
    sync_names(path)
}

/// Gives a complete log its name, if it has none yet. A power loss may leave the name and nothing of what it stands for.
pub(super) fn publish_provisionally(path: &Path, file: &File) -> io::Result<()> {
    hooks::step(FileStep::Publish, path)?;
    name(path, file)
}

/// Makes a log durable, but not its name.
pub(crate) fn sync(path: &Path, file: &File) -> io::Result<()> {
    hooks::step(FileStep::Sync, path)?;
    file.sync_all()
}

/// Gives a file its name, if it has none yet.
pub(super) fn name(path: &Path, file: &File) -> io::Result<()> {
    if file.metadata()?.nlink() > 0 {
        return Ok(());
    }
    Ok(linkat(CWD, own_name(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// The name by which this process can reach an open file, whatever else it is called.
pub(super) fn own_name(file: &File) -> PathBuf {
    Path::new(OWN_FILES).join(file.as_raw_fd().to_string())
}

/// Makes the names in a file's directory durable. A directory that may be used and not be read is
/// left alone, as by SQLite.
pub(super) fn sync_names(path: &Path) -> io::Result<()> {
    hooks::step(FileStep::SyncDirectory, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match sync_directory(dir) {
        Err(MediumError::Io { op: "open", source: Errno::ACCESS }) => Ok(()),
        Err(MediumError::Io { source, .. }) => Err(source.into()),
        Err(error) => Err(io::Error::other(error)),
        Ok(()) => Ok(()),
    }
}

/// Deletes a log that holds nothing, and before it the memory that its users shared, which is of no use without it. A power
/// loss may bring the log back, to be deleted when the database is opened next: no sync is spent on that.
pub(crate) fn remove(path: &Path, segment: &Path) -> io::Result<()> {
    hooks::step(FileStep::Remove, path)?;
    drop(std::fs::remove_file(segment));
    std::fs::remove_file(path)
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

/// Whether the name of a log still leads to the file that was opened by it.
pub(crate) fn is_in_place(path: &Path, file: &File) -> Result<bool, JournalError> {
    let failed = |error: io::Error| JournalError::io("examine", path, &error);
    let opened = file.metadata().map_err(failed)?;
    match path.symlink_metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}
