//! Whether and when a transaction has ended, as snapshots see it.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The transaction has not ended, and nothing that it has changed is noted.
const OPEN: u64 = 0;
/// The transaction has ended, and nothing was noted, because no snapshot was open.
const UNNOTED: u64 = 1;
/// The transaction has not ended, and its changes are noted. This is later than every moment.
const PENDING: u64 = u64::MAX;
/// The first moment; smaller numbers have another meaning.
pub(super) const FIRST_MOMENT: u64 = 2;

/// Whether a transaction has ended, and at which moment. It does not matter whether it committed or was rolled back.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU64);

impl Fate {
    /// Marks the transaction's changes as noted. Returns whether that was in time, before the transaction ended.
    pub(crate) fn is_noted(&self) -> bool {
        match self.0.compare_exchange(OPEN, PENDING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(now) => now == PENDING,
        }
    }

    /// Ends the transaction if nothing was noted. Returns whether that was so.
    pub(super) fn end_unnoted(&self) -> bool {
        self.0.compare_exchange(OPEN, UNNOTED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Ends the transaction at a moment.
    pub(super) fn end(&self, moment: u64) {
        debug_assert_eq!(self.moment(), PENDING, "a transaction ends once, and was noted");
        self.0.store(moment, Ordering::SeqCst);
    }

    /// Whether the transaction is noted and has not ended.
    pub(super) fn is_pending(&self) -> bool {
        self.moment() == PENDING
    }

    /// The moment at which the transaction ended; later than every moment if it has not ended.
    pub(super) fn moment(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
