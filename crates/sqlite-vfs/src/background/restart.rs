//! Keeps the log from growing without bound while many commit, and within its limit (invariant 10).
//!
//! SQLite's auto-checkpoint runs beside the writers, and the log starts over only in a moment in which nobody reads
//! it. Where many commit there is no such moment: somebody always waits for durability under a read mark. So when
//! the log has outgrown the auto-checkpoint by some factor, one connection that is about to begin a transaction,
//! and holds nothing yet, first runs a checkpoint that keeps new writers out for as long as it takes those that
//! are there to finish (`RESTART`). A reader that stays longer ends that; it is then tried again later, at ever
//! longer distances.
//!
//! The same is done when a log is short of room ([`crate::attachment::room`]), whether or not the application ever checkpoints:
//! before the next transaction of a connection begins, on its thread, within the same bounds of time. So a commit fails
//! for want of room only where a reader keeps what would have to go, where a transaction is larger than what was left
//! (then the next one finds all of it), and in exclusive locking mode, where no other connection can checkpoint.

use std::cell::Cell;
use std::time::{Duration, Instant};

use duralite_locks::Holder;
use duralite_sqlite_ffi as ffi;

use super::in_queue;
use crate::attachment::Attachment;
use crate::attachment::maintenance::is_worker;
use crate::database::{Db, waiting};
use crate::errors::Failure;
use crate::said::Said;
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{OwnConnection, uri_of};

/// How long those that are there may take to finish. Writers wait meanwhile.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5);
/// How long it waits in the queue for WRITE, and how long a checkpoint that runs already may take.
const TRY_FOR: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(500);
/// A reader for so long is none of a crowd.
const STAYS: Duration = Duration::from_millis(100);
/// Nobody else tries meanwhile.
const TURN_NS: u64 = 500_000_000;

thread_local! {
    static RESTARTING: Cell<bool> = const { Cell::new(false) };
}

/// Gets the log to start over if it is time, before a transaction of `db` begins, which holds none of the log's locks.
/// Whether it will: whoever writes next starts it over, if it takes its snapshot only now.
pub fn keep(db: &Db, attachment: &Attachment) -> bool {
    let waits = waiting::for_room_until();
    let (bound, room) = (attachment.bound(), attachment.room());
    if bound.is_outgrown() {
        // It may have been another process that has started the log over: then nothing is to be done.
        bound.indexed(attachment.indexed_frames());
    }
    let (is_outgrown, is_short) = (bound.is_outgrown(), room.is_wanted());
    if !(is_outgrown || is_short) || RESTARTING.get() || is_worker() {
        return false;
    }
    if db.reserves_bytes().unwrap_or(true) {
        return false;
    }
    let Some(turn) = attachment.restart_turn().take(TURN_NS) else {
        // For as long as SQLite takes it to have slept.
        let (start, limit) = (Instant::now(), waits.unwrap_or_default());
        while start.elapsed() < limit && attachment.restart_turn().is_taken() {
            std::thread::sleep(PAUSE);
        }
        return false;
    };
    let now_ns = attachment.clock_ns();
    let is_patient = is_outgrown || room.is_patient(now_ns);
    let said = Said::here(&RESTARTING);
    let restarted = restart(db, attachment, is_patient);
    drop(said);
    attachment.restart_turn().end(turn);
    match restarted {
        Ok(true) => {
            bound.committed(0);
            room.made();
            return true;
        }
        Ok(false) => {}
        Err(failure) => db.sqlite.report(ffi::NOTICE, &failure.message),
    }
    if is_outgrown {
        bound.postpone(reader_stays(attachment));
    }
    if is_short {
        room.postpone(is_patient.then_some(now_ns));
    }
    false
}

/// Whether a checkpoint on this thread would be in the way of the one that starts the log over: all others wait
/// for nothing, and one of those that every commit tries would always be there.
pub fn yields(attachment: &Attachment) -> bool {
    !RESTARTING.get() && attachment.restart_turn().is_taken()
}

/// Whether a transaction that has just got WRITE had better wait: the log is nearly full, and can soon start over, since nobody
/// reads it for long. Who is told that it is busy begins again, and whoever does so first starts the log over.
pub fn is_ahead(attachment: &Attachment, holder: &Holder) -> bool {
    let room = attachment.room();
    if !room.is_scarce() || !holder.is_reading() || RESTARTING.get() || is_worker() {
        return false;
    }
    // Another process may have started it over.
    look_at_room(attachment);
    let waits = room.is_scarce() && !reader_stays(attachment);
    if waits {
        waiting::for_room();
    }
    waits
}

/// Learns how much room there is after what all processes have committed.
fn look_at_room(attachment: &Attachment) {
    let mut log = attachment.log();
    // An error comes back from the write.
    if log.db_pages().is_ok() {
        let (fill, is_short) = log.fill();
        attachment.room().seen(fill, is_short);
    }
}

fn reader_stays(attachment: &Attachment) -> bool {
    attachment.locks().readers().is_ok_and(|(_, oldest)| oldest >= STAYS)
}

/// With patience for those who are in the way, or without.
fn restart(db: &Db, attachment: &Attachment, is_patient: bool) -> Result<bool, Failure> {
    let (busy_timeout, try_for) =
        if is_patient { (BUSY_TIMEOUT, TRY_FOR) } else { (Duration::ZERO, Duration::ZERO) };
    let parameters = db.settings().parameters();
    let purpose = "cannot checkpoint a log that has outgrown its bound";
    let uri = uri_of(&db.path, &parameters)?;
    let own = OwnConnection::open(&db.sqlite.api, &uri, VFS_NAME, in_queue(busy_timeout, try_for), purpose)?;
    // Most of it beside the writers.
    own.run(c"PRAGMA wal_checkpoint(PASSIVE)")?;
    // It has not got everything home and has not synced, then. The sync that is to come is short after this one.
    if !db.has_home() && !attachment.home_is_synced() && db.sync(ffi::SYNC_NORMAL) != ffi::OK {
        return Ok(false);
    }
    let start = Instant::now();
    loop {
        if own.run(c"PRAGMA wal_checkpoint(RESTART)")? == Some(0) {
            return Ok(true);
        }
        // A checkpoint that runs already is not waited for by SQLite. Who is a reader has been waited for.
        if own.gave_up() || start.elapsed() >= try_for {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}
