//! When SQLite began to write the transaction of a connection.

use std::sync::atomic::{AtomicU64, Ordering};

/// A time of the segment's clock in nanoseconds; 0 while nothing has been written since the last commit.
///
/// The latency of a commit is counted from here: from the first page that SQLite hands over at the commit. Before that it
/// has not begun to commit: the statements of the transaction run, or the application does something else. Only
/// a transaction that outgrows SQLite's cache hands pages over earlier, and is counted from the first of them.
#[derive(Default)]
pub struct CommitClock(AtomicU64);

impl CommitClock {
    /// SQLite writes. Only the first time after the last commit asks for the time.
    pub fn written(&self, clock_ns: impl FnOnce() -> u64) {
        if self.0.load(Ordering::Relaxed) == 0 {
            self.0.store(clock_ns(), Ordering::Relaxed);
        }
    }

    /// What was written is committed: when that began.
    pub fn committed(&self) -> u64 {
        let began = self.0.load(Ordering::Relaxed);
        self.forget();
        began
    }

    /// Another transaction begins; what was written is not committed.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
