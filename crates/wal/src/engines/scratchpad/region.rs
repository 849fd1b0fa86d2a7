//! The pages of a region that the logs of several databases share. This module takes pages, gives them back, and reads a
//! chain of them.
//!
//! A process takes a page by exchanging the page's owner word atomically, from 0 to its own word, and gives the page
//! back by storing 0. So it needs no lock. If a process dies, its pages are not lost: the next process that recovers
//! the log gives back those pages of the log to which nothing refers.
//!
//! Invariants kept here: 10, 12, 24. The pages survive a crash; the other fields of [`Region`] do not, and need not. If
//! no page is free, `room` finds pages to give back.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use duralite_format::scratchpad::{
    HEADER_BYTES, LINK_AT, Owner, PAGE_BYTES, PageHeader, RegionSuperblock, STREAM_BYTES, USED_AT, link_word,
    read_link,
};
use duralite_format::{FormatError, LogId};
use duralite_medium::process::{OwnFile, ProcessId};
use duralite_medium::{
    ByteLock, MediumError, Nvm, PersistenceDomain, Segment, lock_byte, persistence_domain, unlock_byte,
};

use super::region_file::RegionFile;
use crate::LogError;

/// Returns the offset of a page in the region.
pub(super) fn offset_of(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES
}

/// A region, as one of its logs uses it.
pub(super) struct Region {
    pub(super) nvm: Arc<dyn Nvm>,
    pub(super) superblock: RegionSuperblock,
    /// The log that uses the region.
    pub(super) id: LogId,
    pub(super) owner: Owner,
    /// The segment that the processes using the log share; `None` for a process that does not use the log.
    pub(super) segment: Option<Arc<dyn Segment>>,
    /// The process slot of this process.
    pub(super) slot: usize,
    /// The page at which the search for a free page begins.
    hint: AtomicU32,
    pub(super) path: PathBuf,
    /// The region's file; `None` if the caller provides the memory.
    pub(super) file: Option<RegionFile>,
    /// The log's file, by which this process finds out whether the file still has a name; `None` if no check is needed.
    pub(super) log_file: Option<OwnFile>,
    /// Whether this process must change nothing in the region.
    is_kept: bool,
    /// The process that opened the region. A child process has no mapping of the region, and gives nothing back (invariant 14).
    process: ProcessId,
}

/// The process slot of a process without a slot.
const NO_SLOT: usize = 255;

/// A function that tells whether a page of a log is needed, as far as the caller knows.
pub(super) type Needed<'a> = Box<dyn Fn(u32) -> bool + 'a>;

impl Region {
    pub(super) fn new(
        nvm: Arc<dyn Nvm>,
        superblock: RegionSuperblock,
        id: LogId,
        segment: Option<Arc<dyn Segment>>,
        path: PathBuf,
        is_kept: bool,
    ) -> Self {
        let (owner, hint) = (Owner::of(id), AtomicU32::new(1));
        let slot = segment.as_ref().map_or(NO_SLOT, |segment| segment.process_slot());
        Self {
            nvm,
            superblock,
            id,
            owner,
            segment,
            slot,
            hint,
            path,
            file: None,
            log_file: None,
            is_kept,
            process: ProcessId::current(),
        }
    }

    /// Returns the number of pages that the file backs, as far as this process knows. Page 0 counts too.
    pub(super) fn pages(&self) -> u32 {
        let pages = self.nvm.len() / PAGE_BYTES;
        u32::try_from(pages).unwrap_or(u32::MAX).min(self.superblock.limit_pages)
    }

    /// Returns the approximate number of pages that all logs have taken. The number is inexact, because a process may die
    /// before it has counted a page.
    pub(super) fn used(&self) -> u64 {
        self.nvm.load_u64(USED_AT).min(u64::from(self.superblock.limit_pages))
    }

    pub(super) fn count(&self, taken: i64) {
        add(&*self.nvm, USED_AT, taken);
    }

    /// Returns whether this process may change anything in the region.
    pub(super) fn is_writable(&self) -> bool {
        !self.is_kept && self.process.is_current()
    }

    /// Corrects the count of taken pages. The caller has read the headers of all pages.
    pub(super) fn set_used(&self, used: u64) {
        if !self.is_kept {
            self.nvm.store_u64(USED_AT, used);
        }
    }

    /// Returns how far a store has to get to survive a power loss, as the platform reports it.
    pub(super) fn persistence_domain(&self) -> PersistenceDomain {
        let dir = self.file.as_ref().and_then(|file| file.path.parent());
        dir.map_or(PersistenceDomain::Unknown, persistence_domain)
    }

    /// Returns the error for damage in a page of the region.
    pub(super) fn corrupt(&self, page: u32, what: &'static str) -> LogError {
        LogError::Corrupt { offset: offset_of(page), what: FormatError::Damaged { what } }
    }

    /// Returns the word that says which log and which process own a page.
    pub(super) fn owner_word(&self, page: u32) -> u64 {
        self.nvm.load_u64(offset_of(page))
    }

