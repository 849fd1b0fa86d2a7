//! The size of a log: what a process knows about it, when it is time to make room or to start the log over,
//! and which connection has the turn to do so (invariant 10).
//!
//! A checkpoint makes room, because the log can start over after it. SQLite checkpoints when the log has a
//! certain number of frames. From the size at which connections begin to checkpoint, [`Bound`] learns how
//! large a log the application wants. If no connection ever checkpoints (`wal_autocheckpoint=0`), the
//! application itself has to bound the log. A small log may be full before it has the number of frames at
//! which SQLite checkpoints; [`Room`] watches for that.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use duralite_medium::{PROCESS_SLOTS, Segment};
use duralite_wal::engine::Fill;

/// The log counts as too large when it has grown to this many times its number of frames at the first
/// checkpoint.
const FACTOR: u32 = 4;
/// The number of frames below which a log never counts as too large.
const LEAST_FRAMES: u32 = 1000;

/// What a process knows about the size of a log.
#[derive(Default)]
pub struct Bound {
    /// The number of committed frames that this process saw last.
    frames: AtomicU32,
    /// The number of frames that the log had when a connection first checkpointed after the log last started
    /// over; 0 if no connection has.
    checkpointed: AtomicU32,
    /// The number of frames above which the next attempt to start the log over is due; 0 if no attempt was
    /// postponed since the log last started over.
    postponed: AtomicU32,
    /// The number of frames that the log had when a concurrent connection last tried to checkpoint it after a
    /// commit; 0 if none has since the log last started over.
    tried: AtomicU32,
    /// The number of attempts to start the log over that have failed because a reader stayed, since the log
    /// last started over.
    failures: AtomicU32,
}

/// If this many attempts to start the log over have failed because a reader stayed, the next attempt asks
/// long-running write transactions to end.
const PATIENT_TRIES: u32 = 3;

