//! The pages of a region, which logs of several databases share: taking them, giving them back, reading along them.
//!
//! A page is taken by exchanging its owner's word, from 0, and given back by storing 0. So no lock is needed, and a
//! process that dies loses none: whoever is alone with a log gives back all of its pages that nothing reaches.
//!
//! Invariants kept here: 10, 12, 27. What survives a crash are the pages; the rest of [`Region`] is a hint.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use duralite_logfmt::scratchpad::{
    HEADER_BYTES, LINK_AT, Owner, PAGE_BYTES, PageHeader, RegionSuperblock, STREAM_BYTES, USED_AT, link_word,
    read_link,
};
use duralite_logfmt::{FormatError, LogId};
use duralite_medium::process::ProcessId;
use duralite_medium::{
    ByteLock, MediumError, Nvm, PersistenceDomain, lock_byte, persistence_domain, unlock_byte,
};

use super::region_file::RegionFile;
use crate::JournalError;

/// Offset of a page in the region.
pub(super) fn offset_of(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES
}

/// A region, as one log uses it.
pub(super) struct Region {
    pub(super) nvm: Arc<dyn Nvm>,
    pub(super) superblock: RegionSuperblock,
    /// The log.
    pub(super) id: LogId,
    owner: Owner,
    /// Of this process.
    slot: usize,
    /// Where the search for a free page begins.
    hint: AtomicU32,
    path: PathBuf,
    /// Its file; `None` where the memory is a caller's own.
    pub(super) file: Option<RegionFile>,
    /// What the log has in it stays, whatever becomes of the log here.
    is_kept: bool,
    /// Whose it is: a child has no mapping of it, and gives nothing back (invariant 14).
    process: ProcessId,
}

impl Region {
    pub(super) fn new(
        nvm: Arc<dyn Nvm>,
        superblock: RegionSuperblock,
        id: LogId,
        slot: usize,
        path: PathBuf,
        is_kept: bool,
    ) -> Self {
        let (owner, hint) = (Owner::of(id), AtomicU32::new(1));
        Self {
            nvm,
            superblock,
            id,
            owner,
            slot,
            hint,
            path,
            file: None,
            is_kept,
            process: ProcessId::current(),
        }
    }

    /// Pages that are backed, the first one included, as far as this process knows.
    pub(super) fn pages(&self) -> u32 {
        let pages = self.nvm.len() / PAGE_BYTES;
        u32::try_from(pages).unwrap_or(u32::MAX).min(self.superblock.limit_pages)
    }

    /// Pages that are taken, of all logs, more or less: a process may die before it has counted.
    pub(super) fn used(&self) -> u64 {
        self.nvm.load_u64(USED_AT).min(u64::from(self.superblock.limit_pages))
    }

