//! What has become of a transaction, as snapshots see it.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Nothing has become of it, and nothing of what it has changed is noted.
const OPEN: u64 = 0;
/// It is over, and nothing was noted: no snapshot was open.
const UNNOTED: u64 = 1;
/// Nothing has become of it yet, and what it changes is noted. Later than each moment.
const PENDING: u64 = u64::MAX;
/// The first moment; those before stand for something else.
pub(super) const FIRST_MOMENT: u64 = 2;

/// Whether a transaction is over, and at which moment it ended, committed or taken back.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU64);

impl Fate {
    /// Says that what it changes is noted; whether that was in time, before it was over.
    pub(crate) fn is_noted(&self) -> bool {
        match self.0.compare_exchange(OPEN, PENDING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(now) => now == PENDING,
        }
    }

    /// Ends if nothing was noted.
    pub(super) fn end_unnoted(&self) -> bool {
        self.0.compare_exchange(OPEN, UNNOTED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Ends at a moment.
    pub(super) fn end(&self, moment: u64) {
        debug_assert_eq!(self.moment(), PENDING, "a transaction ends once, and was noted");
        self.0.store(moment, Ordering::SeqCst);
    }

    /// Whether it has not ended.
    pub(super) fn is_pending(&self) -> bool {
        self.moment() == PENDING
    }

    /// When it ended; later than each moment if it has not.
    pub(super) fn moment(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
