//! What a process knows of the room that is left in a log, and when it is time to make some (invariant 10).
//!
//! A checkpoint, after which the log starts over, makes room. SQLite runs one when the log has a certain
//! number of frames. A small log may never have that many, and with `wal_autocheckpoint=0` SQLite runs none
//! at all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use duralite_wal::engine::Fill;

/// After a try in vain the next one comes when this part of the log has been filled since.
const DISTANCE: u64 = 8;
/// After a write has found no room, each transaction that begins makes a try. Only one of them per this time
/// waits for connections that are in the way.
const PATIENT_EVERY_NS: u64 = 1_000_000_000;

/// What a process knows of the room in a log.
#[derive(Default)]
pub struct Room {
    /// Bytes in use after the newest commit of this process.
    used: AtomicU64,
    limit: AtomicU64,
    /// Whether the engine wants to start over.
    is_short: AtomicBool,
    /// Whether a write has found no room since room was last made.
    is_refused: AtomicBool,
    /// The number of bytes in use at which to try again.
    postponed: AtomicU64,
    /// When a try last waited for others, in vain; 0 if none has since there was room.
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

    /// Whether it is time to make room.
    pub fn is_wanted(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed) || self.is_due()
    }

    fn is_due(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
            && self.used.load(Ordering::Relaxed) >= self.postponed.load(Ordering::Relaxed)
    }

    /// Whether so little is left that a writer has to wait until room has been made. `false` after a try in
    /// vain.
    pub fn is_scarce(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.is_due() && self.used.load(Ordering::Relaxed) >= limit / 4 * 3
    }

    /// Whether a try at this time may wait for connections that are in the way.
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

    /// Notes a try in vain: a reader holds what would have to go. `patient_at` is the time of the try, if it
    /// waited for others.
    pub fn postpone(&self, patient_at: Option<u64>) {
        let distance = self.limit.load(Ordering::Relaxed) / DISTANCE;
        let used = self.used.load(Ordering::Relaxed);
        self.postponed.store(used.saturating_add(distance), Ordering::Relaxed);
        if let Some(now_ns) = patient_at {
            self.patient_at.store(now_ns.max(1), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(room: &Room, used_bytes: u64) {
        room.seen(Fill { used_bytes, limit_bytes: 800 }, used_bytes >= 400);
    }

    #[test]
    fn it_is_made_in_time_and_after_a_refusal() {
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
}
