//! Rules that a test can break on purpose, to show that other tests notice. Without the feature `controls` nobody can
//! break a rule.

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A claim is created only if there is none.
    ClaimIsCreated,
    /// A new primary lists the archive after it has its claim.
    ListAfterClaim,
    /// A primary looks for a later claim before it acknowledges.
    Look,
    /// The look begins after the uploads have ended.
    LookAfterUpload,
    /// If a generation does not continue another, its primary acknowledges transactions only once the base is in the
    /// archive.
    BaseBeforeAcknowledging,
    /// If an object exists already, a primary treats it as its own only if the contents are equal.
    CompareContents,
    /// If a generation continues another, only some transactions of the earlier generation count: those that the
    /// owner of the later generation has found.
    EndOfParent,
    /// Compaction and pruning use only acknowledged transactions.
    OnlyAcknowledged,
    /// Pruning deletes an object only when the object that takes its place exists.
    DeleteAfterCompaction,
    /// Pruning keeps the snapshot from which a restore of the oldest kept moment begins.
    KeepBase,
    /// A follower looks for a later claim after it has listed the archive, and before it applies objects.
    FollowerLooks,
    /// When an owner restarts, it gives up a claim of its own that has no start record.
    GiveUpClaims,
}

#[cfg(feature = "controls")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread. With `None` all rules hold again.
#[cfg(feature = "controls")]
pub fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Returns whether a rule is kept.
#[cfg(feature = "controls")]
pub(crate) fn keep(rule: Rule) -> bool {
    BROKEN.get() != Some(rule)
}

/// Returns whether a rule is kept.
#[cfg(not(feature = "controls"))]
pub(crate) const fn keep(_rule: Rule) -> bool {
    true
}
