//! Takes a generation in three steps: the owner creates the claim, lists what it inherits, and creates the start
//! record.
//!
//! The types enforce this order. A [`Claimed`] exists only once the claim exists. Only a [`Claimed`] can list what
//! the new primary inherits. And only a [`Claimed`] can become a [`Primary`], by creating the start record
//! (invariants 65 and 67).

use bytes::Bytes;
use serde::Serialize;

use super::archive::{Archive, Created};
use super::chain::Chain;
use super::confirm::confirmed;
use super::controls::{Rule, keep};
use super::error::ArchiveError;
use super::keys::{Generation, Key, Object};
use super::owner::{Owner, random_token};
use super::plan::{Lineage, Plan};
use super::primary::Primary;
use super::records::{Base, Claim, Line, Start};
use super::retry::Retry;

/// A generation that its owner has claimed but not yet begun.
#[derive(Debug)]
pub struct Claimed {
    archive: Archive,
    owner: Owner,
    generation: Generation,
    /// What the owner listed before its claim. Only a test that breaks `Rule::ListAfterClaim` sets this.
    listed_early: Option<Option<Inherited>>,
}

/// What a new primary finds in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// The generation that the new primary continues.
    pub parent: Generation,
    /// The last transaction that can be restored.
    pub end: u64,
    /// The objects that make the database after that transaction. If the store has deleted one of them before the
    /// primary fetches it, the primary asks [`Archive::plan`] for other objects that lead to the same transaction.
    pub plan: Plan,
}

/// The database that a generation begins with, as the owner writes it into the start record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The size of the database in pages.
    pub pages: u32,
    /// The page size in bytes.
    pub page_size: u32,
    /// The checksum of the database, as in LTX files.
    pub checksum: u64,
    /// The time by the owner's clock, in milliseconds since 1970.
    pub time_ms: i64,
}

/// What an owner finds when it returns to its generation after a restart.
#[derive(Debug)]
pub enum Resumed {
    /// The owner is still the primary.
    Primary(Primary),
    /// The owner has claimed this generation, its newest one, but has not begun it. The owner must now give it up, and
    /// claim the next one with [`Archive::claim_after`].
    Unbegun(Generation),
    /// Another owner has taken a later generation.
    Fenced(Claim),
}

impl Archive {
    /// Claims the first generation that comes after all claimed ones.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`].
    pub async fn claim(&self, owner: &Owner, time_ms: i64) -> Result<Claimed, ArchiveError> {
        let listed_early = match keep(Rule::ListAfterClaim) {
            true => None,
            false => Some(self.inherited(owner, None).await?),
        };
        let newest = owner.retry.ask(|| self.newest_claim()).await?;
        let mut generation = newest.map_or(Generation::FIRST, Generation::next);
        while self.create_claim(owner, generation, time_ms).await?.is_some() {
            generation = generation.next();
        }
        Ok(Claimed { archive: self.clone(), owner: owner.clone(), generation, listed_early })
    }

    /// Claims the next free generation after this one, for an owner that has to start over. Skips generations that
    /// the same owner has claimed in earlier attempts.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Fenced`] if another owner has claimed the next generation; [`ArchiveError::Store`].
    pub async fn claim_after(
        &self,
        owner: &Owner,
        generation: Generation,
        time_ms: i64,
    ) -> Result<Claimed, ArchiveError> {
        let mut generation = generation.next();
        loop {
            match self.create_claim(owner, generation, time_ms).await? {
                None => break,
                // The owner gives up its own claim from an earlier attempt.
                Some(other) if other.token == owner.token => generation = generation.next(),
                Some(other) => return Err(ArchiveError::fenced(&other)),
            }
        }
        Ok(Claimed { archive: self.clone(), owner: owner.clone(), generation, listed_early: None })
    }

