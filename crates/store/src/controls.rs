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
    /// A page goes home after its image is in the double-write area.
    DoubleWrite,
    /// What the double-write area has is durable before the pages are written home.
    FlushDoubleWrite,
    /// Pages are durable at home before the double-write area is written again, and their log is given up.
    FlushHome,
    /// Whoever opens a store puts pages right that were torn.
    RestoreTorn,
    /// A page goes home once everything in it is durable in the log.
    LogBeforePages,
    /// A page that is changed while it goes home has to go again.
    ChangedMeanwhile,
    /// A page that is not as it is at home does not leave the cache.
    DirtyStays,
    /// The log is kept from the oldest change on that is not home.
    ChangesHoldLog,
    /// The log is kept from the oldest transaction on that is not over.
    OpenHoldsLog,
    /// How transactions ended is durable before what they did is given up of the log.
    EndsBeforeGivingUp,
    /// Recovery makes the changes that a page does not have.
    Redo,
    /// Recovery makes no change again that a page has.
    RedoOnce,
    /// Recovery takes back what did not commit.
    TakeBack,
    /// What has been taken back is not taken back again.
    TakeBackOnce,
    /// What was done last is taken back first.
    NewestFirst,
    /// Recovery gives back the chains of long values that a transaction which has committed gave up.
    FinishCommitted,
    /// The root of a table that is not made after all is given back after what is below it.
    EmptyTree,
}

/// Which rules are broken.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    #[cfg(feature = "controls")]
    broken: AtomicU8,
}

#[cfg(feature = "controls")]
impl Controls {
    /// With this rule broken from the beginning on.
    pub(crate) fn breaking(rule: Option<Rule>) -> Self {
        Self { broken: AtomicU8::new(rule.map_or(0, |rule| rule as u8)) }
    }

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
