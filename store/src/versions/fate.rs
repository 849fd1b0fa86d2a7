//! Whether and when a transaction ended, from the point of view of snapshots.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The state of an open transaction, if none of its changes is noted.
const OPEN: u64 = 0;
/// The state of a transaction that has ended without noting anything, because no snapshot was open.
const UNNOTED: u64 = 1;
/// The state of an open transaction whose changes are noted. Compared with moments, this value is later than all of
/// them.
const PENDING: u64 = u64::MAX;
/// The first moment. The smaller numbers are the states above.
pub(super) const FIRST_MOMENT: u64 = 2;

/// Whether a transaction has ended, and at which moment. For snapshots it makes no difference whether it committed or
/// was rolled back.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU64);

impl Fate {
    /// Marks the transaction as one whose changes are noted. Returns false if it had already ended.
    pub(crate) fn is_noted(&self) -> bool {
        match self.0.compare_exchange(OPEN, PENDING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(now) => now == PENDING,
        }
    }

    /// Ends the transaction, if none of its changes was noted. Returns whether it has ended the transaction.
    pub(super) fn end_unnoted(&self) -> bool {
        self.0.compare_exchange(OPEN, UNNOTED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Ends the transaction at a moment.
    pub(super) fn end(&self, moment: u64) {
        debug_assert_eq!(self.moment(), PENDING, "a transaction ends once, and was noted");
        self.0.store(moment, Ordering::SeqCst);
    }

    /// Returns whether the transaction is open, and its changes are noted.
    pub(super) fn is_pending(&self) -> bool {
        self.moment() == PENDING
    }

    /// Returns the moment at which the transaction ended; a value later than all moments if it is still open and noted.
    pub(super) fn moment(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
