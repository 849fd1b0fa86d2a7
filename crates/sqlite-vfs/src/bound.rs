//! Keeps the log from growing without bound while many commit (invariant 10).
//!
//! SQLite's auto-checkpoint runs beside the writers, and the log starts over only in a moment in which nobody reads
//! it. Where many commit there is no such moment: somebody always waits for durability under a read mark. So when
//! the log has outgrown the auto-checkpoint by some factor, one connection that is about to begin a transaction,
//! and holds nothing yet, first runs a checkpoint that keeps new writers out for as long as it takes those that
//! are there to finish (`RESTART`). A reader that stays longer ends that; it is then tried again later, at ever
//! longer distances.
//!
//! How large a log the application wants is seen by when its connections begin to checkpoint. Where none ever
//! does (`wal_autocheckpoint=0`), the log is the application's to bound.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use duralite_sqlite_ffi as ffi;

use crate::attachment::Attachment;
use crate::connection::OwnConnection;
use crate::db::Db;
use crate::errors::Failure;
use crate::maintenance::{is_worker, uri_of};
use crate::registration::VFS_NAME;

/// By how much the log may outgrow the frames at which checkpoints begin.
const FACTOR: u32 = 4;
/// A log of fewer frames is never in the way.
const LEAST_FRAMES: u32 = 1000;
/// How long those that are there may take to finish.
const BUSY_TIMEOUT_MS: c_int = 200;
const TRY_FOR: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(500);
/// After so many failures in a row it is no longer tried again soon.
const SOON: u32 = 3;
/// Nobody else tries meanwhile.
pub const TURN_NS: u64 = 500_000_000;

thread_local! {
    static RESTARTING: Cell<bool> = const { Cell::new(false) };
}

/// What a process knows of the size of a log.
#[derive(Default)]
pub struct Bound {
    /// Committed frames, as last seen here.
    frames: AtomicU32,
    /// How many there were when a connection first checkpointed, since the log started over; 0 for never.
    checkpointed: AtomicU32,
    /// At how many to try again after it was in vain.
    postponed: AtomicU32,
    /// How often it was in vain in a row.
    failures: AtomicU32,
}

impl Bound {
    /// So many frames are committed.
    pub fn committed(&self, frames: u32) {
        if self.frames.swap(frames, Ordering::Relaxed) > frames {
            self.checkpointed.store(0, Ordering::Relaxed);
            self.postponed.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A connection begins to checkpoint.
    pub fn checkpoints(&self) {
        let frames = self.frames.load(Ordering::Relaxed).max(1);
        let _ = self.checkpointed.compare_exchange(0, frames, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Frames that are too many; `None` where nobody checkpoints.
    fn limit(&self) -> Option<u32> {
        match self.checkpointed.load(Ordering::Relaxed) {
            0 => None,
            begun => Some(begun.saturating_mul(FACTOR).max(LEAST_FRAMES)),
        }
    }

    fn is_outgrown(&self) -> bool {
        let postponed = self.postponed.load(Ordering::Relaxed);
        self.limit().is_some_and(|limit| self.frames.load(Ordering::Relaxed) > limit.max(postponed))
    }

    fn postpone(&self) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let limit = self.limit().unwrap_or(LEAST_FRAMES);
        // A crowd may be in the way once or twice; what is there longer is a reader.
        let distance = match failures.checked_sub(SOON) {
            None => limit / 4,
            Some(more) => limit.saturating_mul(1 << more.min(5)),
        };
        let frames = self.frames.load(Ordering::Relaxed);
        self.postponed.store(frames.saturating_add(distance), Ordering::Relaxed);
    }
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
            db.registration.report(ffi::NOTICE, &failure.message);
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
    let uri = uri_of(db, &parameters)?;
    let own = OwnConnection::open(&db.registration.api, &uri, VFS_NAME, BUSY_TIMEOUT_MS, purpose)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_by_when_checkpoints_begin() {
        let bound = Bound::default();
        bound.committed(1_000_000);
        assert!(!bound.is_outgrown(), "nobody checkpoints: the application bounds its log");
        bound.committed(2000);
        bound.checkpoints();
        bound.committed(8000);
        assert!(!bound.is_outgrown());
        bound.checkpoints();
        bound.committed(8001);
        assert!(bound.is_outgrown());
        bound.postpone();
        assert!(!bound.is_outgrown());
        bound.committed(10001);
        assert!(!bound.is_outgrown());
        bound.committed(10002);
        assert!(bound.is_outgrown());
        (0..3).for_each(|_| bound.postpone());
        bound.committed(18002);
        assert!(!bound.is_outgrown());
        bound.committed(18003);
        assert!(bound.is_outgrown());
        bound.committed(1);
        assert!(!bound.is_outgrown());
        bound.checkpoints();
        bound.committed(900);
        assert!(!bound.is_outgrown(), "small logs are in nobody's way");
    }
}
