//! Decides which objects a restore needs to rebuild the database as it was at a given moment.
//!
//! A restore uses only the newest generation with a start record, and this generation's ancestors. Of each ancestor it
//! uses only the transactions before the first one of the next generation. So if a replaced primary continues to write,
//! a restore never uses those transactions.

use std::fmt;

use duralite_ltx::{HEADER_BYTES, Header};
use object_store::path::Path;

use super::archive::Archive;
use super::chain::{Chain, Missing};
use super::confirm::confirmed;
use super::controls::{Rule, keep};
use super::error::ArchiveError;
use super::keys::{Generation, Key, Object, Replica};
use super::records::{Line, Start};

/// What to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The newest state.
    Latest,
    /// The state after this transaction.
    Txid(u64),
    /// The newest state that is not after this time, in milliseconds since 1970.
    Time(i64),
}

/// A state that can be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The last transaction.
    pub txid: u64,
    /// The time at which that transaction was committed, in milliseconds since 1970. `None` if the caller did not ask
    /// for the time.
    pub time_ms: Option<i64>,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {}", self.txid)?;
        match self.time_ms {
            Some(time_ms) => write!(f, " of {}", super::archive::rfc3339(time_ms)),
            None => Ok(()),
        }
    }
}

/// An object to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The object's key.
    pub key: Path,
    /// The object itself, with the facts that a listing shows.
    pub object: Object,
    /// The object's generation; `None` if Litestream made the archive.
    pub generation: Option<Generation>,
}

/// The objects that make a state, in the order in which a restore applies them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The last transaction of the state.
    pub txid: u64,
    /// The objects; the first is a snapshot.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Returns the number of bytes to fetch.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| step.object.bytes).sum()
    }
}

/// One generation, with its objects and the states that a restore can make from them.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub generation: Option<Generation>,
    pub start: Option<Start>,
    pub replica: Replica,
    /// The first transaction that a restore does not use, because the next generation begins with it (invariant 68).
    pub limit: Option<u64>,
    pub objects: Vec<Object>,
    pub chain: Chain,
}

impl Link {
    /// Returns the object that leads from the state `txid`, or from all states between `txid` and `or`, to the nearest
    /// later state ([`Chain::following`]).
    pub fn step_after(&self, txid: u64, or: Option<u64>) -> Option<Step> {
        let object = *self.chain.following(txid, or)?;
        Some(Step { key: self.replica.key(&object), object, generation: self.generation })
    }

    /// Returns the generation's first state, as the number of its last transaction.
    pub fn base(&self) -> u64 {
        self.start.as_ref().map_or(1, |start| start.base.txid)
    }

    pub fn continues(&self) -> bool {
        self.start.as_ref().is_some_and(|start| start.line == Line::Continues)
    }
}

/// The generations that a restore can use, the newest first. If Litestream made the archive, there is one generation,
/// without a number.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    pub links: Vec<Link>,
    /// The newest claim. If the claim is of a later generation than the newest in `links`, a new primary is about to
    /// begin.
    pub newest_claim: Option<Generation>,
}

impl Lineage {
    /// Lists the archive.
    pub async fn read(archive: &Archive) -> Result<Self, ArchiveError> {
        let records = archive.records().await?;
        let newest = records.iter().filter_map(|key| match key {
            Key::Start(generation) => Some(*generation),
            Key::Claim(_) => None,
        });
        let newest_claim = records.iter().filter_map(|key| match key {
            Key::Claim(generation) => Some(*generation),
            Key::Start(_) => None,
        });
        let mut next = newest.max();
        if next.is_none() {
            if !records.is_empty() {
                return Err(ArchiveError::Empty);
            }
            let replica = archive.as_replica();
            let objects = archive.objects(&replica).await?;
            if objects.is_empty() {
                return Err(ArchiveError::Empty);
            }
            let chain = Chain::default();
            let link = Link { generation: None, start: None, replica, limit: None, objects, chain };
            return Ok(Self::chained(vec![link], None));
        }
        let mut links: Vec<Link> = Vec::new();
        let mut limit = None;
        while let Some(generation) = next {
            // An owner creates the start record once, and nobody deletes it. So if a later generation names this one as
            // its parent, the record must be there.
            let start = archive.start_of(generation).await?.ok_or_else(|| ArchiveError::Damaged {
                key: archive.key(Key::Start(generation)).to_string(),
                what: "a later generation names it, and it is missing".to_owned(),
            })?;
            let replica = archive.replica(generation);
            let objects = archive.objects(&replica).await?;
            next = start.parent.filter(|parent| *parent < generation);
            let end = start.end_of_parent();
            let chain = Chain::default();
            links.push(Link {
                generation: Some(generation),
                start: Some(start),
                replica,
                limit,
                objects,
                chain,
            });
            if keep(Rule::EndOfParent) {
                limit = Some(limit.map_or(end + 1, |limit: u64| limit.min(end + 1)));
            }
        }
        Ok(Self::chained(links, newest_claim.max()))
    }

