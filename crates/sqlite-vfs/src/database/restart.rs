//! Keeps the log from growing without bound while many connections commit, and keeps it within its limit
//! (invariant 10).
//!
//! SQLite's auto-checkpoint runs beside the writers, and the log starts over only in a moment in which no
//! connection reads the log. If many connections commit, there is no such moment, because some connection
//! always waits for durability under a read mark. So the log can outgrow the size at which the
//! auto-checkpoint begins. When it has outgrown that size by some factor, a connection that is about to begin
//! a transaction, and holds no lock yet, first runs a checkpoint. This checkpoint (`RESTART`) keeps new
//! writers out until the present ones have finished. If a reader stays longer, the attempt is in vain, and
//! the log must grow further before each next attempt.
//!
//! Concurrent transactions overlap for as long as the application takes, which may be longer than a
//! checkpoint may keep WRITE. So before the checkpoint the connection closes the gate: new transactions of
//! concurrent connections wait, and the present transactions continue until they commit. If all of these end
//! soon, the wait is as long as the longest of them. If one of them stays, the log grows to several times its
//! bound. Then the connection asks long-running write transactions to end: when a `SELECT` of such a
//! transaction reads its next page from the database, it gets `SQLITE_BUSY_SNAPSHOT`, once. The connection
//! does not ask read transactions to end.
//!
//! Before its attempt a connection asks followers to read the log to its end ([`Attachment::ask_followers`]),
//! because a follower may copy the log to a slow place. The connection makes the attempt once the followers
//! have answered a request since the log last started over. It asks them again while it keeps new writers
//! out.
//!
//! A connection also starts the log over when the log is short of room ([`crate::attachment::size`]), whether
//! or not the application ever checkpoints. The connection does this before its next transaction begins, on
//! the connection's thread, within the same limits of time. So a commit fails for want of room in three cases
//! only. A reader may still need frames that the log would have to drop. A transaction may be larger than the
//! room that was left; the next transaction then finds all of the room. Or the connection is in exclusive
//! locking mode, where no other connection can checkpoint.

use std::cell::Cell;
use std::time::{Duration, Instant};

use duralite_locks::Holder;
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;
use duralite_wal::shared::pins::Followers;

use super::{Db, waiting};
use crate::attachment::Attachment;
use crate::attachment::maintenance::is_worker;
use crate::errors::Failure;
use crate::shield::Said;
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{OwnConnection, uri_of};

/// The time for which the checkpoint waits for the present writers and readers to finish. New writers wait
/// during that time.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5);
/// The time for which an attempt to start the log over waits in the queue for WRITE, and the time for which
/// it waits for a checkpoint that is already running.
const TRY_FOR: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(500);
/// The time after which a reader counts as one that stays. Until then it may be one of many short readers
/// that come and go.
const STAYS: Duration = Duration::from_millis(100);
/// The longest time, in nanoseconds, for which the gate is closed: [`STAYS`], and time for the checkpoint.
const GATE_NS: u64 = 200_000_000;
/// The longest time, in nanoseconds, for which a connection that tries to start the log over keeps other
/// connections from trying.
const TURN_NS: u64 = 500_000_000;

thread_local! {
    static RESTARTING: Cell<bool> = const { Cell::new(false) };
}

