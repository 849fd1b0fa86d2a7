//! When SQLite began to write a connection's transaction.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time of the segment's clock.
///
/// The latency of a commit is counted from here: from the first page that SQLite hands over at the commit.
/// Before that SQLite has not begun to commit: the transaction's statements run, or the application does
/// something else. Only a transaction that outgrows SQLite's cache hands pages over earlier, and is counted
/// from the first of them.
#[derive(Default)]
pub struct CommitClock {
    /// In nanoseconds; 0 while nothing has been written since the last commit.
    began: AtomicU64,
    /// The offset in the WAL of the last write that asked for the time.
    offset: AtomicU64,
}

impl CommitClock {
    /// Notes that SQLite writes at this offset of the WAL. Asks for the time only at the first write after a
    /// commit, and at a write over what was written before. That was rolled back, and SQLite says nothing of
    /// it in exclusive locking mode. Returns the time if it has asked: then a transaction begins to commit.
    pub fn written(&self, offset: u64, clock_ns: impl FnOnce() -> u64) -> Option<u64> {
        if self.began.load(Ordering::Relaxed) != 0 && offset > self.offset.load(Ordering::Relaxed) {
            return None;
        }
        let now_ns = clock_ns();
        self.began.store(now_ns, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
        Some(now_ns)
    }

    /// The writes are committed. Returns when they began.
    pub fn committed(&self) -> u64 {
        let began = self.began.load(Ordering::Relaxed);
        self.forget();
        began
    }

    /// Another transaction begins, and the writes so far are not committed.
    pub fn forget(&self) {
        self.began.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_counted_from_its_own_first_write() {
        let clock = CommitClock::default();
        for (offset, now) in [(32, 10), (4152, 11), (8272, 12)] {
            clock.written(offset, || now);
        }
        assert_eq!(clock.committed(), 10);
        clock.written(12_392, || 20);
        clock.written(16_512, || 21);
        // The transaction was rolled back. The next one begins at the same place, much later.
        clock.written(12_392, || 90);
        clock.written(16_512, || 91);
        assert_eq!(clock.committed(), 90);
        // The log has started over.
        clock.written(32, || 95);
        assert_eq!(clock.committed(), 95);
    }
}