    /// Returns whether this log owns a page.
    pub(super) fn is_own(&self, page: u32) -> bool {
        self.reaches(page) && Owner::in_word(self.owner_word(page)) == Some(self.owner)
    }

    /// Returns the header of a page and the tag that the links in the page carry, if the header is one of this log.
    /// Does not check the page's owner.
    pub(super) fn header(&self, page: u32) -> Option<(PageHeader, u32)> {
        if !self.reaches(page) {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        self.nvm.read(offset_of(page), &mut bytes);
        PageHeader::decode(&bytes, self.id, page)
    }

    /// Returns whether the file backs a page. Takes into account that other processes may have grown the region.
    fn reaches(&self, page: u32) -> bool {
        page < self.pages()
            || page < self.superblock.limit_pages
                && self.nvm.refresh_len(offset_of(page) + PAGE_BYTES).is_ok()
    }

    /// Takes a page and stores its header. Makes nothing durable. If no page is free, first gives back pages that
    /// nobody needs. `needed` returns a function that says whether a page of this log is needed, or `None` if the
    /// caller does not know.
    ///
    /// # Errors
    /// `LimitReached` or `RegionFull`, `NoSpace`; `Busy` while another process grows the region.
    pub(super) fn take<'a>(
        &self,
        header: &PageHeader,
        needed: impl FnOnce() -> Option<Needed<'a>>,
    ) -> Result<u32, LogError> {
        if self.is_kept {
            return Err(LogError::Unexpected("a write to a log that is another database's"));
        }
        let refused = loop {
            if let Some(page) = self.find_free() {
                return Ok(self.taken(page, header));
            }
            match self.grow() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        self.collect_dead(needed());
        match self.find_free() {
            Some(page) => Ok(self.taken(page, header)),
            None => Err(refused.unwrap_or_else(|| self.full())),
        }
    }

    fn taken(&self, page: u32, header: &PageHeader) -> u32 {
        self.nvm.store(offset_of(page) + 8, &header.encode(self.id, page));
        self.count(1);
        page
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

    /// Grows the region, at most to twice its size. Returns whether it has grown. Only one process at a time grows a
    /// region.
    fn grow(&self) -> Result<bool, LogError> {
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

    fn locked_growth(&self, place: &RegionFile) -> Result<(), LogError> {
        let before = self.nvm.len();
        for tries in 0.. {
            // Another process may have grown the region.
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
        let what = "another process is extending this region; try again";
        Err(LogError::Busy { path: self.path.clone(), what })
    }

    fn failed(&self, source: MediumError) -> LogError {
        match source {
            MediumError::NoSpace => LogError::NoSpace { dir: self.path.clone() },
            source => LogError::Medium { path: self.path.clone(), source },
        }
    }

    /// Gives back those of `pages` that belong to this log, and skips the others.
    pub(super) fn give_back(&self, pages: impl IntoIterator<Item = u32>) {
        if !self.is_writable() {
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
            // Let the next search start at the lowest of these pages, because they may still be in the processor's
            // caches.
            self.hint.fetch_min(lowest, Ordering::Relaxed);
            self.count(-given);
        }
    }

    /// Links the page `from` to the next page of its transaction, `to`. The link is not durable on return.
    pub(super) fn link(&self, from: u32, tag: u32, to: u32) {
        self.nvm.store_u64(offset_of(from) + LINK_AT, link_word(to, tag));
    }

    /// Returns the page to which the link of `page` leads, if the link is valid.
    pub(super) fn linked(&self, page: u32, tag: u32) -> Option<u32> {
        read_link(self.nvm.load_u64(offset_of(page) + LINK_AT), tag, self.superblock.limit_pages)
    }

    /// Returns the next page of the same transaction, if its header is the expected one.
    pub(super) fn next(&self, page: u32, header: &PageHeader, tag: u32) -> Option<(u32, PageHeader, u32)> {
        let next = self.linked(page, tag)?;
        let (found, tag) = self.header(next)?;
        let expected = PageHeader { index: header.index + 1, ..*header };
        (found == expected && self.is_own(next)).then_some((next, found, tag))
    }

    /// Reads bytes of a transaction's stream, beginning at offset `at` of the region. This offset is after the
    /// header of a page.
    pub(super) fn read_stream(&self, at: u64, buf: &mut [u8]) -> Result<(), LogError> {
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

/// Adds `count` to a word. If the sum would be negative, stores 0.
pub(super) fn add(nvm: &dyn Nvm, at: u64, count: i64) {
    let mut word = nvm.load_u64(at);
    loop {
        match nvm.compare_exchange_u64(at, word, word.saturating_add_signed(count)) {
            Ok(_) => return,
            Err(found) => word = found,
        }
    }
}

/// Returns how many pages this many bytes of a stream take.
pub(super) fn pages_for(bytes: u64) -> u64 {
    bytes.div_ceil(STREAM_BYTES)
}
