//! Pruning deletes the objects that no restore of a kept moment needs.
//!
//! Pruning relies on a settled listing of the archive (`settled.rs`): every later primary inherits everything in this
//! listing. So if this listing does not need an object, no later primary needs it (invariant 74). An object becomes
//! unnecessary when an object of a higher level or a later snapshot replaces it. It never becomes necessary again, so
//! its deletion may reach the store at any time. Every policy keeps the first snapshot of each day. So if programs
//! prune with two different policies, neither deletes a snapshot that the other relies on.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::TryStreamExt as _;
use object_store::path::Path;

use super::archive::Archive;
use super::compaction::Times;
use super::controls::{Rule, keep};
use super::error::ArchiveError;
use super::keys::{Generation, Object, SNAPSHOTS};
use super::plan::{Lineage, Link};
use super::retry::Retry;

const DAY_MS: i64 = 86_400_000;

/// What pruning keeps. Ages are measured from the time of the newest transaction in the archive, or from the present
/// time if that is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Moments up to this age can still be restored.
    pub keep: Duration,
    /// Up to this age, a restore can end with any single transaction. Before that, it can end only with the last
    /// transaction of each span of 30 seconds.
    pub transactions: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { keep: Duration::from_secs(30 * 86_400), transactions: Duration::from_secs(86_400) }
    }
}

/// What a pruning deletes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The objects, with their generations.
    pub objects: Vec<(Generation, Object)>,
    /// The bytes of these objects.
    pub bytes: u64,
}

impl Archive {
    /// Deletes the objects that the policy does not keep, and returns them. If `is_dry` is set, deletes nothing. While
    /// a new primary takes the archive over, deletes nothing and returns `None`.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::Damaged`] if an object cannot be read.
    pub async fn prune(
        &self,
        policy: &Policy,
        retry: &Retry,
        is_dry: bool,
    ) -> Result<Option<Pruned>, ArchiveError> {
        let Some(lineage) = retry.ask(|| self.settled_lineage(Rule::OnlyAcknowledged)).await? else {
            return Ok(None);
        };
        let pruned = self.unneeded(policy, &lineage).await?;
        if !is_dry {
            let keys: Vec<_> = pruned
                .objects
                .iter()
                .map(|(generation, object)| Ok(self.replica(*generation).key(object)))
                .collect();
            let mut deleted = self.store().delete_stream(Box::pin(futures_util::stream::iter(keys)));
            loop {
                match deleted.try_next().await {
                    Ok(Some(_)) | Err(object_store::Error::NotFound { .. }) => {}
                    Ok(None) => break,
                    Err(error) => return Err(ArchiveError::store("deleting below", self.prefix())(error)),
                }
            }
        }
        Ok(Some(pruned))
    }

    async fn unneeded(&self, policy: &Policy, lineage: &Lineage) -> Result<Pruned, ArchiveError> {
        let mut times = Times::default();
        let mut pruned = Pruned::default();
        let Some(newest) = self.newest_time(lineage, &mut times).await? else { return Ok(pruned) };
        // The primary's clock or this machine's clock may be ahead. The earlier of the two times counts, so one clock
        // that is ahead does not make objects look too old.
        let now = now_ms();
        let before = |age: Duration| {
            newest.min(now).saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
        };
        let base = self.base(before(policy.keep), now, lineage, &mut times).await?;
        for (index, link) in lineage.links.iter().enumerate() {
            let Some(generation) = link.generation else { continue };
            let firsts = self.firsts(link, &mut times).await?;
            let compacted = self.compacted_before(before(policy.transactions), link, &mut times).await?;
            let newest_snapshot = link
                .objects
                .iter()
                .filter(|object| object.level == SNAPSHOTS)
                .max_by_key(|object| object.max);
            let is_needed = |object: &Object| {
                if link.limit.is_some_and(|limit| object.max >= limit) {
                    return false;
                }
                if let Some((at, base)) = base
                    && (index > at || index == at && object.max <= base.max)
                {
                    return index == at && *object == base && keep(Rule::KeepBase);
                }
                match object.level {
                    0 => !is_covered(&compacted, object),
                    SNAPSHOTS => firsts.contains(object) || index == 0 && Some(object) == newest_snapshot,
                    _ => true,
                }
            };
            let unneeded = link.objects.iter().filter(|object| !is_needed(object));
            pruned.objects.extend(unneeded.map(|object| (generation, *object)));
        }
        if keep(Rule::DeleteAfterCompaction) && keep(Rule::KeepBase) {
            self.check(lineage, &pruned)?;
        }
        pruned.objects.extend(self.unread(lineage).await?);
        pruned.bytes = pruned.objects.iter().map(|(_, object)| object.bytes).sum();
        Ok(pruned)
    }