impl Bound {
    /// Notes how many frames are committed.
    pub fn committed(&self, frames: u32) {
        if self.frames.swap(frames, Ordering::Relaxed) > frames {
            self.checkpointed.store(0, Ordering::Relaxed);
            self.postponed.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
            self.tried.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a concurrent connection should checkpoint after a commit. `frames` is the number of
    /// frames at which the connection's settings ask for a checkpoint. After one attempt, the next is due
    /// when the log has grown by another quarter of `frames`.
    pub fn is_due(&self, frames: u32) -> bool {
        let (now, tried) = (self.frames.load(Ordering::Relaxed), self.tried.load(Ordering::Relaxed));
        let next = if tried == 0 { frames } else { tried.saturating_add(frames / 4).max(frames) };
        now >= next && self.tried.compare_exchange(tried, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes the number of frames that the wal-index gives. All processes see that number, so it shows
    /// whether another process has started the log over. A commit that was just sealed appears in the
    /// wal-index a moment later, which does not matter here.
    pub fn indexed(&self, frames: u32) {
        if frames < self.checkpointed.load(Ordering::Relaxed) {
            self.committed(frames);
        }
    }

    /// Notes that a connection begins to checkpoint.
    pub fn checkpoints(&self) {
        let frames = self.frames.load(Ordering::Relaxed).max(1);
        let _ = self.checkpointed.compare_exchange(0, frames, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the number of frames above which the log is too large, or `None` if no connection has
    /// checkpointed the log since it last started over.
    fn limit(&self) -> Option<u32> {
        match self.checkpointed.load(Ordering::Relaxed) {
            0 => None,
            begun => Some(begun.saturating_mul(FACTOR).max(LEAST_FRAMES)),
        }
    }

    /// Returns whether it is time to start the log over.
    pub fn is_outgrown(&self) -> bool {
        let postponed = self.postponed.load(Ordering::Relaxed);
        self.limit().is_some_and(|limit| self.frames.load(Ordering::Relaxed) > limit.max(postponed))
    }

    /// Returns whether a connection should ask long-running write transactions to end, because too many
    /// attempts to start the log over have failed while a reader stays.
    pub fn is_far_outgrown(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= PATIENT_TRIES
    }

    /// Notes that a connection has asked followers to read the log to its end. The next attempt to start the
    /// log over is due when the log has grown by another sixteenth of its limit.
    pub fn wait_for_followers(&self) {
        let distance = self.limit().unwrap_or(LEAST_FRAMES) / 16;
        let frames = self.frames.load(Ordering::Relaxed);
        self.postponed.store(frames.saturating_add(distance), Ordering::Relaxed);
    }

    /// Notes a failed attempt to start the log over. If a reader stays, the log must grow further before the
    /// next attempt is due. If many short readers prevented the attempt, the next attempt is due soon,
    /// because such readers come and go.
    pub fn postpone(&self, reader_stays: bool) {
        let limit = self.limit().unwrap_or(LEAST_FRAMES);
        let distance = if reader_stays {
            limit.saturating_mul(1 << self.failures.fetch_add(1, Ordering::Relaxed).min(5))
        } else {
            limit / 4
        };
        let frames = self.frames.load(Ordering::Relaxed);
        self.postponed.store(frames.saturating_add(distance), Ordering::Relaxed);
    }
}

/// After a failed attempt to make room, connections fill another part of the log before the next attempt is
/// due. The size of that part is the log's limit divided by this number.
const DISTANCE: u64 = 8;
/// An attempt to make room may wait for other connections. If it has waited in vain, later attempts do not
/// wait until this time, in nanoseconds, has passed, or until another eighth of the log has been filled.
/// Without this limit every transaction could wait: once a write has found no room, each transaction makes an
/// attempt when it begins.
const PATIENT_EVERY_NS: u64 = 1_000_000_000;

/// What a process knows about the room in a log.
#[derive(Default)]
pub struct Room {
    /// The number of bytes in use after the newest commit of this process.
    used: AtomicU64,
    limit: AtomicU64,
    /// Whether the engine wants the log to start over.
    is_short: AtomicBool,
    /// Whether a write has found no room since the last successful attempt to make room.
    is_refused: AtomicBool,
    /// The next attempt to make room is due when this many bytes are in use.
    postponed: AtomicU64,
    /// The time, in nanoseconds, of the last failed attempt to make room that waited for other connections. 0
    /// if there has been none since the last successful attempt.
    patient_at: AtomicU64,
}

impl Room {
    /// Notes how much is in use, and whether the engine is short of room.
    pub fn seen(&self, fill: Fill, is_short: bool) {
        self.used.store(fill.used_bytes, Ordering::Relaxed);
        self.limit.store(fill.limit_bytes, Ordering::Relaxed);
        self.is_short.store(is_short, Ordering::Relaxed);
        if !is_short {
            self.postponed.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a write has found no room.
    pub fn refused(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Returns whether it is time to make room.
    pub fn is_wanted(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed) || self.is_due()
    }

    fn is_due(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
            && self.used.load(Ordering::Relaxed) >= self.postponed.load(Ordering::Relaxed)
    }

    /// Returns whether so little room is left that a writer has to wait until a connection has made room.
    /// Returns `false` after a failed attempt to make room, until the next one is due.
    pub fn is_scarce(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.is_due() && self.used.load(Ordering::Relaxed) >= limit / 4 * 3
    }

    /// Returns whether an attempt to make room at this time may wait for connections that prevent it.
    pub fn is_patient(&self, now_ns: u64) -> bool {
        let last = self.patient_at.load(Ordering::Relaxed);
        last == 0 || self.is_due() || now_ns.saturating_sub(last) >= PATIENT_EVERY_NS
    }

    /// Notes that the next write finds room.
    pub fn made(&self) {
        self.is_refused.store(false, Ordering::Relaxed);
        self.is_short.store(false, Ordering::Relaxed);
        self.patient_at.store(0, Ordering::Relaxed);
    }

    /// Notes a failed attempt to make room. `patient_at` is the time of the attempt, if the attempt waited
    /// for other connections.
    pub fn postpone(&self, patient_at: Option<u64>) {
        let distance = self.limit.load(Ordering::Relaxed) / DISTANCE;
        let used = self.used.load(Ordering::Relaxed);
        self.postponed.store(used.saturating_add(distance), Ordering::Relaxed);
        if let Some(now_ns) = patient_at {
            self.patient_at.store(now_ns.max(1), Ordering::Relaxed);
        }
    }
}

/// The lowest bits of a turn's word, which hold the slot of the process that has the turn. The other bits are
/// the time in nanoseconds at which the turn ends. Without the lowest bits, that time is less than a
/// microsecond too early.
const SLOT: u64 = PROCESS_SLOTS as u64 - 1;
const _: () = assert!(PROCESS_SLOTS.is_power_of_two());

/// A turn, in a word of the memory that the users of a log share. At most one connection among all processes
/// has the turn, until the turn's time is up or the connection's process is dead.
pub struct TimedTurn<'a> {
    pub segment: &'a dyn Segment,
    /// The position of the word in the segment, in bytes.
    pub word: u64,
}

impl TimedTurn<'_> {
    /// Takes the turn for this thread, for at most `limit_ns` nanoseconds. Returns the word with which
    /// [`Self::end`] ends the turn, or `None` if the thread did not get the turn.
    pub fn take(&self, limit_ns: u64) -> Option<u64> {
        let found = self.segment.load(self.word);
        let until = self.segment.clock_ns().saturating_add(limit_ns) & !SLOT;
        let turn = until | (self.segment.process_slot() as u64 & SLOT);
        (!self.is_held(found) && self.segment.compare_exchange(self.word, found, turn).is_ok())
            .then_some(turn)
    }

    /// Returns whether a connection has the turn.
    pub fn is_taken(&self) -> bool {
        self.is_held(self.segment.load(self.word))
    }

    /// Ends the turn. Does nothing if the turn's time is up and another connection has taken the turn.
    pub fn end(&self, turn: u64) {
        let _ = self.segment.compare_exchange(self.word, turn, 0);
    }

    /// Returns whether the turn in this word still lasts. If the kernel does not tell whether the turn's
    /// process lives, the process counts as alive.
    fn is_held(&self, word: u64) -> bool {
        let is_on = word != 0 && word & !SLOT > self.segment.clock_ns();
        is_on && self.segment.is_alive((word & SLOT) as usize).unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use duralite_medium::LocalSegment;
    use duralite_wal::placement::RESTART_UNTIL;

    use super::*;

    #[test]
    fn a_bound_goes_by_when_checkpoints_begin() {
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
        bound.postpone(false);
        assert!(!bound.is_outgrown());
        bound.committed(10001);
        assert!(!bound.is_outgrown());
        bound.committed(10002);
        assert!(bound.is_outgrown());
        (0..20).for_each(|_| bound.postpone(false));
        assert!(!bound.is_outgrown());
        bound.committed(12003);
        assert!(bound.is_outgrown(), "a crowd is in the way again and again");
        bound.postpone(true);
        bound.committed(20003);
        assert!(!bound.is_outgrown());
        bound.committed(20004);
        assert!(bound.is_outgrown());
        bound.indexed(20003);
        assert!(bound.is_outgrown(), "the newest is not there yet");
        bound.indexed(1);
        assert!(!bound.is_outgrown(), "another process has started it over");
        bound.checkpoints();
        bound.committed(900);
        assert!(!bound.is_outgrown(), "small logs are in nobody's way");
    }

    #[test]
    fn a_try_in_vain_raises_no_bound() {
        let bound = Bound::default();
        bound.committed(1000);
        bound.checkpoints();
        bound.committed(4001);
        assert!(bound.is_outgrown());
        // Followers were asked, and answer soon.
        bound.wait_for_followers();
        bound.committed(4251);
        assert!(!bound.is_outgrown());
        bound.committed(4252);
        assert!(bound.is_outgrown());
        // A checkpoint succeeded, but then a connection appended to the log and did not start it over.
        bound.postpone(false);
        bound.checkpoints();
        bound.committed(5253);
        assert!(bound.is_outgrown(), "the bound is that of the first checkpoint");
        bound.committed(1);
        bound.checkpoints();
        bound.committed(1001);
        assert!(bound.is_outgrown(), "and after a start over, of the first one since");
    }

    fn seen(room: &Room, used_bytes: u64) {
        room.seen(Fill { used_bytes, limit_bytes: 800 }, used_bytes >= 400);
    }

    #[test]
    fn room_is_made_in_time_and_after_a_refusal() {
        let room = Room::default();
        seen(&room, 399);
        assert!(!room.is_wanted());
        room.refused();
        assert!(room.is_wanted(), "a transaction was larger than what was left");
        room.made();
        assert!(!room.is_wanted());
        seen(&room, 400);
        assert!(room.is_wanted());
        assert!(room.is_patient(7));
        room.postpone(Some(7));
        seen(&room, 499);
        assert!(!room.is_wanted());
        seen(&room, 500);
        assert!(room.is_wanted() && !room.is_scarce());
        assert!(room.is_patient(8), "it was filled further");
        room.postpone(Some(8));
        assert!(!room.is_wanted());
        room.refused();
        assert!(room.is_wanted() && !room.is_patient(9));
        room.postpone(None);
        assert!(room.is_wanted(), "until there is room");
        assert!(room.is_patient(8 + PATIENT_EVERY_NS));
        room.made();
        assert!(!room.is_wanted() && room.is_patient(9));
        seen(&room, 600);
        assert!(room.is_scarce());
        room.postpone(None);
        assert!(!room.is_scarce(), "it is used up rather than waited for");
        seen(&room, 700);
        assert!(room.is_scarce(), "which is tried once more");
        room.made();
        assert!(!room.is_scarce());
        seen(&room, 10);
        seen(&room, 400);
        assert!(room.is_wanted(), "it has started over meanwhile");
    }

    const LONG: u64 = 1_000_000_000_000;

    #[test]
    fn a_turn_is_one_threads_until_it_ends() {
        let segment = LocalSegment::new(4096);
        let turns = TimedTurn { segment: &segment, word: RESTART_UNTIL };
        assert!(!turns.is_taken());
        let turn = turns.take(LONG).unwrap();
        assert!(turns.is_taken() && turns.take(LONG).is_none());
        turns.end(turn ^ 1 << 40);
        assert!(turns.is_taken(), "that was another one");
        turns.end(turn);
        assert!(!turns.is_taken() && turns.take(LONG).is_some());
    }

    #[test]
    fn a_turn_that_ran_out_is_free_and_so_is_that_of_a_dead_process() {
        let segment = LocalSegment::new(4096);
        let turns = TimedTurn { segment: &segment, word: RESTART_UNTIL };
        turns.take(0).unwrap();
        let next = turns.take(LONG).unwrap();
        assert!(turns.is_taken());
        // Only the first slot's process lives here.
        segment.store(RESTART_UNTIL, next | 5);
        assert!(!turns.is_taken(), "its process has died");
        assert!(turns.take(LONG).is_some());
    }
}
