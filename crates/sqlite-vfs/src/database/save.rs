//! Saves the commits of a log that was deleted while in use. As soon as this process sees the deletion, it
//! writes the log's pages to the database file, because its commits in that log are lost if it dies.

use std::time::Duration;

use duralite_sqlite_ffi as ffi;

use super::Db;
use crate::attachment::Attachment;
use crate::errors::Failure;
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{BusyWait, OwnConnection, uri_of};

/// Writes the committed pages of the log to the database file and syncs the file, as far as readers allow;
/// the last close writes the rest. Failures go to SQLite's error log, because the caller reports a failure of
/// its own. The caller holds none of this library's mutexes, but may hold WRITE.
#[cold]
pub fn put_home(db: &Db, attachment: &Attachment) {
    if !attachment.is_to_be_saved() || db.reserves_bytes().unwrap_or(true) {
        return;
    }
    let saved =
        if db.lock.sqlites_exclusive().is_some() { db.save_alone(attachment) } else { checkpoint(db) };
    if let Err(failure) = saved {
        db.sqlite.report(ffi::WARNING, &failure.message);
    }
}

/// Checkpoints through one of the VFS's own connections. The checkpoint also syncs the database file.
fn checkpoint(db: &Db) -> Result<(), Failure> {
    let uri = uri_of(&db.path, &db.settings().parameters())?;
    let (wait, purpose) =
        (BusyWait::polling(Duration::ZERO), "cannot write the commits of a deleted log to the database file");
    let own = OwnConnection::open(&db.sqlite.api, &uri, VFS_NAME, wait, purpose)?;
    own.run(c"PRAGMA synchronous=FULL")?;
    own.run(c"PRAGMA wal_checkpoint(PASSIVE)").map(|_| ())
}
