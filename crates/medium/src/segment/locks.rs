//! Locks on bytes of the segment's file. Each lock belongs to an open file description. The kernel releases
//! the lock when the last descriptor of that description is closed, even if the process crashes.
#![allow(unsafe_code)] // fcntl with a structure

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use crate::MediumError;

/// The offset of the locks of the processes, far after the file's content.
pub(super) const PROCESSES_AT: i64 = 1 << 40;
/// The offset of the bytes that show for which purposes processes use the log. There is one byte for each
/// [`Use`]. A process that uses the log for a purpose locks the purpose's byte shared. A process that must be
/// the only one with this purpose locks the byte exclusively.
pub(super) const USE_AT: i64 = 1 << 41;
/// The offset of the bytes for the marks of outside readers, that is, of readers that may not write the file.
/// Each mark has two bytes. A reader locks the first if processes with a slot are using the segment, and the
/// second if it reads what a crash has left.
pub(super) const READER_AT: i64 = 1 << 42;

/// A purpose for which a process uses a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Any purpose. Every process that uses the log locks this byte.
    Any,
    /// To use the log as a write-ahead log.
    Wal,
}

impl Use {
    pub(super) fn at(self) -> i64 {
        match self {
            Self::Any => USE_AT,
            Self::Wal => USE_AT + 1,
        }
    }
}

/// The kind of a lock on a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Others may hold the byte shared at the same time.
    Shared,
    /// Nobody else may hold the byte.
    Exclusive,
}

impl Kind {
    fn code(self) -> libc::c_short {
        match self {
            Self::Shared => libc::F_RDLCK as libc::c_short,
            Self::Exclusive => libc::F_WRLCK as libc::c_short,
        }
    }
}

fn lock_of(code: libc::c_short, at: i64, count: i64) -> libc::flock {
    // SAFETY: the structure holds only numbers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = code;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = count;
    lock
}

/// Takes the lock of the byte at `at`, or changes its kind, without waiting. Returns `false` if another open
/// file description holds the lock. An earlier lock of this description then stays.
///
/// # Errors
/// If the kernel cannot lock.
pub fn set(file: &File, kind: Kind, at: i64) -> Result<bool, MediumError> {
    let lock = lock_of(kind.code(), at, 1);
    // SAFETY: the file is open and the lock description complete.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match last_errno() {
        _ if code == 0 => Ok(true),
        Errno::AGAIN | Errno::ACCESS => Ok(false),
        errno => Err(MediumError::from_errno("fcntl(F_OFD_SETLK)", errno)),
    }
}

/// Releases the lock of the byte at `at`.
pub fn clear(file: &File, at: i64) {
    let lock = lock_of(libc::F_UNLCK as libc::c_short, at, 1);
    // Ignore an error: at worst the kernel has no memory to split a range, and keeps the lock.
    // SAFETY: the file is open and the lock description complete.
    let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
}

/// Returns whether an open file description other than this file's has a lock on one of these `count` bytes.
///
/// # Errors
/// If the kernel does not report this.
pub fn others_hold(file: &File, at: i64, count: usize) -> Result<bool, MediumError> {
    let mut lock = lock_of(Kind::Exclusive.code(), at, count as i64);
    // SAFETY: the file is open and the lock description complete. The kernel changes the description.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(MediumError::from_errno("fcntl(F_OFD_GETLK)", last_errno()));
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
