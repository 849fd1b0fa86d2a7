//! The errors that a process may get, and what the process does after each of them.

use rusqlite::ffi;
use serde::{Deserialize, Serialize};

/// The VFS through which a process opens the databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// Duralite's VFS.
    Ours,
    /// SQLite's own VFS.
    Stock,
}

impl Side {
    /// Returns the side's name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Stock => "stock",
        }
    }
}

/// What an error means for the connection that got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another process holds a lock. The process tries the operation again.
    Again,
    /// The connection cannot be used any more. The process closes it, waits, and opens another.
    Reopen,
    /// Stock SQLite never returns such an error in this situation, so the test fails.
    Failure,
}

/// Returns what an extended result code means for a connection of `side`. `guarded` says whether some processes use
/// Duralite, whose guard makes stock SQLite refuse the database.
#[must_use]
pub fn verdict(side: Side, read_only: bool, guarded: bool, code: i32) -> Verdict {
    let meets_guard = side == Side::Stock && guarded;
    match code & 0xff {
        // `SQLITE_PROTOCOL` means that a stopped process holds the lock under which SQLite recovers the wal-index.
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL | ffi::SQLITE_SCHEMA => Verdict::Again,
        ffi::SQLITE_NOTADB if meets_guard => Verdict::Reopen,
        // SQLite still remembers the write version that the guard had put into page 1, until it reads the page again.
        ffi::SQLITE_READONLY if meets_guard => Verdict::Reopen,
        // A read-only connection cannot roll back or recover what a dead process has left, and it cannot create missing
        // files.
        ffi::SQLITE_READONLY if read_only && code != ffi::SQLITE_READONLY => Verdict::Reopen,
        ffi::SQLITE_CANTOPEN if read_only => Verdict::Reopen,
        _ => Verdict::Failure,
    }
}
