//! The open transaction (SQLite/PPL, section 3.2, log capturer): its frames are kept as changes of the committed pages until
//! it is sealed.
//!
//! The paper stores records as SQLite changes pages. Here SQLite hands over pages, some of them more than once, and may
//! take them back (`ROLLBACK TO`); so records are stored when it is known which. What is rolled back leaves nothing.

use duralite_logfmt::page_change::{self, ChangeKind};

use super::Ppl;
use super::area::State;
use super::frames::Entry;
use super::seal::{Change, Sealing};
use super::staged::StagedFrame;
use super::store::{AsOf, Scratch};
use super::words::SEALED;
use crate::JournalError;
use crate::engine::Commit;
use crate::home::DatabaseFile;

/// The version of an image that is on flash only: good until its transaction is sealed, and no longer.
const ON_FLASH: u64 = 0;
/// No version at all: the change needs none.
const NO_IMAGE: u64 = u64::MAX;

impl Ppl {
    /// Finds what a page's frame changes, and keeps that.
    pub(super) fn stage_frame(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), JournalError> {
        if self.staged.is_empty() {
            self.settle_open()?;
        }
        let mut payload = self.staged.spare();
        let base = if self.store.is_new(file, page_number)? {
            page_change::encode_whole(page, &mut payload);
            NO_IMAGE
        } else {
            let version = self.load_image(file, page_number)?;
            let missing = JournalError::Unexpected("an image that was kept just now");
            let image = self.images.get(page_number, version).ok_or(missing)?;
            let header_bytes = page_change::header_bytes(page_number);
            page_change::encode(&mut self.encoder, image, page, header_bytes, &mut payload);
            version
        };
        let (_, limit_bytes) = self.store.area.fill(&self.store.words);
        if self.staged.bytes() + payload.len() as u64 > limit_bytes {
            return Err(JournalError::LimitReached { limit_bytes });
        }
        self.staged.put(frame, StagedFrame { page_number, base, payload })
    }

    /// Completes or drops what a writer has left who died while sealing. What is changed from now on is changed from that;
    /// the caller holds what keeps other writers out.
    pub(super) fn settle_open(&mut self) -> Result<(), JournalError> {
        if self.store.has_open_transaction() {
            drop(self.store.lock()?);
        }
        // Somebody else may have completed it, after this process has looked.
        if self.store.words.load(SEALED) != self.frames.known() {
            self.frames.refresh(&self.store.area, &self.store.words)?;
        }
        Ok(())
    }

    /// Sees to it that a page is cached as of the newest commit; returns by which version.
    pub(super) fn load_image(
        &mut self,
        file: &dyn DatabaseFile,
        page_number: u32,
    ) -> Result<u64, JournalError> {
        if let Some(first) = self.store.area.find_chain(page_number)? {
            let last = self.store.area.state(first, State::Last);
            // A chain whose first transaction is being stored tells nothing of the images.
            if last != ON_FLASH && self.images.get(page_number, last).is_some() {
                return Ok(last);
            }
        }
        let mut image = std::mem::take(&mut self.image);
        image.resize(self.store.page_bytes as usize, 0);
        let newest = AsOf::Transaction(self.frames.known());
        let read = self.store.read(file, page_number, newest, &mut image, &mut self.scratch);
        // One that is on flash only has no number by which it could be told from another.
        let version = read.map(|read| if read.is_chained { read.transaction } else { ON_FLASH });
        if let Ok(version) = version {
            self.images.put(page_number, version, &image);
        }
        self.image = image;
        version
    }

    /// Copies a page as of the newest commit.
    pub(super) fn committed_page(
        &mut self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &mut [u8],
    ) -> Result<(), JournalError> {
        let version = self.load_image(file, page_number)?;
        let missing = JournalError::Unexpected("an image that was kept just now");
        page.copy_from_slice(self.images.get(page_number, version).ok_or(missing)?);
        Ok(())
    }

    /// Commits the staged frames.
    pub(super) fn seal_staged(
        &mut self,
        file: &dyn DatabaseFile,
        commit: &Commit,
    ) -> Result<(), JournalError> {
        let Commit { first_frame, last_frame, db_pages, checksum } = *commit;
        let unknown = JournalError::Unexpected("a commit of frames that are not staged");
        let (pages, bases) = self.staged.newest(first_frame, last_frame).ok_or(unknown)?;
        let mut changes = self.undo_replaced(file, first_frame, &pages)?;
        let undone = changes.len();
        let mut versions = Vec::with_capacity(bases.len());
        for at in bases {
            // Of a page that was written as it is nothing has to be recorded, nor of one beyond the end, which is in the log
            // because SQLite's cache was full.
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
            // Only now: a checkpoint may have stored a transaction of its own meanwhile.
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

    /// Takes the cached image of a page on by a change of what it was as of `base`.
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

    /// What takes back transactions whose frames this one takes the place of: they were sealed, and their writer died
    /// before anybody could see them. Pages that this transaction changes are changed from what is there.
    fn undo_replaced(
        &mut self,
        file: &dyn DatabaseFile,
        first_frame: u32,
        staged: &[u32],
    ) -> Result<Vec<Change>, JournalError> {
        let Some((number, pages)) = self.frames.replaced_by(first_frame) else { return Ok(Vec::new()) };
        let mut pages: Vec<u32> = pages.iter().copied().filter(|page| !staged.contains(page)).collect();
        pages.sort_unstable();
        pages.dedup();
        let before = AsOf::Transaction(number - 1);
        self.changes_to(file, &pages, before)
    }

    /// What makes these pages again what they were.
    pub(super) fn changes_to(
        &mut self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        as_of: AsOf,
    ) -> Result<Vec<Change>, JournalError> {
        let mut changes = Vec::new();
        let bytes = self.store.page_bytes as usize;
        let (mut now, mut then) = (vec![0; bytes], vec![0; bytes]);
        let mut scratch = Scratch::default();
        for &page_number in pages {
            let newest = AsOf::Transaction(self.store.words.load(SEALED));
            self.store.read(file, page_number, newest, &mut now, &mut scratch)?;
            self.store.read(file, page_number, as_of, &mut then, &mut scratch)?;
            if now != then {
                let mut payload = Vec::new();
                let header_bytes = page_change::header_bytes(page_number);
                page_change::encode(&mut self.encoder, &now, &then, header_bytes, &mut payload);
                changes.push(Change { page_number, payload });
            }
        }
        Ok(changes)
    }
}