    /// Lists the archive. If a generation lacks transactions, or if the archive is empty, lists it again to confirm
    /// that.
    pub async fn read_confirmed(archive: &Archive) -> Result<Self, ArchiveError> {
        confirmed(async || Self::read(archive).await, Self::lack).await
    }

    /// Describes the transactions that are missing in the generations. Returns `None` if none is missing.
    pub fn lack(&self) -> Option<String> {
        let missing = self.links.iter().map(|link| (link.generation, link.chain.missing()));
        let missing: Vec<_> = missing.filter(|(_, missing)| !missing.is_empty()).collect();
        (!missing.is_empty()).then(|| format!("{missing:?}"))
    }

    /// Returns the newest generation with a start record; `None` if Litestream made the archive.
    pub fn head(&self) -> Option<Generation> {
        self.links.first().and_then(|head| head.generation)
    }

    /// Finds out which states a restore can make from each generation's objects.
    fn chained(mut links: Vec<Link>, newest_claim: Option<Generation>) -> Self {
        // The loop begins with the oldest generation, because a generation without its own snapshot continues a state
        // of its parent.
        for at in (0..links.len()).rev() {
            let base = on_parent(&links, at);
            let has_parents =
                links.get(at + 1).is_some_and(|parent| parent.chain.state_until(base) == Some(base));
            let seed = (has_parents && links[at].continues()).then_some(base);
            links[at].chain = Chain::new(&links[at].objects, links[at].limit, seed);
        }
        Self { links, newest_claim }
    }

    /// Returns the plan that restores the database of a target.
    pub async fn plan(&self, archive: &Archive, target: Target) -> Result<Plan, ArchiveError> {
        let (at, txid) = match target {
            Target::Latest => self.latest()?,
            Target::Txid(txid) => self.at_txid(txid)?,
            Target::Time(time_ms) => self.at_time(archive, time_ms).await?,
        };
        Ok(Plan { txid, steps: self.steps(at, txid) })
    }

    /// Returns the newest state, and the index in `links` of the generation that has it. If the newest generation has
    /// begun but has no objects yet, the newest state is in its parent.
    pub(crate) fn latest(&self) -> Result<(usize, u64), ArchiveError> {
        for (at, link) in self.links.iter().enumerate() {
            let state = link.chain.states().last().copied();
            // If a generation does not continue another, its first transactions may be uploaded before its base. Until
            // the base is there, the generation has no state.
            if state.is_none() && link.start.is_some() && !link.continues() {
                continue;
            }
            match (link.chain.missing().last(), state) {
                (Some(missing), last) if last.is_none_or(|last| last < missing.first) => {
                    return Err(gap(*missing, last.or_else(|| self.newest_from(at + 1))));
                }
                (_, Some(state)) => return Ok((at, state)),
                (_, None) => {}
            }
        }
        Err(ArchiveError::Empty)
    }

    /// Returns the newest state of the generation with the index `at` and of all earlier generations.
    fn newest_from(&self, at: usize) -> Option<u64> {
        self.links.get(at..)?.iter().find_map(|link| link.chain.states().last().copied())
    }

    fn at_txid(&self, txid: u64) -> Result<(usize, u64), ArchiveError> {
        // A transaction before the first state of a generation belongs to one of the generation's ancestors.
        let found = self.links.iter().position(|link| link.base() <= txid);
        let at = found.ok_or(ArchiveError::NotThere { txid, before: None, after: self.oldest() })?;
        let link = &self.links[at];
        let state = link.chain.state_until(txid);
        if state == Some(txid) {
            return Ok((at, txid));
        }
        let is_missing =
            |missing: &&Missing| missing.first <= txid && state.is_none_or(|state| state < missing.first);
        if let Some(missing) = link.chain.missing().iter().find(is_missing) {
            return Err(gap(*missing, state.or_else(|| self.newest_from(at + 1))));
        }
        let states = link.chain.states();
        let after = states.get(states.partition_point(|state| *state <= txid)).copied();
        Err(ArchiveError::NotThere { txid, before: state, after })
    }

