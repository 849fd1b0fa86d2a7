//! The open transaction (SQLite/PPL, section 3.2, log capturer). Until the writer seals the transaction, it keeps the frames
//! in memory, as changes of the committed pages.
//!
//! The paper stores records as SQLite changes pages. Here SQLite hands over whole pages, some of them more than once, and
//! may withdraw them (`ROLLBACK TO`). So the engine stores records only at the commit, when it knows which frames are valid,
//! and frames that SQLite rolls back leave nothing in the log.

use duralite_format::page_change::{self, ChangeKind};

use super::Ppl;
use super::frames::{Entry, StagedFrame};
use super::seal::{Change, Sealing};
use super::store::AsOf;
use super::words::SEALED;
use crate::LogError;
use crate::engine::Commit;
use crate::engine::home::DatabaseFile;

/// The version of an image that was read from flash, without applying records. Such an image is valid only until the
/// open transaction is sealed.
const ON_FLASH: u64 = 0;
/// Stands for a base version if a change is a whole page, which needs no base.
const NO_IMAGE: u64 = u64::MAX;

impl Ppl {
    /// Computes what a frame changes in its page, and keeps that change.
    pub(super) fn stage_frame(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError> {
        if self.staged.is_empty() {
            self.settle_open()?;
        }
        let mut payload = self.staged.spare();
        let base = if self.store.is_new(file, page_number)? {
            page_change::encode_whole(page, &mut payload);
            NO_IMAGE
        } else {
            let version = self.load_image(file, page_number)?;
            let missing = LogError::Unexpected("an image that was kept just now");
            let image = self.images.get(page_number, version).ok_or(missing)?;
            let header_bytes = page_change::header_bytes(page_number);
            page_change::encode(&mut self.encoder, image, page, header_bytes, &mut payload);
            version
        };
        let limit_bytes = self.store.area.limit_bytes();
        if self.staged.bytes() + payload.len() as u64 > limit_bytes {
            return Err(LogError::LimitReached { limit_bytes });
        }
        self.staged.put(frame, StagedFrame { page_number, base, payload })
    }

    /// Completes or drops a transaction whose writer died while sealing it, because the changes of later transactions
    /// build on the result. The caller holds the lock that excludes other writers.
    pub(super) fn settle_open(&mut self) -> Result<(), LogError> {
        if self.store.has_open_transaction() {
            drop(self.store.lock()?);
        }
        // Another process may already have completed that transaction since this process last looked.
        if self.store.words.load(SEALED) != self.frames.known() {
            self.frames.refresh(&self.store.area, &self.store.words)?;
        }
        Ok(())
    }

    /// Loads the newest committed version of a page into the cache, if it is not there. Returns the number of that version.
    pub(super) fn load_image(&mut self, file: &dyn DatabaseFile, page_number: u32) -> Result<u64, LogError> {
        if let Some(last) = self.store.last_of(page_number)?
            // While a process stores the first record of a chain, `last` is 0. In that case `last` does not show
            // whether a cached image is current.
            && last != ON_FLASH
            && self.images.get(page_number, last).is_some()
        {
            return Ok(last);
        }
        let mut image = std::mem::take(&mut self.image);
        image.resize(self.store.page_bytes as usize, 0);
        let newest = AsOf::Transaction(self.frames.known());
        let read = self.store.read(file, page_number, newest, &mut image, &mut self.scratch);
        // An image that was read from flash alone has no number that distinguishes it from other images.
        let version = read.map(|read| if read.is_chained { read.transaction } else { ON_FLASH });
        if let Ok(version) = version {
            self.images.put(page_number, version, &image);
        }
        self.image = image;
        version
    }

    /// Copies the newest committed version of a page.
    pub(super) fn committed_page(
        &mut self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        let version = self.load_image(file, page_number)?;
        let missing = LogError::Unexpected("an image that was kept just now");
        page.copy_from_slice(self.images.get(page_number, version).ok_or(missing)?);
        Ok(())
    }

    /// Commits the staged frames.
    pub(super) fn seal_staged(&mut self, file: &dyn DatabaseFile, commit: &Commit) -> Result<(), LogError> {
        let Commit { first_frame, last_frame, db_pages, checksum } = *commit;
        let unknown = LogError::Unexpected("a commit of frames that are not staged");
        let (pages, bases) = self.staged.newest(first_frame, last_frame).ok_or(unknown)?;
        let mut changes = self.undo_replaced(file, first_frame, &pages)?;
        let undone = changes.len();
        let mut versions = Vec::with_capacity(bases.len());
        for at in bases {
            // A page that was written unchanged needs no record. Neither does a page beyond the end of the database, which
            // SQLite spilled into the log because its cache was full.
            if let Some(StagedFrame { page_number, base, payload }) = self.staged.take(at)
                && !page_change::is_empty(&payload)
                && page_number <= db_pages
            {
                changes.push(Change { page_number, payload });
                versions.push(base);
            }
        }
        let time_ms = (self.clock)();
        let sealed = self.store.lock_for(file, &changes, pages.len()).and_then(|turn| {
            // Read the number only now, because a checkpoint may have added a transaction after the frames were staged.
            let number = self.store.words.load(SEALED) + 1;
            let entry = Entry { number, first_frame, db_pages, checksum, time_ms, pages };
            let sealing = Sealing { changes: &changes, entry, retired: false };
            self.store.seal(&turn, &sealing, &mut self.buffers).map(|()| number)
        });
        self.staged.clear();
        let number = sealed?;
        for change in changes.drain(..undone) {
            self.images.remove(change.page_number);
        }
        for (change, base) in changes.into_iter().zip(versions) {
            self.advance_image(&change, base, number);
            self.staged.reuse(change.payload);
        }
        self.frames.refresh(&self.store.area, &self.store.words)?;
        Ok(())
    }

    /// Updates the cached image of a page after a change: the image of version `base` becomes the image of version
    /// `number`.
    fn advance_image(&mut self, change: &Change, base: u64, number: u64) {
        let page_number = change.page_number;
        let renews = |image: &mut [u8]| page_change::apply(image, &change.payload).is_ok();
        if self.images.get(page_number, base).is_some() {
            self.images.renew(page_number, Some(base), number, renews);
            return;
        }
        if page_change::kind(&change.payload) == Ok(ChangeKind::Whole) {
            let mut image = std::mem::take(&mut self.image);
            image.resize(self.store.page_bytes as usize, 0);
            if page_change::apply(&mut image, &change.payload).is_ok() {
                self.images.put(page_number, number, &image);
            }
            self.image = image;
            return;
        }
        self.images.remove(page_number);
    }

    /// Returns the changes that undo the transactions whose frames this transaction replaces. Those transactions were
    /// sealed, but their writer died before any reader could see them. Pages that this transaction itself changes need no
    /// undo, because its changes are relative to the newest version.
    fn undo_replaced(
        &mut self,
        file: &dyn DatabaseFile,
        first_frame: u32,
        staged: &[u32],
    ) -> Result<Vec<Change>, LogError> {
        let Some((number, pages)) = self.frames.replaced_by(first_frame) else { return Ok(Vec::new()) };
        let mut pages: Vec<u32> = pages.iter().copied().filter(|page| !staged.contains(page)).collect();
        pages.sort_unstable();
        pages.dedup();
        let before = AsOf::Transaction(number - 1);
        self.changes_to(file, &pages, before)
    }

    /// Returns changes, as short as possible, that lead from the newest versions of these pages to the versions that
    /// `as_of` selects.
    pub(super) fn changes_to(
        &mut self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        as_of: AsOf,
    ) -> Result<Vec<Change>, LogError> {
        let encoder = &mut self.encoder;
        self.store.changes_to(file, pages, as_of, |page_number, now, then, payload| {
            let header_bytes = page_change::header_bytes(page_number);
            page_change::encode(encoder, now, then, header_bytes, payload);
        })
    }
}
