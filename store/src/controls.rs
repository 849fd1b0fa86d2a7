//! Rules that a test breaks, to show that other tests notice the breach. Without the feature `controls` no rule can be
//! broken.

#[cfg(feature = "controls")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// A transaction that reads a range locks it.
    RangeLocks = 1,
    /// A transaction that reads a row waits for transactions that change it.
    NoDirtyReads,
    /// A transaction holds its locks until its commit is in the log.
    LockUntilLogged,
    /// A transaction notes the old version of a row for snapshots before it changes the row.
    NoteVersions,
    /// The first snapshot notes what transactions in progress have changed.
    NoteWhatWasChanged,
    /// For snapshots, a transaction ends before it releases its locks.
    EndBeforeRelease,
    /// A snapshot shows the old version of a row that was changed since.
    LookAtVersions,
    /// A page is written home only after its image is in the double-write area.
    DoubleWrite,
    /// The double-write area is durable before its pages are written home.
    FlushDoubleWrite,
    /// Pages are durable at home before the double-write area is written again, and before their log is given up.
    FlushHome,
    /// Opening a store repairs torn pages.
    RestoreTorn,
    /// A page is written home only after everything in it is durable in the log.
    LogBeforePages,
    /// A page that changes while it is written home is written home again.
    ChangedMeanwhile,
    /// A dirty page is not evicted.
    DirtyStays,
    /// The log keeps everything from the oldest change on that is not home.
    ChangesHoldLog,
    /// The log keeps everything from the oldest open transaction on.
    OpenHoldsLog,
    /// The ends of transactions are durable before the log of their changes is given up.
    EndsBeforeGivingUp,
    /// Recovery redoes the changes that a page lacks.
    Redo,
    /// Recovery does not redo a change that a page already has.
    RedoOnce,
    /// Recovery undoes transactions that did not commit.
    TakeBack,
    /// Recovery does not undo a step twice.
    TakeBackOnce,
    /// Recovery undoes the newest step first.
    NewestFirst,
    /// Recovery frees the chains of long values that a committed transaction replaced or removed.
    FinishCommitted,
    /// The undo of a new table frees the table's root after the pages below it.
    EmptyTree,
}

/// Which rule is broken.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    #[cfg(feature = "controls")]
    broken: AtomicU8,
}

#[cfg(feature = "controls")]
impl Controls {
    /// Breaks this rule from the beginning on.
    pub(crate) fn breaking(rule: Option<Rule>) -> Self {
        Self { broken: AtomicU8::new(rule.map_or(0, |rule| rule as u8)) }
    }

    /// Whether a rule is kept.
    pub(crate) fn keep(&self, rule: Rule) -> bool {
        self.broken.load(Ordering::Relaxed) != rule as u8
    }

    /// Breaks this rule from now on, and no other.
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
