//! Rules that the store must keep. A test can break one of them on purpose, to show that the store's other tests would
//! notice such a mistake. Without the feature `controls` no rule can be broken.

#[cfg(feature = "controls")]
use std::sync::atomic::{AtomicU8, Ordering};

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// A transaction that reads a range locks it.
    RangeLocks = 1,
    /// A transaction that reads a row waits for every transaction that has changed it.
    NoDirtyReads,
    /// A transaction holds its locks until its commit is in the log.
    LockUntilLogged,
    /// Before a transaction changes a row, it notes the row's old version for snapshots.
    NoteVersions,
    /// The first snapshot notes the old versions of the rows that transactions in progress have already changed.
    NoteWhatWasChanged,
    /// Before a transaction releases its first lock, it records for snapshots that it has ended. Snapshots that are
    /// opened after that show its changes.
    EndBeforeRelease,
    /// If a row was changed after a snapshot was opened, the snapshot shows the row's old version.
    LookAtVersions,
    /// A page is written home only after its image is in the double-write area.
    DoubleWrite,
    /// The double-write area is flushed before its pages are written home.
    FlushDoubleWrite,
    /// Pages written home are flushed before the double-write area is written again. They are also flushed before the
    /// log objects of their changes are discarded.
    FlushHome,
    /// Opening a store repairs torn pages.
    RestoreTorn,
    /// A page is written home only after the log objects of all its changes are durable.
    LogBeforePages,
    /// A page that changes while it is being written home stays dirty, and is written home again.
    ChangedMeanwhile,
    /// A dirty page is not evicted.
    DirtyStays,
    /// The log keeps the object of the oldest change that the page file lacks, and every later object.
    ChangesHoldLog,
    /// The log keeps the oldest object that an open transaction may need, and every later object.
    OpenHoldsLog,
    /// The commit or rollback of a transaction is durable before the log objects of its changes are discarded.
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

/// The rule that is broken, if any.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    #[cfg(feature = "controls")]
    broken: AtomicU8,
}

#[cfg(feature = "controls")]
impl Controls {
    /// Returns controls that break this rule from the start.
    pub(crate) fn breaking(rule: Option<Rule>) -> Self {
        Self { broken: AtomicU8::new(rule.map_or(0, |rule| rule as u8)) }
    }

    /// Returns whether a rule is kept.
    pub(crate) fn keep(&self, rule: Rule) -> bool {
        self.broken.load(Ordering::Relaxed) != rule as u8
    }

    /// Breaks this rule from now on, and keeps all others.
    pub(crate) fn break_rule(&self, rule: Rule) {
        self.broken.store(rule as u8, Ordering::Relaxed);
    }
}

#[cfg(not(feature = "controls"))]
impl Controls {
    /// Returns whether a rule is kept.
    #[expect(clippy::unused_self, reason = "with the feature there is something to look at")]
    pub(crate) fn keep(&self, _rule: Rule) -> bool {
        true
    }
}
