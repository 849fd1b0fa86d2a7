//! How often this process looks whether a log was deleted.

use std::sync::atomic::{AtomicU64, Ordering};

/// The time between two looks. Commits in between cost no system call, and are acknowledged although the log
/// may be gone.
const INTERVAL_NS: u64 = 100_000_000;

/// When this process last looked, and when it last wrote home what was in a deleted log, by the segment's
/// clock.
#[derive(Default)]
pub struct Looks {
    looked_ns: AtomicU64,
    saved_ns: AtomicU64,
}

/// Whether it is time. Of the threads that ask at the same time one gets `true`.
fn is_due(last: &AtomicU64, now_ns: u64) -> bool {
    let before = last.load(Ordering::Relaxed);
    now_ns.saturating_sub(before) >= INTERVAL_NS
        && last.compare_exchange(before, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

impl Looks {
    /// Whether this thread is to look now.
    pub fn is_due(&self, now_ns: u64) -> bool {
        is_due(&self.looked_ns, now_ns)
    }

    /// Whether this thread is to write home now what is in a deleted log.
    pub fn is_to_be_saved(&self, now_ns: u64) -> bool {
        is_due(&self.saved_ns, now_ns)
    }
}