    /// Continues a generation after its owner has restarted. If later claims have the owner's own token, the owner made
    /// them itself when it tried to start over.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::Damaged`] if the generation's claim is missing.
    pub async fn resume(&self, owner: &Owner, generation: Generation) -> Result<Resumed, ArchiveError> {
        let mut own = None;
        let mut next = generation;
        while let Some(claim) = owner.retry.ask(|| self.claim_of(next)).await? {
            if claim.token != owner.token {
                return Ok(Resumed::Fenced(claim));
            }
            own = Some(next);
            next = next.next();
        }
        let Some(own) = own else {
            let key = self.key(Key::Claim(generation)).to_string();
            return Err(ArchiveError::Damaged { key, what: "the claim is missing".to_owned() });
        };
        let own = if keep(Rule::GiveUpClaims) { own } else { generation };
        let Some(start) = owner.retry.ask(|| self.start_of(own)).await? else {
            return Ok(Resumed::Unbegun(own));
        };
        let replica = self.replica(own);
        let objects = owner.retry.ask(|| self.objects(&replica)).await?;
        let chain = Chain::new(&objects, None, Some(start.base.txid));
        let uploaded = chain.states().last().copied().unwrap_or(start.base.txid);
        let has_base = objects.iter().any(Object::is_snapshot);
        Ok(Resumed::Primary(Primary::new(self.clone(), owner.clone(), start, uploaded, has_base)))
    }

