//! The errors that a process may get, and what it does about them.

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
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Stock => "stock",
        }
    }
}

/// What an error means for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another process holds a lock: the connection tries again.
    Again,
    /// The connection cannot be used any more: the process closes it, waits, and opens another one.
    Reopen,
    /// Stock SQLite never returns this error here.
    Failure,
}

/// What an extended result code means to a connection of one side. `read_only` is whether the connection is read-only.
/// `guarded` is whether there are Duralite processes, whose guard makes stock SQLite refuse the database.
#[must_use]
pub fn verdict(side: Side, read_only: bool, guarded: bool, code: i32) -> Verdict {
    let meets_guard = side == Side::Stock && guarded;
    match code & 0xff {
        // PROTOCOL: a stopped process holds the lock under which SQLite recovers the wal-index.
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL | ffi::SQLITE_SCHEMA => Verdict::Again,
        ffi::SQLITE_NOTADB if meets_guard => Verdict::Reopen,
        // SQLite remembers the guard's write version from page 1 until it reads page 1 again.
        ffi::SQLITE_READONLY if meets_guard => Verdict::Reopen,
        // A read-only connection cannot roll back or recover what a dead process has left, nor create missing files.
        ffi::SQLITE_READONLY if read_only && code != ffi::SQLITE_READONLY => Verdict::Reopen,
        ffi::SQLITE_CANTOPEN if read_only => Verdict::Reopen,
        _ => Verdict::Failure,
    }
}