    async fn at_time(&self, archive: &Archive, time_ms: i64) -> Result<(usize, u64), ArchiveError> {
        for (at, link) in self.links.iter().enumerate() {
            let states: Vec<&Object> =
                link.chain.states().iter().filter_map(|state| link.chain.ending_with(*state)).collect();
            let (mut low, mut high) = (0, states.len());
            while low < high {
                let middle = low + (high - low) / 2;
                if link.time_of(archive, states[middle]).await? <= time_ms {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            let Some(found) = low.checked_sub(1).map(|newest| states[newest]) else { continue };
            // If the next object is not later than `time_ms` either, the restore ought to apply it. If it cannot,
            // transactions before that object must be missing.
            if let Some(next) = link.chain.first_after(found.max)
                && link.chain.state_until(next.max) == Some(found.max)
                && link.time_of(archive, next).await? <= time_ms
                && let Some(missing) =
                    link.chain.missing().into_iter().find(|missing| missing.first > found.max)
            {
                return Err(gap(missing, Some(found.max)));
            }
            return Ok((at, found.max));
        }
        Err(ArchiveError::TooEarly { oldest: self.oldest() })
    }

    /// Returns the lineage as it would be without the objects for which `is_away` returns true.
    pub fn without(&self, is_away: impl Fn(&Path) -> bool) -> Self {
        let links = self.links.iter().map(|link| {
            let stays = |object: &&Object| !is_away(&link.replica.key(object));
            let objects = link.objects.iter().filter(stays).copied().collect();
            Link { objects, ..link.clone() }
        });
        Self::chained(links.collect(), self.newest_claim)
    }

    /// Returns the newest state that is not after `txid`.
    pub fn newest_until(&self, txid: u64) -> Option<u64> {
        self.links.iter().find_map(|link| link.chain.state_until(txid))
    }

    pub(crate) fn steps(&self, at: usize, txid: u64) -> Vec<Step> {
        let link = &self.links[at];
        let (on_parents, objects) = link.chain.objects_of(txid);
        let mut steps = if on_parents { self.steps(at + 1, on_parent(&self.links, at)) } else { Vec::new() };
        steps.extend(objects.into_iter().map(|object| Step {
            key: link.replica.key(&object),
            object,
            generation: link.generation,
        }));
        steps
    }

    fn oldest(&self) -> Option<u64> {
        self.links.iter().rev().find_map(|link| link.chain.states().first().copied())
    }
}

impl Link {
    /// Returns when the last transaction of an object was committed.
    pub async fn time_of(&self, archive: &Archive, object: &Object) -> Result<i64, ArchiveError> {
        let key = self.replica.key(object);
        let damaged = |what: String| ArchiveError::Damaged { key: key.to_string(), what };
        if object.bytes < HEADER_BYTES as u64 {
            return Err(damaged("it is shorter than a header".to_owned()));
        }
        let bytes = archive.get_range(&key, 0..HEADER_BYTES as u64).await?;
        let bytes = <&[u8; HEADER_BYTES]>::try_from(&bytes[..])
            .map_err(|_| damaged("the store returned another part than the header".to_owned()))?;
        Header::decode(bytes).map(|header| header.timestamp_ms).map_err(ArchiveError::of_object(&key))
    }
}

/// Returns the state of its parent with which a generation begins.
fn on_parent(links: &[Link], at: usize) -> u64 {
    let newest = links.get(at + 1).and_then(|parent| parent.chain.states().last().copied());
    let base = links[at].base();
    if keep(Rule::EndOfParent) { base } else { newest.unwrap_or(base) }
}

fn gap(missing: Missing, last: Option<u64>) -> ArchiveError {
    ArchiveError::Gap { first: missing.first, last: missing.last, had: last }
}

impl Archive {
    /// Returns the objects from which a restore makes the database as it was at a moment.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Gap`] and [`ArchiveError::NotThere`] name what can be restored instead; [`ArchiveError::Empty`];
    /// [`ArchiveError::Changing`]; [`ArchiveError::Store`].
    pub async fn plan(&self, target: Target) -> Result<Plan, ArchiveError> {
        self.planned(target).await.map(|(_, plan)| plan)
    }

    /// Does the same as [`Archive::plan`], and also returns the listing from which it made the plan.
    pub(crate) async fn planned(&self, target: Target) -> Result<(Lineage, Plan), ArchiveError> {
        let list = async || {
            let lineage = Lineage::read(self).await?;
            let plan = lineage.plan(self, target).await?;
            Ok((lineage, plan))
        };
        confirmed(list, |_| None).await
    }
}
