//! What the owner of a generation does: it uploads objects, looks for later claims, and acknowledges transactions.
//!
//! A primary acknowledges a transaction in two steps. First, the transaction and all earlier ones must be in the store.
//! Then the primary looks for a later claim, and must find none (invariant 66). The primary creates every object. If an
//! object with the same key exists already, its contents must equal what the primary wants to write (invariant 69).

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use object_store::path::Path;
use object_store::{MultipartUpload, PutMultipartOptions, PutPayload};

use super::archive::Archive;
use super::controls::{Rule, keep};
use super::error::ArchiveError;
use super::keys::{Generation, Key, Object, Replica, SNAPSHOTS};
use super::owner::Owner;
use super::records::{Line, Start};

/// An object below this size, in bytes, is uploaded with one request. A larger object is uploaded in parts, and the
/// first parts have this size.
const PART: usize = 8 << 20;

/// The first `EQUAL` parts have [`PART`] bytes each. These are 19 GiB in total, enough for most objects. After that,
/// the size grows by [`PART`] bytes after every `GROWING` parts. So the 10,000 parts that S3 allows are enough for an
/// object of 5 TiB, which S3 allows too.
const EQUAL: usize = 2500;
const GROWING: usize = 43;

/// Returns the size in bytes of the part that comes after `parts` other parts. Only one part at a time is in memory.
const fn part_bytes(parts: usize) -> usize {
    PART * (1 + parts.saturating_sub(EQUAL) / GROWING)
}

/// The owner of a generation that has begun. Only a primary uploads and acknowledges.
#[derive(Debug)]
pub struct Primary {
    archive: Archive,
    owner: Owner,
    start: Start,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All transactions of the generation up to this one are in the store.
    uploaded: u64,
    /// Whether the base (the generation's first state) is in the store, as a snapshot or in the generation's parents.
    has_base: bool,
    acknowledged: u64,
}

impl Primary {
    pub(crate) fn new(
        archive: Archive,
        owner: Owner,
        start: Start,
        uploaded: u64,
        has_snapshot: bool,
    ) -> Self {
        let has_base = has_snapshot || start.line == Line::Continues || !keep(Rule::BaseBeforeAcknowledging);
        let state = Mutex::new(State { uploaded, has_base, acknowledged: 0 });
        Self { archive, owner, start, state }
    }

