//! Keeps the log from growing without bound while many connections commit, and keeps it within its limit
//! (invariant 10).
//!
//! SQLite's auto-checkpoint runs beside the writers, and the log starts over only in a moment in which nobody
//! reads it. Where many connections commit there is no such moment: some connection always waits for
//! durability under a read mark. So when the log has outgrown the auto-checkpoint by some factor, one
//! connection runs a checkpoint first. It is about to begin a transaction, and holds nothing yet. Its
//! checkpoint (`RESTART`) keeps new writers out until the present ones have finished. A reader that stays
//! longer makes that try vain. The next tries then come later, at ever longer distances.
//!
//! Concurrent transactions overlap for as long as the application takes, which may be longer than a checkpoint
//! may keep WRITE. So before the checkpoint the gate is closed: new transactions of concurrent connections wait,
//! and those that are present go on until they commit. That takes as long as the longest of them, if no
//! transaction stays. Where one does, the log grows to several times its bound. Then transactions that have been
//! writing for long are asked to end: at the next page that a `SELECT` of theirs reads from the database they
//! get `SQLITE_BUSY_SNAPSHOT`, once. Those that only read are never asked.
//!
//! The same is done when a log is short of room ([`crate::attachment::size`]), whether or not the application
//! ever checkpoints. It is done before the next transaction of a connection begins, on its thread, within the
//! same bounds of time. So a commit fails for want of room in three cases only: a reader keeps what would
//! have to go; a transaction is larger than the room that was left (the next one then finds all of it); or
//! the connection is in exclusive locking mode, where no other connection can checkpoint.

use std::cell::Cell;
use std::time::{Duration, Instant};

use duralite_locks::Holder;
use duralite_sqlite_ffi as ffi;

use super::{Db, waiting};
use crate::attachment::Attachment;
use crate::attachment::maintenance::is_worker;
use crate::errors::Failure;
use crate::shield::Said;
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{OwnConnection, uri_of};

/// How long the present writers and readers may take to finish. New writers wait meanwhile.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5);
/// How long this waits in the queue for WRITE, and how long a checkpoint that is already running may take.
const TRY_FOR: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(500);
/// A reader that stays for this long does not belong to a crowd that comes and goes.
const STAYS: Duration = Duration::from_millis(100);
/// How long the gate is closed at most: [`STAYS`], and time for the checkpoint.
const GATE_NS: u64 = 200_000_000;
/// No other connection tries within this time.
const TURN_NS: u64 = 500_000_000;

thread_local! {
    static RESTARTING: Cell<bool> = const { Cell::new(false) };
}

