//! Identifies the database file to which a log is tied (invariant 3), and decides which users are trusted to own a
//! log's files (invariant 13).

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use duralite_format::archive::Stamp;
use duralite_format::{FileIdentity, PATH_LIMIT};
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

use crate::LogError;

/// The identity of one database file, which ties a log to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseIdentity {
    /// Canonical path.
    pub path: PathBuf,
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds since the epoch, 0 where unknown.
    pub birth_ns: u64,
    /// The number of the device that the file is on. A file in a snapshot or a clone of a file system has the inode
    /// number and the birth time of its original, but is on another device. A device may have another number after the
    /// next mount, so the number is never stored where it could outlive the processes that use the database.
    pub device: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Returns the identity of the file that a log is in; `None` when the kernel does not report it.
pub(crate) fn of_log(file: impl AsFd) -> Option<FileIdentity> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, WANTED).ok()?;
    Some(FileIdentity { inode: stat.stx_ino, birth_ns: birth_ns(&stat) })
}

fn birth_ns(stat: &Statx) -> u64 {
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
        return 0;
    }
    let seconds = u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_btime.tv_nsec))
}

/// Returns the stamp of the database at its path (see `archive::stamp`), without the fields that come from the
/// database's first page. Returns `None` if the path leads to another file, or if the file system stores the time of a
/// write only in whole seconds.
pub(crate) fn stamp(database: &DatabaseIdentity) -> Result<Option<Stamp>, LogError> {
    let path = &database.path;
    let stat = statx(CWD, path, AtFlags::empty(), WANTED)
        .map_err(|errno| LogError::io("examine", path, &io::Error::from(errno)))?;
    let (inode, birth_ns) = (stat.stx_ino, birth_ns(&stat));
    let seconds = u64::try_from(stat.stx_mtime.tv_sec).unwrap_or(0);
    let within = stat.stx_mtime.tv_nsec;
    let modified_ns = seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(within));
    let is_usable = within != 0 && (inode, birth_ns) == (database.inode, database.birth_ns);
    let stamp = Stamp { inode, birth_ns, bytes: stat.stx_size, modified_ns, changes: 0, page_1: 0 };
    Ok(is_usable.then_some(stamp))
}

/// Returns the time of the clock that file systems use for the times of files, in nanoseconds since the epoch.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Returns the path of a file beside a database.
#[must_use]
pub fn beside(database: &Path, end: &str) -> PathBuf {
    let mut name = database.to_path_buf().into_os_string();
    name.push(end);
    name.into()
}

/// Returns the path of the file that says which archive a database has. The file exists if, and only if, the database
/// has an archive.
pub(crate) fn archive_of(database: &Path) -> PathBuf {
    beside(database, "-archive")
}

impl DatabaseIdentity {
    /// Returns the identity of an existing file.
    ///
    /// # Errors
    /// `Io` when the file cannot be examined.
    pub fn of(path: &Path) -> Result<Self, LogError> {
        let canonical = path.canonicalize().map_err(|error| LogError::io("find", path, &error))?;
        let stat = statx(CWD, &canonical, AtFlags::empty(), WANTED)
            .map_err(|errno| LogError::io("examine", path, &io::Error::from(errno)))?;
        Ok(Self::from_stat(canonical, &stat))
    }

    /// Returns the identity of a file that was opened as `path`, even if that path leads to another file by now.
    ///
    /// # Errors
    /// `Io` when the file cannot be examined.
    pub fn of_open(file: impl AsFd, path: &Path) -> Result<Self, LogError> {
        let stat = statx(file, "", AtFlags::EMPTY_PATH, WANTED)
            .map_err(|errno| LogError::io("examine", path, &io::Error::from(errno)))?;
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        Ok(Self::from_stat(canonical, &stat))
    }

    fn from_stat(path: PathBuf, stat: &Statx) -> Self {
        Self {
            path,
            inode: stat.stx_ino,
            birth_ns: birth_ns(stat),
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            mode: u32::from(stat.stx_mode) & 0o777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
        }
    }

    /// Returns whether the path still leads to the file with this identity.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        Self::of(&self.path).is_ok_and(|named| named.numbers() == self.numbers())
    }

    /// Returns the numbers of the file: device, inode and birth time. No two files have the same numbers at the same
    /// time.
    #[must_use]
    pub fn numbers(&self) -> (u64, u64, u64) {
        (self.device, self.inode, self.birth_ns)
    }

    pub(crate) fn path_hint(&self) -> &[u8] {
        let bytes = self.path.as_os_str().as_bytes();
        &bytes[..bytes.len().min(PATH_LIMIT)]
    }

    /// Returns whether this process can trust a log's file, that is, whether the user who made the file is one who may
    /// write the database anyway. The process trusts the database's owner, its own user and the superuser. If the
    /// database's group may write the database, the process also trusts a file that belongs to that group. If everybody
    /// may write the database, it trusts every file.
    pub(crate) fn trusts(&self, file: &Metadata) -> bool {
        let owner = file.uid();
        owner == self.uid
            || owner == rustix::process::geteuid().as_raw()
            || owner == 0
            || self.mode & 0o020 != 0 && file.gid() == self.gid
            || self.mode & 0o002 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_identity_under_another_name_and_a_new_file_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("app.db"), dir.path().join("moved.db"));
        let file = std::fs::File::create(&path).unwrap();
        let identity = DatabaseIdentity::of(&path).unwrap();
        assert_eq!(DatabaseIdentity::of_open(&file, &path).unwrap(), identity);
        assert!(identity.is_in_place());
        std::fs::rename(&path, &moved).unwrap();
        assert!(!identity.is_in_place());
        std::fs::write(&path, "another").unwrap();
        assert!(!identity.is_in_place());
        let seen = DatabaseIdentity::of(&moved).unwrap();
        assert_eq!(seen.numbers(), identity.numbers());
        assert_eq!(identity.device, file.metadata().unwrap().dev());
    }

    #[test]
    fn inv13_files_are_trusted_by_who_could_have_written_the_database() {
        let file = std::fs::metadata(std::env::temp_dir()).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let (path, inode, birth_ns, device) = (PathBuf::new(), 1, 1, 1);
        let database = |mode, uid, gid| {
            let path = path.clone();
            DatabaseIdentity { path, inode, birth_ns, device, mode, uid, gid }
        };
        assert!(database(0o600, file.uid(), 77).trusts(&file));
        assert!(database(0o666, 12345, 77).trusts(&file));
        assert!(database(0o660, 12345, file.gid()).trusts(&file));
        // The superuser owns such a directory, or this user does.
        assert_eq!(database(0o600, 12345, 77).trusts(&file), [0, own].contains(&file.uid()));
        if own != 0 {
            return;
        }
        // Only the superuser can make a file that belongs to another user.
        let other = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::chown(other.path(), Some(4321), Some(77)).unwrap();
        let other = other.as_file().metadata().unwrap();
        assert!(!database(0o644, 12345, 77).trusts(&other), "somebody who may not write the database");
        assert!(database(0o664, 12345, 77).trusts(&other) && !database(0o664, 12345, 78).trusts(&other));
    }
}
