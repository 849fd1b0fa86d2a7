//! Rules that a test can break on purpose, to show that other tests would notice. Without the feature `controls` no
//! code can break a rule.

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A claim is created only if there is none.
    ClaimIsCreated,
    /// A new primary lists the archive only after it has its claim.
    ListAfterClaim,
    /// A primary looks for another owner's claim on a later generation before it acknowledges.
    Look,
    /// A primary begins this look only after the uploads have ended.
    LookAfterUpload,
    /// If a generation does not continue another, its primary acknowledges transactions only once the generation's base
    /// (its first state) is in the archive.
    BaseBeforeAcknowledging,
    /// If an object exists already, a primary treats it as its own only if the contents are equal.
    CompareContents,
    /// If a generation continues an earlier one, a restore ignores transactions of the earlier generation that the
    /// owner of the later one did not find when it took over.
    EndOfParent,
    /// Compaction and pruning use only acknowledged transactions.
    OnlyAcknowledged,
    /// Pruning deletes an object only if the object that replaces it exists.
    DeleteAfterCompaction,
    /// Pruning keeps the snapshot that a restore of the oldest kept moment starts from.
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
