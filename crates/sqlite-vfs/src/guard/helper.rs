//! A connection of this VFS's own that may write, for a read-only one that may not.
//!
//! A database that is closed has no log. Who opens it read-only cannot make one, and would have to read it
//! without; as long as that lasts, nobody else could make one either. So a connection that may write makes it, if
//! this user has the right to, as stock SQLite makes `-wal` and `-shm` for a reader; and another one takes it
//! away again behind the reader.

use std::cell::Cell;
use std::ffi::{CString, c_int};

use duralite_sqlite_ffi as ffi;

use super::opening;
use crate::database::Db;
use crate::errors::Failure;
use crate::sqlite::connection::{OwnConnection, uri_of};
use crate::sqlite::{Sqlite, VFS_NAME};

/// What is in a helper's way is in the reader's.
const BUSY_TIMEOUT_MS: c_int = 100;

thread_local! {
    /// Whether a helper is being opened on this thread: it needs none itself.
    static HELPING: Cell<bool> = const { Cell::new(false) };
}

fn open(
    sqlite: &'static Sqlite,
    uri: &CString,
    purpose: &'static str,
) -> Result<OwnConnection<'static>, Failure> {
    HELPING.set(true);
    let opened = OwnConnection::open(&sqlite.api, uri, VFS_NAME, BUSY_TIMEOUT_MS, purpose)
        .and_then(|own| own.run(c"SELECT 1 FROM sqlite_master LIMIT 1").map(|_| own));
    HELPING.set(false);
    opened
}

/// Opens a connection that may write beside a read-only one, which has nothing but SHARED; `None` when this user
/// may not write either, or when this is such a connection itself.
pub fn writer(db: &Db, purpose: &'static str) -> Option<OwnConnection<'static>> {
    if HELPING.get() || !may_write(db) || opening::go_back(db, ffi::LOCK_NONE).is_err() {
        return None;
    }
    let parameters = db.settings().parameters();
    let opened = uri_of(&db.path, &parameters).and_then(|uri| open(db.sqlite, &uri, purpose));
    let locked = opening::take_shared(db);
    match (opened, locked) {
        (Ok(own), Ok(())) => Some(own),
        (Err(failure), _) | (_, Err(failure)) => {
            db.sqlite.report(ffi::NOTICE, &failure.message);
            None
        }
    }
}

fn may_write(db: &Db) -> bool {
    rustix::fs::access(&db.path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Takes the log away that was made for a reader, once the reader's files are closed.
pub struct Lifter {
    sqlite: &'static Sqlite,
    uri: CString,
}

impl Lifter {
    /// For a read-only connection that has used a log.
    pub fn of(db: &Db) -> Option<Self> {
        if !db.read_only || !db.was_served() || !may_write(db) {
            return None;
        }
        let parameters = db.settings().parameters();
        Some(Self { sqlite: db.sqlite, uri: uri_of(&db.path, &parameters).ok()? })
    }

    /// Opens and closes the database: whoever closes it last puts the log home.
    pub fn run(self) {
        if let Err(failure) = open(self.sqlite, &self.uri, "cannot close the log of a reader") {
            self.sqlite.report(ffi::NOTICE, &failure.message);
        }
    }
}