/// Prepares the log to start over if it is time for that, before a transaction of `db` begins. That
/// transaction must not hold any of the log's locks yet. Returns whether the log will start over. If so, the
/// next writer starts it over, provided that the writer takes its snapshot only after this function returns.
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
    if is_left_to_sqlite(db) {
        return false;
    }
    let Some(turn) = attachment.restart_turn().take(TURN_NS) else {
        // Another connection is trying to start the log over. Wait until it has finished, but no longer than
        // the sleep of the busy handler that this thread has skipped.
        let (start, limit) = (Instant::now(), waits.unwrap_or_default());
        while start.elapsed() < limit && attachment.restart_turn().is_taken() {
            std::thread::sleep(PAUSE);
        }
        return false;
    };
    let followers = attachment.ask_followers();
    if followers == Followers::Behind {
        attachment.restart_turn().end(turn);
        if is_outgrown {
            bound.wait_for_followers();
        }
        if is_short {
            room.postpone(None);
        }
        return false;
    }
    let now_ns = attachment.clock_ns();
    let is_patient = is_outgrown || room.is_patient(now_ns);
    let is_urgent = bound.is_far_outgrown() || room.is_scarce();
    let said = Said::here(&RESTARTING);
    let restarted = restart(db, attachment, is_patient, is_urgent);
    drop(said);
    attachment.restart_turn().end(turn);
    match restarted {
        Ok(true) => {
            // The log starts over with the next write, unless another connection checkpoints at that moment
            // (invariant 45), or a connection that chose its mark before appends. So keep the bound, and try again
            // soon. The bound is forgotten once the log has fewer frames.
            if is_outgrown {
                bound.postpone(false);
            }
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

/// Returns whether only the application's own connections may write pages to the database file, because a VFS
/// above Duralite's may fill the reserved bytes of the pages.
fn is_left_to_sqlite(db: &Db) -> bool {
    db.reserves_bytes().unwrap_or(true)
}

/// Returns whether a checkpoint on this thread would hinder the checkpoint by which another connection starts
/// the log over. The caller then skips its own checkpoint, which no connection needs. Otherwise every commit
/// would try a checkpoint, and at any time one of them would hinder that other connection.
pub fn is_in_the_way(attachment: &Attachment) -> bool {
    !RESTARTING.get() && attachment.restart_turn().is_taken()
}

/// Returns whether a transaction that has just got WRITE should wait for room. It should if the log is nearly
/// full and can soon start over, that is, if no reader stays long. The connection then gets *busy*, and
/// begins its transaction again. The first connection that does so starts the log over.
///
/// If [`start_over_if_due`] leaves it to SQLite to start the log over, the answer is `false`: SQLite starts
/// the log over once it has WRITE.
pub fn must_make_room(db: &Db, attachment: &Attachment, holder: &Holder) -> bool {
    let room = attachment.room();
    if !room.is_scarce() || !holder.is_reading() || RESTARTING.get() || is_worker() {
        return false;
    }
    if is_left_to_sqlite(db) {
        return false;
    }
    // Another process may have started the log over.
    look_at_room(attachment);
    let waits = room.is_scarce() && !reader_stays(attachment);
    if waits {
        // No reason is recorded for this refusal, because the connection begins its transaction again.
        attachment.count(Counter::RoomWaits);
        waiting::for_room();
    }
    waits
}

/// Learns how much room is left after the commits of all processes.
fn look_at_room(attachment: &Attachment) {
    let mut log = attachment.log();
    // Ignore an error here, because the next write meets the error too, and reports it.
    if log.db_pages().is_ok() {
        let (fill, is_short) = log.fill();
        attachment.room().seen(fill, is_short);
    }
}

fn reader_stays(attachment: &Attachment) -> bool {
    attachment.locks().readers().is_ok_and(|(_, oldest)| oldest >= STAYS)
}

/// Starts the log over. If `is_patient`, waits for connections that prevent it. If `is_urgent`, also asks
/// long-running write transactions to end. Returns whether the log will start over.
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
    // This checkpoint writes most of the log to the database file while the writers continue.
    own.run(c"PRAGMA wal_checkpoint(PASSIVE)")?;
    // Sync the file here, while writers continue, so that the sync of the second checkpoint is short. (The
    // first checkpoint has synced the file only if it could write all frames.)
    if !db.has_home() && !attachment.home_is_synced() && db.sync(ffi::SYNC_NORMAL) != ffi::OK {
        return Ok(false);
    }
    let _gate = is_patient.then(|| Gate::close(attachment, is_urgent)).flatten();
    let start = Instant::now();
    loop {
        if own.run(c"PRAGMA wal_checkpoint(RESTART)")? == Some(0) {
            return Ok(true);
        }
        // SQLite has waited for readers, but does not wait for a checkpoint that is already running. So try
        // again.
        if own.gave_up() || start.elapsed() >= try_for {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}

/// A value that keeps transactions of concurrent connections from beginning while it exists, for at most
/// [`GATE_NS`].
struct Gate<'a> {
    attachment: &'a Attachment,
    turn: u64,
}

impl<'a> Gate<'a> {
    /// Closes the gate, and waits until all transactions that were open have ended, for at most [`STAYS`]. If
    /// `is_urgent`, asks a transaction to end if it began to write more than [`STAYS`] ago.
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

/// Returns whether some process has held a read mark since before this moment.
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
