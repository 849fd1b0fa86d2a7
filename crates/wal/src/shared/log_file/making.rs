//! Creating the file of a log, giving it its name, and deleting it.

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

use crate::hooks::{self, FileStep};
use crate::{DatabaseIdentity, LogError};

/// The directory through which this process can name its open files.
const OWN_FILES: &str = "/proc/self/fd";

/// Creates a log file with the owner and mode of the database (invariant 13).
pub(crate) fn make_file(dir: &Path, path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let file = hooks::step(FileStep::Create, path)
        .and_then(|()| OwnFile::open(|| open_new(dir, path, db.mode & 0o666)))
        .map_err(|error| LogError::io("make a log in", dir, &error))?;
    adjust(&file, db.mode & 0o666, db).map_err(|error| {
        drop(std::fs::remove_file(path));
        LogError::io("set the owner of", path, &error)
    })?;
    Ok(file)
}

/// Gives a file the mode and owner of the database: the umask reduces the mode given to `open`, and the new file
/// belongs to this user. A user who may write the database but does not own it cannot give the file to the owner, only
/// to a group that both belong to.
pub(crate) fn adjust(file: &File, mode: u32, db: &DatabaseIdentity) -> io::Result<()> {
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

/// Creates a file, without a name where the file system supports that: a process that dies while it makes a log then
/// leaves nothing behind.
pub(crate) fn open_new(dir: &Path, path: &Path, mode: u32) -> io::Result<File> {
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

/// Gives a complete log its name, if it has none yet, and makes the log and its name durable.
pub(crate) fn publish(path: &Path, file: &File) -> io::Result<()> {
    sync(path, file)?;
    publish_provisionally(path, file)?;
    sync_names(path)
}

/// Gives a complete log its name, if it has none yet. Makes nothing durable: a power loss may leave the name without
/// the log's contents.
pub(crate) fn publish_provisionally(path: &Path, file: &File) -> io::Result<()> {
    hooks::step(FileStep::Publish, path)?;
    name(path, file)
}

/// Makes a log durable, but not its name.
pub(crate) fn sync(path: &Path, file: &File) -> io::Result<()> {
    hooks::step(FileStep::Sync, path)?;
    file.sync_all()
}

/// Gives a file its name, if it has none yet.
pub(crate) fn name(path: &Path, file: &File) -> io::Result<()> {
    if file.metadata()?.nlink() > 0 {
        return Ok(());
    }
    Ok(linkat(CWD, own_name(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// A path by which this process can reach an open file, whatever names the file has.
pub(crate) fn own_name(file: &File) -> PathBuf {
    Path::new(OWN_FILES).join(file.as_raw_fd().to_string())
}

/// Makes the names in a file's directory durable. Skips a directory that this user may use but not read, as SQLite
/// does.
pub(crate) fn sync_names(path: &Path) -> io::Result<()> {
    hooks::step(FileStep::SyncDirectory, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match sync_directory(dir) {
        Err(MediumError::Io { op: "open", source: Errno::ACCESS }) => Ok(()),
        Err(MediumError::Io { source, .. }) => Err(source.into()),
        Err(error) => Err(io::Error::other(error)),
        Ok(()) => Ok(()),
    }
}

/// Deletes a log that holds nothing, and before it the segment of its users, which is useless without the log. Does not
/// sync the directory: a power loss may bring the log's name back, and the log is deleted again when the database is
/// opened next.
pub(crate) fn remove(path: &Path, segment: &Path) -> io::Result<()> {
    hooks::step(FileStep::Remove, path)?;
    drop(std::fs::remove_file(segment));
    std::fs::remove_file(path)
}

/// Whether the name of a log still leads to the file that was opened by it.
pub(crate) fn is_in_place(path: &Path, file: &File) -> Result<bool, LogError> {
    let failed = |error: io::Error| LogError::io("examine", path, &error);
    let opened = file.metadata().map_err(failed)?;
    match path.symlink_metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}
