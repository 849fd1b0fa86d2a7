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
    /// A primary acknowledges transactions of a generation that continues no other only when the base is in the
    /// archive.
    BaseBeforeAcknowledging,
    /// A primary takes an object that exists for its own only if the contents are equal.
    CompareContents,
    /// If a generation continues another, not all transactions of the earlier generation count, but only those that
    /// the owner of the later generation has found.
    EndOfParent,
    /// Compaction and pruning use only acknowledged transactions.
    OnlyAcknowledged,
    /// Pruning deletes an object only when the object that takes its place exists.
    DeleteAfterCompaction,
    /// Pruning keeps the snapshot from which the oldest kept moment is restored.
    KeepBase,
    /// A follower looks for a later claim after it has listed, and before it applies.
    FollowerLooks,
    /// When an owner begins again, it gives up its claim that has no start record.
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
