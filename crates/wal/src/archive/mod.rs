//! Reads and writes the files beside a database that has an archive, for the VFS and for the sidecar. [`ArchiveFile`]
//! is `app.db-archive`. A [`backlog`] holds those commits of a closed log that may be missing in the archive.
//!
//! `app.db-archive` exists if, and only if, somebody has enabled an archive for the database. In this file the VFS
//! records which logs the database has had, and whether anything but these logs has changed the database. If a record
//! is missing, the archive only has to make one more snapshot. So the VFS serves the database even if it cannot write
//! the file (invariant 72).

pub mod backlog;
mod file;

use std::path::{Path, PathBuf};
use std::time::Duration;

use duralite_format::LogId;
use duralite_format::archive::Stamp;
use duralite_medium::process::OwnFile;
use duralite_medium::{ByteLock, lock_byte};

pub use file::ArchiveFile;

use crate::shared::identity;
pub use crate::shared::identity::beside;
use crate::{DatabaseIdentity, LogError};

/// Returns the path of `app.db-archive`.
#[must_use]
pub fn path_of(database: &Path) -> PathBuf {
    identity::archive_of(database)
}

/// Returns the path of the backlog of a log.
#[must_use]
pub fn backlog_of(database: &Path, log: LogId) -> PathBuf {
    beside(database, &format!("-archive-{log}"))
}

/// Returns a token for a database that is to claim a generation of an archive.
///
/// # Errors
/// `Io` if the system has no random numbers.
pub fn new_token() -> Result<u128, LogError> {
    let mut token = [0; 16];
    getrandom::fill(&mut token).map_err(|error| LogError::Io {
        op: "draw random bytes for",
        path: PathBuf::from("the token of an archive"),
        message: error.to_string(),
        kind: std::io::ErrorKind::Other,
    })?;
    Ok(u128::from_ne_bytes(token))
}

/// How many milliseconds to wait until the file system's clock has passed the file's time of modification. If that
/// takes longer, the file gets no stamp.
const TICKS: u32 = 100;

/// Returns the stamp of a database file without a guard. A stamp is a set of values, and any write to the file changes
/// at least one of them. `page_1` is the file's first page. First waits until the file system's clock has passed the
/// file's time of modification, so that any later write changes that time. The caller keeps others from writing during
/// the call. Returns `None` if the file system stores such times only in whole seconds, if the clock does not pass the
/// file's time soon, or if the path no longer leads to this file.
///
/// # Errors
/// `Io`.
pub fn stamp(database: &DatabaseIdentity, page_1: &[u8]) -> Result<Option<Stamp>, LogError> {
    let Some(stamp) = identity::stamp(database)? else { return Ok(None) };
    for _ in 0..TICKS {
        if identity::now_ns() > stamp.modified_ns {
            return Ok(Some(stamp.with_page_1(page_1)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

/// The lock that the sidecar of a database holds as long as it runs. The lock is on the database file itself, so a
/// process finds the lock under any name of the file. The kernel releases it when the process ends.
pub struct SidecarLock(#[allow(dead_code, reason = "holds the lock")] OwnFile);

/// The offset of the lock, far beyond the content of any database, and beyond SQLite's locks.
const SIDECAR_AT: i64 = 1 << 60;

impl SidecarLock {
    /// Takes the sidecar's lock of the database at this path. Returns `None` if another process holds it. A process
    /// that has SQLite connections to the database must not call this function. The lock keeps the file open. Dropping
    /// the lock closes the file, which would release the locks of these connections.
    ///
    /// # Errors
    /// `Io`, `Medium`.
    pub fn take(database: &Path) -> Result<Option<Self>, LogError> {
        let options = std::fs::OpenOptions::new().read(true).write(true).clone();
        let file = OwnFile::open(|| options.open(database));
        let file = file.map_err(|error| LogError::io("open", database, &error))?;
        let locked = lock_byte(&file, ByteLock::Exclusive, SIDECAR_AT);
        let locked = locked.map_err(|source| LogError::Medium { path: database.to_path_buf(), source })?;
        Ok(locked.then_some(Self(file)))
    }
}