    /// Checks that the deletion loses no state that a remaining object ends with. If a restore could make such a state
    /// before, it still can. So a mistake in pruning cannot delete the last objects that lead to a kept moment.
    fn check(&self, lineage: &Lineage, pruned: &Pruned) -> Result<(), ArchiveError> {
        let keys: BTreeSet<Path> =
            pruned.objects.iter().map(|(generation, object)| self.replica(*generation).key(object)).collect();
        let after = lineage.without(|key| keys.contains(key));
        for (before, after) in lineage.links.iter().zip(&after.links) {
            let is_lost = |object: &&Object| {
                before.chain.states().binary_search(&object.max).is_ok()
                    && after.chain.states().binary_search(&object.max).is_err()
            };
            if let Some(object) = after.objects.iter().find(is_lost) {
                let key = after.replica.key(object).to_string();
                return Err(ArchiveError::Damaged {
                    key,
                    what: "pruning would leave no way to it".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Returns the time of the newest state.
    async fn newest_time(&self, lineage: &Lineage, times: &mut Times) -> Result<Option<i64>, ArchiveError> {
        for link in &lineage.links {
            let newest = link.chain.states().last().and_then(|newest| link.chain.ending_with(*newest));
            if let Some(newest) = newest {
                return times.of(self, &link.replica, newest).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the snapshot from which a restore of the oldest kept moment begins, and the index of its generation.
    /// This is the newest snapshot that is the first of its day and not later than `time`. If there is none, returns
    /// `None`, because no object is too old. The search ends at the first snapshot with a time between `time` and
    /// `now`. Later snapshots must be younger, even if a slow clock gave them an earlier time. The search ignores a
    /// snapshot with a time in the future.
    async fn base(
        &self,
        time: i64,
        now: i64,
        lineage: &Lineage,
        times: &mut Times,
    ) -> Result<Option<(usize, Object)>, ArchiveError> {
        let mut base = None;
        for (index, link) in lineage.links.iter().enumerate().rev() {
            let firsts = self.firsts(link, times).await?;
            for first in firsts.into_iter().filter(|first| link.limit.is_none_or(|limit| first.max < limit)) {
                let made = times.of(self, &link.replica, &first).await?;
                if made <= time {
                    base = Some((index, first));
                } else if made <= now {
                    return Ok(base);
                }
            }
        }
        Ok(base)
    }

    /// Returns the first snapshot of each day, in order.
    async fn firsts(&self, link: &Link, times: &mut Times) -> Result<Vec<Object>, ArchiveError> {
        let mut snapshots: Vec<Object> =
            link.objects.iter().filter(|object| object.level == SNAPSHOTS).copied().collect();
        snapshots.sort_unstable_by_key(|object| object.max);
        let (mut firsts, mut last) = (Vec::new(), None);
        for snapshot in snapshots {
            let day = times.of(self, &link.replica, &snapshot).await?.div_euclid(DAY_MS);
            if last != Some(day) {
                firsts.push(snapshot);
            }
            last = Some(day);
        }
        Ok(firsts)
    }

    /// Returns the objects of level 1 that end at `time` or earlier. Later objects have later times, unless somebody
    /// has set a clock back. So this function can use a binary search, which reads few headers.
    async fn compacted_before(
        &self,
        time: i64,
        link: &Link,
        times: &mut Times,
    ) -> Result<Vec<Object>, ArchiveError> {
        let level = if keep(Rule::DeleteAfterCompaction) { 1 } else { 0 };
        let mut compacted: Vec<Object> =
            link.objects.iter().filter(|object| object.level == level).copied().collect();
        compacted.sort_unstable_by_key(|object| (object.max, object.min));
        let (mut from, mut to) = (0, compacted.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if times.of(self, &link.replica, &compacted[middle]).await? <= time {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        compacted.truncate(from);
        Ok(compacted)
    }

    /// Returns the objects of abandoned generations: those that are older than the newest claim, but are not among the
    /// generations that a restore uses. Nobody reads these objects.
    async fn unread(&self, lineage: &Lineage) -> Result<Vec<(Generation, Object)>, ArchiveError> {
        let prefix = self.prefix().clone();
        let below = self.store().list_with_delimiter(Some(&prefix)).await;
        let below = below.map_err(ArchiveError::store("listing", &prefix))?;
        let of_prefix = |path: &Path| path.filename()?.strip_prefix('g')?.parse::<Generation>().ok();
        let mut unread = Vec::new();
        for generation in below.common_prefixes.iter().filter_map(of_prefix) {
            let is_on_line = lineage.links.iter().any(|link| link.generation == Some(generation));
            // Skip a generation that is later than all listed claims, because somebody may have claimed it after the
            // listing.
            if !is_on_line && lineage.newest_claim.is_some_and(|newest| generation < newest) {
                let objects = self.objects(&self.replica(generation)).await?;
                unread.extend(objects.into_iter().map(|object| (generation, object)));
            }
        }
        Ok(unread)
    }
}

/// Returns the present time, in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// Returns whether one of the objects in `by` has all transactions of `object`. The objects in `by` are sorted by their
/// last transactions.
fn is_covered(by: &[Object], object: &Object) -> bool {
    let next = by.partition_point(|cover| cover.max < object.max);
    by.get(next).is_some_and(|cover| cover.min <= object.min)
}
