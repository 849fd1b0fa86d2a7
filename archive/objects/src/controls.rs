//! Rules that a test breaks on purpose, to show that other tests notice. Without the feature `controls` no rule can be
//! broken.

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
    /// A generation that is no continuation is acknowledged only when its base is in the archive.
    BaseBeforeAcknowledging,
    /// An object that exists is taken for one's own only if its contents are equal.
    CompareContents,
    /// Of a generation that another continues only transactions up to the end count that the other has found.
    EndOfParent,
    /// Compaction and pruning take only transactions that are acknowledged.
    OnlyAcknowledged,
    /// An object is deleted only when the object that takes its place exists.
    DeleteAfterCompaction,
    /// The snapshot from which the oldest kept moment is restored is kept.
    KeepBase,
    /// A follower looks for a later claim after it has listed, before it applies.
    FollowerLooks,
    /// A claim that has no start record when its owner begins again is given up.
    GiveUpClaims,
}

#[cfg(feature = "controls")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
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
