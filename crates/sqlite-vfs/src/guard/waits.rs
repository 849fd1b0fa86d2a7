//! What this VFS does where others have the database file locked, beyond what the application's busy handler does.

use std::time::Duration;

use duralite_locks::file::Code;
use duralite_sqlite_ffi as ffi;

use crate::database::Db;
use crate::errors::Failure;

/// How long a pending EXCLUSIVE waits, at most, for those it keeps from starting.
const PENDING: Duration = Duration::from_millis(50);
const PENDING_PAUSE: Duration = Duration::from_micros(100);
const PENDING_TRIES: u32 = (PENDING.as_micros() / PENDING_PAUSE.as_micros()) as u32;

/// Waits for those whom a pending EXCLUSIVE keeps from starting, and who are about to let go.
pub fn pending(db: &Db) -> impl FnMut(u32) -> bool + '_ {
    |tries| tries < PENDING_TRIES && db.patience.sleep(PENDING_PAUSE)
}

/// What a failed try to lock the file is to SQLite.
pub fn cannot_lock(db: &Db) -> impl Fn(Code) -> Failure + '_ {
    |code| Failure::new(code, format!("cannot lock {}", db.path.display()))
}

/// The database cannot be had alone, or not at all just now.
pub fn in_use(db: &Db) -> Failure {
    Failure::new(
        ffi::BUSY,
        format!(
            "{} is open in another program, or another connection, without this log; close that one, or open \
             it with the same settings",
            db.path.display()
        ),
    )
}