/// Gets the log to start over if it is time, before a transaction of `db` begins; that transaction holds none
/// of the log's locks. Returns whether the log will start over: the next writer does it, if it takes its
/// snapshot only now.
pub fn start_over_if_due(db: &Db, attachment: &Attachment) -> bool {
    let waits = waiting::for_room_until();
    let (bound, room) = (attachment.bound(), attachment.room());
    if bound.is_outgrown() {
        // If another process has started the log over, there is nothing to do.
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
        // Waits at most for as long as SQLite takes the connection to have slept.
        let (start, limit) = (Instant::now(), waits.unwrap_or_default());
        while start.elapsed() < limit && attachment.restart_turn().is_taken() {
            std::thread::sleep(PAUSE);
        }
        return false;
    };
    let now_ns = attachment.clock_ns();
    let is_patient = is_outgrown || room.is_patient(now_ns);
    let is_urgent = bound.is_far_outgrown() || room.is_scarce();
    let said = Said::here(&RESTARTING);
    let restarted = restart(db, attachment, is_patient, is_urgent);
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

/// Whether a checkpoint on this thread would be in the way of the one that starts the log over. Any other
/// checkpoint can be refused: nothing waits for it. And every commit tries one, so there would always be one
/// in the way.
pub fn is_in_the_way(attachment: &Attachment) -> bool {
    !RESTARTING.get() && attachment.restart_turn().is_taken()
}

/// Whether a transaction that has just got WRITE should wait: the log is nearly full, and can soon start
/// over, since no reader stays long. A connection that is told that it is busy begins again, and the first
/// one to do so starts the log over.
pub fn must_make_room(attachment: &Attachment, holder: &Holder) -> bool {
    let room = attachment.room();
    if !room.is_scarce() || !holder.is_reading() || RESTARTING.get() || is_worker() {
        return false;
    }
    // Another process may have started the log over.
    look_at_room(attachment);
    let waits = room.is_scarce() && !reader_stays(attachment);
    if waits {
        waiting::for_room();
    }
    waits
}

/// Learns how much room is left after the commits of all processes.
fn look_at_room(attachment: &Attachment) {
    let mut log = attachment.log();
    // The write reports an error.
    if log.db_pages().is_ok() {
        let (fill, is_short) = log.fill();
        attachment.room().seen(fill, is_short);
    }
}

fn reader_stays(attachment: &Attachment) -> bool {
    attachment.locks().readers().is_ok_and(|(_, oldest)| oldest >= STAYS)
}

/// Starts the log over, with patience for connections that are in the way, or without. Where it is urgent, those
/// that have been writing for long are asked to end. Returns whether it succeeded.
fn restart(db: &Db, attachment: &Attachment, is_patient: bool, is_urgent: bool) -> Result<bool, Failure> {
    let (busy_timeout, try_for) =
        if is_patient { (BUSY_TIMEOUT, TRY_FOR) } else { (Duration::ZERO, Duration::ZERO) };
    let parameters = db.settings().parameters();
    let purpose = "cannot checkpoint a log that has outgrown its bound";
    let uri = uri_of(&db.path, &parameters)?;
    let own = OwnConnection::open(
        &db.sqlite.api,
        &uri,
        VFS_NAME,
        waiting::in_queue(busy_timeout, try_for),
        purpose,
    )?;
    // This writes most of the log home beside the writers.
    own.run(c"PRAGMA wal_checkpoint(PASSIVE)")?;
    // If the file is not synced now, that checkpoint did not get everything home. A sync now makes the later
    // one short.
    if !db.has_home() && !attachment.home_is_synced() && db.sync(ffi::SYNC_NORMAL) != ffi::OK {
        return Ok(false);
    }
    let _gate = is_patient.then(|| Gate::close(attachment, is_urgent)).flatten();
    let start = Instant::now();
    loop {
        if own.run(c"PRAGMA wal_checkpoint(RESTART)")? == Some(0) {
            return Ok(true);
        }
        // SQLite does not wait for a checkpoint that is already running. For readers it has waited by now.
        if own.gave_up() || start.elapsed() >= try_for {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}

/// While this lives, transactions of concurrent connections do not begin, for at most [`GATE_NS`].
struct Gate<'a> {
    attachment: &'a Attachment,
    turn: u64,
}

impl<'a> Gate<'a> {
    /// Closes the gate, and waits until all transactions that were open have ended, for at most [`STAYS`]. Where it
    /// is urgent, those that have been writing for longer than that are asked to end.
    fn close(attachment: &'a Attachment, is_urgent: bool) -> Option<Self> {
        if !attachment.has_had_concurrent() {
            return None;
        }
        let turn = attachment.gate().take(GATE_NS)?;
        let gate = Self { attachment, turn };
        if is_urgent {
            let stays_ns = u64::try_from(STAYS.as_nanos()).unwrap_or(u64::MAX);
            attachment.end_writers_since(attachment.clock_ns().saturating_sub(stays_ns).max(1));
        }
        let start = Instant::now();
        while is_inside_since(attachment, start) && start.elapsed() < STAYS {
            std::thread::sleep(PAUSE);
        }
        Some(gate)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.attachment.gate().end(self.turn);
    }
}

/// Whether a connection may have had a read mark since before this moment.
fn is_inside_since(attachment: &Attachment, moment: Instant) -> bool {
    attachment.locks().readers().is_ok_and(|(count, oldest)| count > 0 && oldest >= moment.elapsed())
}

/// Waits while the gate is closed, before a transaction of a concurrent connection begins.
pub fn wait_for_gate(attachment: &Attachment) {
    if RESTARTING.get() || is_worker() {
        return;
    }
    while attachment.gate().is_taken() {
        std::thread::sleep(PAUSE);
    }
}
