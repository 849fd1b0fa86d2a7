//! What a process knows of a log's size, and when the log is too large (invariant 10).
//!
//! The size at which connections begin to checkpoint shows how large a log the application wants. If no
//! connection ever checkpoints (`wal_autocheckpoint=0`), bounding the log is left to the application.

use std::sync::atomic::{AtomicU32, Ordering};

/// By how much the log may outgrow the number of frames at which checkpoints begin.
const FACTOR: u32 = 4;
/// A log of fewer frames never counts as too large.
const LEAST_FRAMES: u32 = 1000;
/// What a process knows of the size of a log.
#[derive(Default)]
pub struct Bound {
    /// Committed frames, as last seen here.
    frames: AtomicU32,
    /// How many frames the log had when a connection first checkpointed after the log last started over; 0 if
    /// none has.
    checkpointed: AtomicU32,
    /// The number of frames at which to try again, after a try in vain.
    postponed: AtomicU32,
    /// How many tries in a row were in vain because a reader stayed.
    failures: AtomicU32,
}

impl Bound {
    /// Notes how many frames are committed.
    pub fn committed(&self, frames: u32) {
        if self.frames.swap(frames, Ordering::Relaxed) > frames {
            self.checkpointed.store(0, Ordering::Relaxed);
            self.postponed.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Notes how many frames the wal-index has, as all processes see it: another process may have started the
    /// log over. A commit that is just sealed appears there a moment later. That difference does not matter.
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

    /// The number of frames above which the log is too large; `None` where no connection checkpoints.
    fn limit(&self) -> Option<u32> {
        match self.checkpointed.load(Ordering::Relaxed) {
            0 => None,
            begun => Some(begun.saturating_mul(FACTOR).max(LEAST_FRAMES)),
        }
    }

    /// Whether it is time to start the log over.
    pub fn is_outgrown(&self) -> bool {
        let postponed = self.postponed.load(Ordering::Relaxed);
        self.limit().is_some_and(|limit| self.frames.load(Ordering::Relaxed) > limit.max(postponed))
    }

    /// Notes a try in vain. If a reader stays, the next tries come at ever longer distances. If a crowd of
    /// readers was in the way, which comes and goes, the next try comes soon.
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
}
