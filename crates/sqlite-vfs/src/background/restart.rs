//! Keeps the log from growing without bound while many commit (invariant 10).
//!
//! SQLite's auto-checkpoint runs beside the writers, and the log starts over only in a moment in which nobody reads
//! it. Where many commit there is no such moment: somebody always waits for durability under a read mark. So when
//! the log has outgrown the auto-checkpoint by some factor, one connection that is about to begin a transaction,
//! and holds nothing yet, first runs a checkpoint that keeps new writers out for as long as it takes those that
//! are there to finish (`RESTART`). A reader that stays longer ends that; it is then tried again later, at ever
//! longer distances.

use std::cell::Cell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use duralite_sqlite_ffi as ffi;

use crate::attachment::Attachment;
use crate::attachment::maintenance::is_worker;
use crate::database::Db;
use crate::errors::Failure;
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{OwnConnection, uri_of};

/// How long those that are there may take to finish.
const BUSY_TIMEOUT_MS: c_int = 200;
const TRY_FOR: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(500);
/// Nobody else tries meanwhile.
const TURN_NS: u64 = 500_000_000;

thread_local! {
    static RESTARTING: Cell<bool> = const { Cell::new(false) };
}

/// Starts the log over if it is time, before a transaction of `db` begins, which holds none of the log's locks.
pub fn keep(db: &Db, attachment: &Attachment) {
    let bound = attachment.bound();
    if !bound.is_outgrown() || RESTARTING.get() || is_worker() || !attachment.take_restart(TURN_NS) {
        return;
    }
    RESTARTING.set(true);
    let restarted = restart(db);
    RESTARTING.set(false);
    attachment.end_restart();
    match restarted {
        Ok(true) => bound.committed(0),
        Ok(false) => bound.postpone(),
        Err(failure) => {
            bound.postpone();
            db.sqlite.report(ffi::NOTICE, &failure.message);
        }
    }
}

/// Whether a checkpoint on this thread would be in the way of the one that starts the log over: all others wait
/// for nothing, and one of those that every commit tries would always be there.
pub fn yields(attachment: &Attachment) -> bool {
    !RESTARTING.get() && attachment.restart_is_taken()
}

fn restart(db: &Db) -> Result<bool, Failure> {
    let parameters = db.settings().parameters();
    let purpose = "cannot checkpoint a log that has outgrown its bound";
    let uri = uri_of(&db.path, &parameters)?;
    let own = OwnConnection::open(&db.sqlite.api, &uri, VFS_NAME, BUSY_TIMEOUT_MS, purpose)?;
    // A checkpoint that runs already is not waited for by SQLite.
    let start = Instant::now();
    loop {
        if own.run(c"PRAGMA wal_checkpoint(RESTART)")? == Some(0) {
            return Ok(true);
        }
        if start.elapsed() >= TRY_FOR {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}