    fn count(&self, taken: i64) {
        let mut word = self.nvm.load_u64(USED_AT);
        loop {
            let next = word.saturating_add_signed(taken);
            match self.nvm.compare_exchange_u64(USED_AT, word, next) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }

    /// Counts anew; by who reads all headers anyway.
    pub(super) fn set_used(&self, used: u64) {
        if !self.is_kept {
            self.nvm.store_u64(USED_AT, used);
        }
    }

    /// How far a store has to get to survive a power failure, as the platform says.
    pub(super) fn persistence_domain(&self) -> PersistenceDomain {
        let dir = self.file.as_ref().and_then(|file| file.path.parent());
        dir.map_or(PersistenceDomain::Unknown, persistence_domain)
    }

    /// An error about a place in the region.
    pub(super) fn corrupt(&self, page: u32, what: &'static str) -> JournalError {
        JournalError::Corrupt { offset: offset_of(page), what: FormatError::Damaged { what } }
    }

    /// The word that says whose a page is.
    pub(super) fn owner_word(&self, page: u32) -> u64 {
        self.nvm.load_u64(offset_of(page))
    }

    /// Whether a page is this log's.
    pub(super) fn is_own(&self, page: u32) -> bool {
        self.reaches(page) && Owner::in_word(self.owner_word(page)) == Some(self.owner)
    }

    /// The header of a page and the tag of its links, if it is of this log, whoever owns it.
    pub(super) fn header(&self, page: u32) -> Option<(PageHeader, u32)> {
        if !self.reaches(page) {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        self.nvm.read(offset_of(page), &mut bytes);
        PageHeader::decode(&bytes, self.id, page)
    }

    /// Whether a page is backed; other processes may have grown the region.
    fn reaches(&self, page: u32) -> bool {
        page < self.pages()
            || page < self.superblock.limit_pages
                && self.nvm.refresh_len(offset_of(page) + PAGE_BYTES).is_ok()
    }

    /// Takes a page and stores its header. Not durable.
    pub(super) fn take(&self, header: &PageHeader) -> Result<u32, JournalError> {
        if self.is_kept {
            return Err(JournalError::Unexpected("a write to a log that is another database's"));
        }
        loop {
            if let Some(page) = self.find_free() {
                self.nvm.store(offset_of(page) + 8, &header.encode(self.id, page));
                self.count(1);
                return Ok(page);
            }
            if !self.grow()? {
                return Err(JournalError::LimitReached { limit_bytes: self.superblock.limit_bytes() });
            }
        }
    }

    fn find_free(&self) -> Option<u32> {
        let pages = self.pages();
        let hint = self.hint.load(Ordering::Relaxed).clamp(1, pages.max(1));
        let word = self.owner.word(self.slot);
        let found = (hint..pages).chain(1..hint).find(|page| {
            let at = offset_of(*page);
            self.nvm.load_u64(at) == 0 && self.nvm.compare_exchange_u64(at, 0, word).is_ok()
        })?;
        self.hint.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    /// Makes the region longer, up to twice; whether it is now. One process at a time does.
    fn grow(&self) -> Result<bool, JournalError> {
        let (before, limit) = (self.nvm.len(), self.superblock.limit_bytes());
        if before >= limit {
            return Ok(false);
        }
        if let Some(place) = &self.file {
            self.locked_growth(place)?;
        } else {
            self.nvm.grow((before * 2).min(limit)).map_err(|source| self.failed(source))?;
        }
        Ok(self.nvm.len() > before)
    }

    fn locked_growth(&self, place: &RegionFile) -> Result<(), JournalError> {
        let before = self.nvm.len();
        for tries in 0.. {
            // Another process may have done it.
            if self.nvm.refresh_len(before + PAGE_BYTES).is_ok() {
                return Ok(());
            }
            let locked = lock_byte(&place.file, ByteLock::Exclusive, RegionFile::GROWING_AT);
            if locked.map_err(|source| self.failed(source))? {
                let to = (before * 2).min(self.superblock.limit_bytes());
                let grown = match self.nvm.refresh_len(before + PAGE_BYTES) {
                    Ok(()) => Ok(()),
                    Err(_) => self.nvm.grow(to),
                };
                unlock_byte(&place.file, RegionFile::GROWING_AT);
                return grown.map_err(|source| self.failed(source));
            }
            if tries >= RegionFile::TRIES {
                break;
            }
            std::thread::sleep(RegionFile::PAUSE);
        }
        let what = "another process makes the region of its log longer just now";
        Err(JournalError::Busy { path: self.path.clone(), what })
    }

    fn failed(&self, source: MediumError) -> JournalError {
        match source {
            MediumError::NoSpace => JournalError::NoSpace { dir: self.path.clone() },
            source => JournalError::Medium { path: self.path.clone(), source },
        }
    }

    /// Gives pages back that are this log's; others are left alone.
    pub(super) fn give_back(&self, pages: impl IntoIterator<Item = u32>) {
        if self.is_kept || !self.process.is_current() {
            return;
        }
        let (mut given, mut lowest) = (0, u32::MAX);
        for page in pages {
            let word = self.owner_word(page);
            if Owner::in_word(word) == Some(self.owner)
                && self.nvm.compare_exchange_u64(offset_of(page), word, 0).is_ok()
            {
                (given, lowest) = (given + 1, lowest.min(page));
            }
        }
        if given > 0 {
            // What was used last is in the caches.
            self.hint.fetch_min(lowest, Ordering::Relaxed);
            self.count(-given);
        }
    }

    /// Gives back what this log's processes have left: all pages but those that `keeps` and those of other processes
    /// that live.
    pub(super) fn collect(&self, keeps: impl Fn(u32) -> bool, lives: impl Fn(usize) -> bool) {
        if self.is_kept || !self.process.is_current() {
            return;
        }
        let mut given = 0;
        for page in 1..self.pages() {
            let word = self.owner_word(page);
            let slot = Owner::slot_in(word);
            let is_left = Owner::in_word(word) == Some(self.owner) && (slot == self.slot || !lives(slot));
            // Only as it was looked at: somebody may have given it back meanwhile, and taken it again.
            if is_left && !keeps(page) && self.nvm.compare_exchange_u64(offset_of(page), word, 0).is_ok() {
                given += 1;
            }
        }
        self.count(-given);
    }

    /// Gives back the pages of logs that are no more: those of owners that are gone.
    fn reclaim(&self, is_gone: impl Fn(Owner) -> bool) {
        let mut given = 0;
        for page in 1..self.pages() {
            let word = self.owner_word(page);
            let Some(owner) = Owner::in_word(word) else { continue };
            if owner != self.owner
                && is_gone(owner)
                && self.nvm.compare_exchange_u64(offset_of(page), word, 0).is_ok()
            {
                given += 1;
            }
        }
        self.count(-given);
    }

    /// Gives back what logs have whose files are gone.
    pub(super) fn reclaim_gone(&self) {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_kept) else { return };
        let gone = file.gone(self.superblock.id, &self.owners());
        if !gone.is_empty() {
            self.reclaim(|owner| gone.contains(&owner));
        }
    }

    /// The owners of pages, each once.
    fn owners(&self) -> Vec<Owner> {
        let mut owners: Vec<_> =
            (1..self.pages()).filter_map(|page| Owner::in_word(self.owner_word(page))).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Links a page to another one of its transaction. Not durable.
    pub(super) fn link(&self, from: u32, tag: u32, to: u32) {
        self.nvm.store_u64(offset_of(from) + LINK_AT, link_word(to, tag));
    }

    /// The page that a page is linked to, if the link is one.
    pub(super) fn linked(&self, page: u32, tag: u32) -> Option<u32> {
        read_link(self.nvm.load_u64(offset_of(page) + LINK_AT), tag, self.superblock.limit_pages)
    }

    /// The page after this one in its transaction, with its header checked.
    pub(super) fn next(&self, page: u32, header: &PageHeader, tag: u32) -> Option<(u32, PageHeader, u32)> {
        let next = self.linked(page, tag)?;
        let (found, tag) = self.header(next)?;
        let expected = PageHeader { index: header.index + 1, ..*header };
        (found == expected && self.is_own(next)).then_some((next, found, tag))
    }

    /// Reads bytes of a transaction's stream from `at` on, which is behind the header of a page.
    pub(super) fn read_stream(&self, at: u64, buf: &mut [u8]) -> Result<(), JournalError> {
        let broken = |page| self.corrupt(page, "the chain of pages of a transaction");
        let mut page = u32::try_from(at / PAGE_BYTES).unwrap_or(u32::MAX);
        let mut within = at % PAGE_BYTES;
        let mut rest = buf;
        loop {
            let here = rest.len().min((PAGE_BYTES - within) as usize);
            let (now, later) = rest.split_at_mut(here);
            if !self.reaches(page) {
                return Err(broken(page));
            }
            self.nvm.read(offset_of(page) + within, now);
            if later.is_empty() {
                return Ok(());
            }
            let (header, tag) = self.header(page).ok_or_else(|| broken(page))?;
            (page, _, _) = self.next(page, &header, tag).ok_or_else(|| broken(page))?;
            (within, rest) = (HEADER_BYTES, later);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Whoever is the last one leaves no region behind that is good for nobody.
        let is_ours = !self.is_kept && self.process.is_current();
        let Some(file) = self.file.as_ref().filter(|_| is_ours) else { return };
        // A log that was moved elsewhere may own pages still.
        if file.is_unused() && self.owners().is_empty() {
            file.remove_unused(self.superblock.id);
        }
    }
}

/// How many pages hold so many bytes of a stream.
pub(super) fn pages_for(bytes: u64) -> u64 {
    bytes.div_ceil(STREAM_BYTES)
}
