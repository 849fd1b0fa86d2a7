//! Rules that a test breaks, to see that breaking them is noticed. Without the feature `controls` none can be broken.

#[cfg(feature = "controls")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// Whoever reads a range locks it.
    RangeLocks = 1,
    /// Whoever reads a row waits for those who change it.
    NoDirtyReads,
    /// Locks are held until the commit has its place in the log.
    LockUntilLogged,
    /// What a row was is noted for snapshots before it is changed.
    NoteVersions,
    /// The first snapshot notes what transactions in progress have changed.
    NoteWhatWasChanged,
    /// For snapshots a transaction ends before it releases its locks.
    EndBeforeRelease,
    /// Of a row that was changed a snapshot shows what it was.
    LookAtVersions,
}

/// Which rules are broken.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    #[cfg(feature = "controls")]
    broken: AtomicU8,
}

#[cfg(feature = "controls")]
impl Controls {
    /// Whether a rule is kept.
    pub(crate) fn keep(&self, rule: Rule) -> bool {
        self.broken.load(Ordering::Relaxed) != rule as u8
    }

    /// From now on this rule, and no other, is broken.
    pub(crate) fn break_rule(&self, rule: Rule) {
        self.broken.store(rule as u8, Ordering::Relaxed);
    }
}

#[cfg(not(feature = "controls"))]
impl Controls {
    /// Whether a rule is kept.
    #[expect(clippy::unused_self, reason = "with the feature there is something to look at")]
    pub(crate) fn keep(&self, _rule: Rule) -> bool {
        true
    }
}
