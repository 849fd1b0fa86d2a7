//! Lists an archive: its generations, which states of each can be restored, and how many bytes each takes.

use object_store::path::Path;

use super::archive::Archive;
use super::chain::{Chain, Missing};
use super::error::ArchiveError;
use super::keys::{Generation, LEVELS, Object};
use super::plan::{Lineage, Link, Moment};
use super::records::{Claim, Start};

/// The objects of one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// The number of objects.
    pub objects: u64,
    /// The bytes of all these objects.
    pub bytes: u64,
}

/// The objects and records of one generation.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The generation; `None` if Litestream made the archive.
    pub generation: Option<Generation>,
    /// The prefix of the generation's objects. Litestream can use it as a replica.
    pub prefix: Path,
    /// The claim of the owner that has taken the generation.
    pub claim: Option<Claim>,
    /// Where the generation begins; `None` as long as its owner has not begun it.
    pub start: Option<Start>,
    /// Whether this is the newest generation that has begun, or one of its ancestors. Only the states of these
    /// generations can be restored.
    pub counts: bool,
    /// The first transaction of the next generation. From this number on, a restore uses the next generation's
    /// transactions and not this one's.
    pub until: Option<u64>,
    /// The first state that can be restored.
    pub first: Option<Moment>,
    /// The last state that can be restored.
    pub last: Option<Moment>,
    /// The number of states that can be restored.
    pub states: u64,
    /// The transactions that are missing after the last state.
    pub missing: Vec<Missing>,
    /// The snapshots that a restore can use, each as the number of its last transaction, in ascending order.
    pub snapshots: Vec<u64>,
    /// The objects on each level, including those that a restore cannot use.
    pub levels: [Level; LEVELS as usize],
}

impl Listed {
    /// Returns the bytes of all objects.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.bytes).sum()
    }
}

impl Archive {
    /// Returns what the archive has, the newest generation first.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::Empty`]; [`ArchiveError::Damaged`] if a record cannot be read.
    pub async fn listed(&self) -> Result<Vec<Listed>, ArchiveError> {
        let lineage = match Lineage::read_confirmed(self).await {
            Err(ArchiveError::Empty) => Lineage::default(),
            read => read?,
        };
        let mut listed = Vec::new();
        for link in &lineage.links {
            listed.push(self.listed_link(link, true).await?);
        }
        let records = self.records().await?;
        let mut others: Vec<Generation> = records.iter().map(|key| key.generation()).collect();
        others.dedup();
        others.retain(|other| lineage.links.iter().all(|link| link.generation != Some(*other)));
        for generation in others {
            let replica = self.replica(generation);
            let objects = self.objects(&replica).await?;
            let start = self.start_of(generation).await?;
            let chain = Chain::new(&objects, None, None);
            let link = Link { generation: Some(generation), start, replica, limit: None, objects, chain };
            listed.push(self.listed_link(&link, false).await?);
        }
        listed.sort_by_key(|listed| std::cmp::Reverse(listed.generation));
        if listed.is_empty() { Err(ArchiveError::Empty) } else { Ok(listed) }
    }

    async fn listed_link(&self, link: &Link, counts: bool) -> Result<Listed, ArchiveError> {
        let states = link.chain.states();
        let mut moments = [states.first(), states.last()].map(|state| state.map(|txid| (*txid, None)));
        for (txid, time_ms) in moments.iter_mut().flatten() {
            if let Some(object) = link.chain.ending_with(*txid) {
                *time_ms = link.time_of(self, object).await.map(Some).or_else(missing_is_none)?;
            }
        }
        let [first, last] = moments.map(|moment| moment.map(|(txid, time_ms)| Moment { txid, time_ms }));
        let mut levels = [Level::default(); LEVELS as usize];
        for object in &link.objects {
            let level = &mut levels[usize::from(object.level)];
            level.objects += 1;
            level.bytes += object.bytes;
        }
        let is_snapshot =
            |object: &&Object| object.is_snapshot() && states.binary_search(&object.max).is_ok();
        let mut snapshots: Vec<u64> =
            link.objects.iter().filter(is_snapshot).map(|object| object.max).collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let claim = match link.generation {
            Some(generation) => self.claim_of(generation).await?,
            None => None,
        };
        Ok(Listed {
            generation: link.generation,
            prefix: link.replica.prefix.clone(),
            claim,
            start: link.start.clone(),
            counts,
            until: link.limit,
            first,
            last,
            states: states.len() as u64,
            missing: link.chain.missing(),
            snapshots,
            levels,
        })
    }
}

/// Turns the error that an object is missing into `None`. Somebody may have deleted the object after it was listed. For
/// a listing that is not an error.
fn missing_is_none<T>(error: ArchiveError) -> Result<Option<T>, ArchiveError> {
    if error.is_missing() { Ok(None) } else { Err(error) }
}