    /// Returns the archive.
    #[must_use]
    pub const fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Returns the owner of the generation.
    pub(crate) const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the generation.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.start.generation
    }

    /// Returns where the generation begins.
    #[must_use]
    pub const fn start(&self) -> &Start {
        &self.start
    }

    /// Returns the generation's objects.
    #[must_use]
    pub fn replica(&self) -> Replica {
        self.archive.replica(self.generation())
    }

    /// Returns the last transaction up to which the store has all transactions of the generation.
    #[must_use]
    pub fn uploaded(&self) -> u64 {
        self.state().uploaded
    }

    /// Returns whether the base (the generation's first state) is in the store, as a snapshot or in the generation's
    /// parents. Without the base this primary acknowledges nothing.
    #[must_use]
    pub fn has_base(&self) -> bool {
        self.state().has_base
    }

    /// Returns the newest acknowledged transaction.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Uploads the transactions from `min` to `max`. The last of them was committed at `time_ms`. The caller begins an
    /// upload only when the previous one has ended, so that a failure leaves no gap.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]: the object may be in the store nevertheless, or arrive later, so the caller has to
    /// upload the same transactions again. [`ArchiveError::Contradicted`] if another primary has written the key.
    pub async fn upload(&self, content: Bytes, min: u64, max: u64, time_ms: i64) -> Result<(), ArchiveError> {
        self.check_order(min)?;
        if !keep(Rule::LookAfterUpload) {
            self.look().await?;
        }
        self.put(Object { level: 0, min, max, bytes: content.len() as u64 }, content, time_ms).await?;
        self.count(max);
        Ok(())
    }

    /// Does the same as [`Primary::upload`], for transactions that together are too large for memory.
    ///
    /// # Errors
    ///
    /// As [`Primary::upload`], and those of `content`.
    pub async fn upload_large(
        &self,
        content: impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin + Send,
        min: u64,
        max: u64,
        time_ms: i64,
    ) -> Result<(), ArchiveError> {
        self.check_order(min)?;
        self.put_stream(Object { level: 0, min, max, bytes: 0 }, content, time_ms).await?;
        self.count(max);
        Ok(())
    }

    /// Uploads a snapshot: the whole database as it was after the transaction `txid`.
    ///
    /// # Errors
    ///
    /// As [`Primary::upload`], and those of `content`.
    pub async fn upload_snapshot(
        &self,
        content: impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin + Send,
        txid: u64,
        time_ms: i64,
    ) -> Result<(), ArchiveError> {
        self.put_stream(Object { level: SNAPSHOTS, min: 1, max: txid, bytes: 0 }, content, time_ms).await?;
        self.state().has_base = true;
        self.count(txid);
        Ok(())
    }

    /// Looks whether another owner has claimed a later generation. If not, acknowledges the transactions that were in
    /// the store before the look. Returns the newest acknowledged transaction.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Fenced`] if another owner is the primary (every later call returns this error too);
    /// [`ArchiveError::Passed`] if this owner itself has made the later claim, in an attempt to start over;
    /// [`ArchiveError::Store`].
    pub async fn acknowledge(&self) -> Result<u64, ArchiveError> {
        // If an upload ends while this look runs, the look does not acknowledge its transactions.
        let before = self.restorable();
        if keep(Rule::Look) && keep(Rule::LookAfterUpload) {
            self.look().await?;
        }
        let mut state = self.state();
        state.acknowledged = state.acknowledged.max(before);
        Ok(state.acknowledged)
    }

    /// Lists the generation's objects, and then looks for a later claim. If the look finds none, all these objects are
    /// acknowledged, and this function returns them.
    pub(crate) async fn acknowledged_objects(&self) -> Result<Vec<Object>, ArchiveError> {
        let replica = self.replica();
        let objects = self.owner.retry.ask(|| self.archive.objects(&replica)).await?;
        if keep(Rule::OnlyAcknowledged) {
            self.look().await?;
        }
        Ok(objects)
    }

    /// Returns the newest transaction that a restore could reach with the uploaded objects; 0 without a base.
    fn restorable(&self) -> u64 {
        let state = self.state();
        if state.has_base { state.uploaded } else { 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics between two changes of the state, so the state is consistent even if the lock is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_order(&self, min: u64) -> Result<(), ArchiveError> {
        let uploaded = self.uploaded();
        if min > uploaded + 1 {
            return Err(ArchiveError::Gap { first: uploaded + 1, last: min - 1, had: Some(uploaded) });
        }
        Ok(())
    }

    fn count(&self, uploaded: u64) {
        let mut state = self.state();
        state.uploaded = state.uploaded.max(uploaded);
    }

    /// Creates an object of the generation.
    async fn put(&self, object: Object, content: Bytes, time_ms: i64) -> Result<(), ArchiveError> {
        let key = self.replica().key(&object);
        self.archive.put_new(&self.owner.retry, &key, content, Some(time_ms)).await
    }

    /// Uploads an object of any length: a small one with one request, a large one in parts. At the end of an upload in
    /// parts, the store does not refuse a key that exists already. That is safe, because only the owner writes this
    /// key, and it always writes the same bytes (invariant 69).
    pub(crate) async fn put_stream(
        &self,
        object: Object,
        mut content: impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin + Send,
        time_ms: i64,
    ) -> Result<(), ArchiveError> {
        let key = self.replica().key(&object);
        let mut upload = None;
        match (self.put_parts(&key, &mut content, time_ms, &mut upload).await, upload) {
            (Ok(rest), None) => self.put(object, rest.concat().into(), time_ms).await,
            (Ok(_), Some(_)) => self.archive.set_time(&key, Some(time_ms)),
            (Err(error), upload) => {
                if let Some(mut upload) = upload {
                    // Without this request the store would keep the uploaded parts, and no listing would show them. If
                    // this request fails too, the caller gets the first error, which says more.
                    let _ = upload.abort().await;
                }
                Err(error)
            }
        }
    }

    /// Uploads an object in parts, and completes the upload. But if the object is smaller than one part, uploads
    /// nothing, and returns the pieces of its content.
    async fn put_parts(
        &self,
        key: &Path,
        content: &mut (impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin + Send),
        time_ms: i64,
        upload: &mut Option<Box<dyn MultipartUpload>>,
    ) -> Result<Vec<Bytes>, ArchiveError> {
        let failed = || ArchiveError::store("uploading", key);
        // Keep the pieces of a part separate. If they were copied into one growing buffer, the part would take twice
        // the memory.
        let (mut part, mut bytes, mut parts) = (Vec::new(), 0, 0);
        while let Some(piece) = content.try_next().await? {
            bytes += piece.len();
            part.push(piece);
            if bytes < part_bytes(parts) {
                continue;
            }
            (bytes, parts) = (0, parts + 1);
            let upload = match upload {
                Some(upload) => upload,
                None => {
                    let options = PutMultipartOptions::from(self.archive.attributes(Some(time_ms)));
                    let begun = self.archive.store().put_multipart_opts(key, options).await;
                    upload.insert(begun.map_err(failed())?)
                }
            };
            upload.put_part(PutPayload::from_iter(part.drain(..))).await.map_err(failed())?;
        }
        let Some(upload) = upload else { return Ok(part) };
        if bytes > 0 {
            upload.put_part(PutPayload::from_iter(part)).await.map_err(failed())?;
        }
        upload.complete().await.map_err(failed())?;
        Ok(Vec::new())
    }

    /// Sends a request, and repeats it according to the owner's `retry`.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, ArchiveError>>>(
        &self,
        request: impl FnMut() -> F,
    ) -> Result<T, ArchiveError> {
        self.owner.retry.ask(request).await
    }

    async fn look(&self) -> Result<(), ArchiveError> {
        let next = self.generation().next();
        let key = self.archive.key(Key::Claim(next));
        if !self.ask(|| self.archive.exists(&key)).await? {
            return Ok(());
        }
        match self.ask(|| self.archive.claim_of(next)).await? {
            Some(claim) if claim.token == self.owner.token && !keep(Rule::GiveUpClaims) => Ok(()),
            Some(claim) if claim.token == self.owner.token => Err(ArchiveError::Passed { generation: next }),
            Some(claim) => Err(ArchiveError::fenced(&claim)),
            None => Err(ArchiveError::Damaged { key: key.to_string(), what: "the claim is gone".to_owned() }),
        }
    }
}