    /// Tests whether the store refuses to create a key twice. Every guarantee of the archive depends on that.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Unfit`] if the store does not refuse; [`ArchiveError::Store`].
    pub async fn probe(&self, owner: &Owner) -> Result<(), ArchiveError> {
        let key = self.key_of(&format!("probe-{}", random_token()?));
        let [first, second] = [Bytes::from_static(b"first"), Bytes::from_static(b"second")];
        let twice = async {
            self.put_new(&owner.retry, &key, first.clone(), None).await?;
            let again = owner.retry.ask(|| self.create(&key, second.clone().into(), None)).await?;
            let found = owner.retry.ask(|| self.get(&key)).await?;
            Ok(again == Created::Before && found == first)
        };
        let result = twice.await;
        // If the deletion fails, the leftover object does no harm.
        let deleted = owner.retry.ask(|| self.delete(&key)).await;
        match result {
            Ok(true) => deleted,
            Ok(false) => Err(ArchiveError::Unfit),
            Err(ArchiveError::Store {
                source: object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. },
                ..
            }) => Err(ArchiveError::Unfit),
            Err(error) => Err(error),
        }
    }

    /// Creates an object. If the object exists already, its contents must be the same. In that case an earlier request
    /// of this primary has created it (invariant 69).
    pub(crate) async fn put_new(
        &self,
        retry: &Retry,
        key: &object_store::path::Path,
        content: Bytes,
        time_ms: Option<i64>,
    ) -> Result<(), ArchiveError> {
        let other = retry
            .ask(|| async {
                match self.create(key, content.clone().into(), time_ms).await? {
                    Created::Now => Ok(None),
                    // A store may answer `Before` even while another request to create the object is still running.
                    // Until that request ends, nobody can read the object.
                    Created::Before => self.get(key).await.map(Some).map_err(ArchiveError::into_temporary),
                }
            })
            .await?;
        match other {
            Some(other) if other != content && keep(Rule::CompareContents) => {
                Err(ArchiveError::Contradicted { key: key.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Creates a claim (invariant 65). If the generation has another claim already, returns that claim.
    async fn create_claim(
        &self,
        owner: &Owner,
        generation: Generation,
        time_ms: i64,
    ) -> Result<Option<Claim>, ArchiveError> {
        let claim = Claim { generation, token: owner.token.clone(), node: owner.node.clone(), time_ms };
        let key = self.key(Key::Claim(generation));
        match self.put_new(&owner.retry, &key, json(&claim)?, None).await {
            Err(ArchiveError::Contradicted { .. }) if keep(Rule::ClaimIsCreated) => {
                let other = owner.retry.ask(|| self.claim_of(generation)).await?;
                // The other claim may be the owner's own, from before a restart. The owner gives up that claim too.
                Ok(Some(other.unwrap_or(claim)))
            }
            Err(ArchiveError::Contradicted { .. }) | Ok(()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn newest_claim(&self) -> Result<Option<Generation>, ArchiveError> {
        let claims = self.records().await?.into_iter().filter_map(|key| match key {
            Key::Claim(generation) => Some(generation),
            Key::Start(_) => None,
        });
        Ok(claims.max())
    }

    /// Returns what an owner inherits after it has claimed the generation `own`.
    async fn inherited(
        &self,
        owner: &Owner,
        own: Option<Generation>,
    ) -> Result<Option<Inherited>, ArchiveError> {
        let list = async || {
            let lineage = owner.retry.ask(|| Lineage::read(self)).await?;
            // If a later generation has begun, no restore will ever use the claimed one. Besides, pruning may have
            // deleted objects that this listing still shows.
            if let Some(later) = lineage.head().filter(|head| own.is_some_and(|own| own < *head)) {
                return Err(self.fenced_by(owner, later).await?);
            }
            let (at, end) = lineage.latest()?;
            let plan = Plan { txid: end, steps: lineage.steps(at, end) };
            Ok(lineage.links[at].generation.map(|parent| Inherited { parent, end, plan }))
        };
        match confirmed(list, |_| None).await {
            Err(ArchiveError::Empty) => Ok(None),
            inherited => inherited,
        }
    }

    /// Returns the error that a primary gets after another owner has claimed the generation `later`.
    async fn fenced_by(&self, owner: &Owner, later: Generation) -> Result<ArchiveError, ArchiveError> {
        let claim = owner.retry.ask(|| self.claim_of(later)).await?;
        let claim = claim.ok_or_else(|| ArchiveError::Damaged {
            key: self.key(Key::Claim(later)).to_string(),
            what: "the generation has begun, and its claim is missing".to_owned(),
        })?;
        Ok(ArchiveError::fenced(&claim))
    }
}

impl Primary {
    /// Gives up this generation, and claims the next one in order to start over.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Fenced`] if another owner has claimed it; [`ArchiveError::Store`].
    pub async fn start_over(self, time_ms: i64) -> Result<Claimed, ArchiveError> {
        self.archive().claim_after(self.owner(), self.generation(), time_ms).await
    }
}

impl Claimed {
    /// Returns the generation.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Lists the archive now that the claim exists, and returns what can be restored. Returns `None` if the archive has
    /// no state.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Fenced`] if a later generation has begun; [`ArchiveError::Gap`]; [`ArchiveError::Changing`];
    /// [`ArchiveError::Store`]; [`ArchiveError::Damaged`].
    pub async fn inherited(&self) -> Result<Option<Inherited>, ArchiveError> {
        match &self.listed_early {
            Some(listed) => Ok(listed.clone()),
            None => self.archive.inherited(&self.owner, Some(self.generation)).await,
        }
    }

    /// Begins the generation by creating its start record. If this fails, the owner has to give up the claim, because
    /// the record may still arrive.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::Contradicted`] if the generation already has another start record.
    pub async fn start(
        self,
        inherited: Option<&Inherited>,
        line: Line,
        begin: &Begin,
    ) -> Result<Primary, ArchiveError> {
        let end = inherited.map_or(0, |inherited| inherited.end);
        let txid = if line == Line::Continues { end } else { end + 1 };
        let base = Base {
            txid,
            pages: begin.pages,
            page_size: begin.page_size,
            checksum: format!("{:016x}", begin.checksum),
        };
        let start = Start {
            generation: self.generation,
            token: self.owner.token.clone(),
            parent: inherited.map(|inherited| inherited.parent),
            line,
            first_txid: txid + 1,
            base,
            time_ms: begin.time_ms,
        };
        let key = self.archive.key(Key::Start(self.generation));
        self.archive.put_new(&self.owner.retry, &key, json(&start)?, None).await?;
        Ok(Primary::new(self.archive, self.owner, start, txid, false))
    }
}

fn json(record: &impl Serialize) -> Result<Bytes, ArchiveError> {
    serde_json::to_vec(record)
        .map(Bytes::from)
        .map_err(|error| ArchiveError::Damaged { key: "a record".to_owned(), what: error.to_string() })
}
