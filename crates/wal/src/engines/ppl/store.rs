//! Builds the pages of a database from the database file and the records in the log. The rest of the engine, including
//! its home, builds on this module.
//!
//! To build a page as it was after some transaction, a reader applies the page's records up to that transaction to a
//! base image. The base is the page on flash. While the page is being merged, the base is the image in a slot
//! (SQLite/PPL, section 3.2, log roller). Readers take no lock. Instead a reader compares the epoch before and after
//! its read, and reads again if the epoch has changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use duralite_format::guard::{self, JournalKind};
use duralite_format::page_change::{self, ChangeKind};
use duralite_format::ppl::{Extent, SLOT_HEADER_BYTES, SlotHeader, Superblock};

use super::area::{Area, State};
use super::chain::{Chain, Pages, Record, Walk};
use super::options::PplOptions;
use super::words::{FLOOR, HOME_PAGES, Turn, Words};
use crate::LogError;
use crate::engine::home::DatabaseFile;
use crate::shared::pins::Pins;

/// The number of failed attempts after which a reader yields the processor, and the number after which it gives up.
const SPINS: u32 = 100;
const LAST_TRY: u32 = 1 << 20;

/// A log that this process has open.
pub(super) struct Store {
    pub(super) area: Area,
    pub(super) words: Words,
    pub(super) pages: Pages,
    pub(super) page_bytes: u32,
    /// The pins of followers, if the log can have followers.
    pub(super) pins: Option<Pins>,
    /// When a page's log has this many bytes of records, it counts as full, and the page is due for a merge.
    pub(super) full_bytes: u64,
    pub(super) recent: Recent,
    pub(super) counts: Counts,
}

/// Counters of what this process has done, which it reports as metrics.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) frames: AtomicU64,
    pub(super) generations: AtomicU64,
    /// Records stored, by kind.
    pub(super) records: [AtomicU64; 4],
    pub(super) record_bytes: AtomicU64,
    /// The number of pages that were read and had records, and the total time in nanoseconds spent on applying these
    /// records.
    pub(super) rolled_pages: AtomicU64,
    pub(super) rolled_ns: AtomicU64,
    pub(super) read_pages: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The version of a page that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AsOf {
    /// The version at the page's home position.
    Home,
    /// The version after this transaction. If the log no longer has that version, the oldest later one.
    Transaction(u64),
}

/// A reader's buffers.
#[derive(Default)]
pub(super) struct Scratch {
    chain: Chain,
    records: Vec<Record>,
    payload: Vec<u8>,
}

/// The version of a page that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// The newest transaction whose change the page includes; 0 if the log does not say.
    pub(super) transaction: u64,
    /// Whether the page has a chain. Without a chain, the transaction's number does not identify the version.
    pub(super) is_chained: bool,
}

impl Store {
    /// Makes the store of an open log. It has no pins yet.
    pub(super) fn new(
        area: Area,
        words: Words,
        pages: Pages,
        superblock: &Superblock,
        options: &PplOptions,
    ) -> Self {
        Self {
            area,
            words,
            pages,
            page_bytes: superblock.head.page_bytes,
            pins: None,
            full_bytes: u64::from(superblock.sector_bytes) - 64 + u64::from(options.overflow_bytes),
            recent: Recent::default(),
            counts: Counts::default(),
        }
    }

    /// Takes the lock of the log's structure, and repairs what a dead holder has left.
    pub(super) fn lock(&self) -> Result<Turn<'_>, LogError> {
        let turn = self.words.lock().map_err(|source| self.area.medium(source))?;
        let what = "a process was stopped while it changed the log; resume or end that process";
        let turn = turn.ok_or_else(|| LogError::Busy { path: self.area.path.clone(), what })?;
        if turn.inherited || self.has_open_transaction() || self.words.epoch().is_none() {
            self.repair(&turn)?;
        }
        Ok(turn)
    }

    /// Returns how many pages have a chain; 0 if the page table cannot be read at the moment.
    pub(super) fn logged_pages(&self) -> u64 {
        match &self.pages {
            Pages::Scanned(chains) => chains.len() as u64,
            Pages::Shared => self.area.all_chains().map_or(0, |chains| chains.len() as u64),
        }
    }

    /// Returns the offset of a page in the database.
    pub(super) fn page_offset(&self, page_number: u32) -> u64 {
        u64::from(page_number.saturating_sub(1)) * u64::from(self.page_bytes)
    }

    /// Reads the page as it is on flash.
    pub(super) fn read_flash(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        let count = file.read(page, self.page_offset(page_number))?;
        page[count..].fill(0);
        if page_number == 1
            && page.get(guard::VERSIONS).and_then(JournalKind::of_guard) == Some(JournalKind::Wal)
        {
            guard::unmask(0, page);
        }
        Ok(())
    }

    /// Returns a page's home position. `word` is the [`State::Home`] of the page's chain.
    pub(super) fn home_position(&self, word: u64) -> u64 {
        word.max(self.words.load(FLOOR))
    }

    /// Returns whether the newest version of the page with this chain is later than the page's home position.
    pub(super) fn is_ahead(&self, first: Extent) -> bool {
        self.area.state(first, State::Last) > self.home_position(self.area.state(first, State::Home))
    }

    /// Reads a page into `page`. After an error the contents of `page` are undefined.
    pub(super) fn read(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        as_of: AsOf,
        page: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Version, LogError> {
        self.steadily(|| self.try_read(file, page_number, as_of, page, scratch))
    }

    /// Calls `read` without the lock. If another process may have reused something that `read` was reading, calls
    /// `read` again.
    pub(super) fn steadily<T>(&self, mut read: impl FnMut() -> Result<T, LogError>) -> Result<T, LogError> {
        for tries in 0..LAST_TRY {
            if let Some(epoch) = self.words.epoch() {
                let found = read();
                self.words.fence();
                if self.words.epoch() == Some(epoch) {
                    return found;
                }
            } else if tries % SPINS == SPINS - 1 && !self.words.segment().is_read_only() {
                // The process that was rebuilding the page table may have died. If so, taking the lock repairs the table.
                drop(self.lock()?);
            }
            if tries > SPINS {
                std::thread::yield_now();
            }
        }
        let what = "other processes change the log faster than it can be read";
        Err(LogError::Busy { path: self.area.path.clone(), what })
    }

    /// Calls `look` with the first extent of a page's chain, and returns the result; `None` if the page has no chain.
    /// Takes no lock.
    pub(super) fn look_at_chain<T>(
        &self,
        page_number: u32,
        look: impl Fn(Extent) -> T,
    ) -> Result<Option<T>, LogError> {
        self.steadily(|| Ok(self.area.find_chain(page_number)?.map(&look)))
    }

    /// Returns the newest committed transaction with a record in a page's chain; `None` if the page has no chain. Takes no
    /// lock.
    pub(super) fn last_of(&self, page_number: u32) -> Result<Option<u64>, LogError> {
        self.look_at_chain(page_number, |first| self.area.state(first, State::Last))
    }

    fn try_read(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        as_of: AsOf,
        page: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Version, LogError> {
        Counts::add(&self.counts.read_pages, 1);
        if !self.pages.load(&self.area, page_number, &mut scratch.chain)? {
            self.read_flash(file, page_number, page)?;
            return Ok(Version { transaction: 0, is_chained: false });
        }
        let chain = &scratch.chain;
        let upto = match as_of {
            AsOf::Home => self.home_position(chain.home),
            AsOf::Transaction(number) => number,
        };
        let mut base = chain.merged;
        let slot = chain.slot;
        if let Some(slot) = slot {
            base = base.max(self.slot_header(slot)?.transaction);
        }
        let version = self.collect(base, upto, scratch)?;
        let records = &scratch.records;
        if !version.is_whole {
            match slot {
                Some(slot) => self.read_slot(slot, page)?,
                None => self.read_flash(file, page_number, page)?,
            }
        }
        if !records.is_empty() {
            let start = Instant::now();
            let walk = Walk::new(&self.area, &scratch.chain.extents, self.page_bytes);
            for record in records {
                walk.payload(record, page_number, &mut scratch.payload)?;
                page_change::apply(page, &scratch.payload)
                    .map_err(|what| LogError::Corrupt { offset: record.at, what })?;
            }
            Counts::add(&self.counts.rolled_pages, 1);
            Counts::add(&self.counts.rolled_ns, start.elapsed().as_nanos() as u64);
        }
        Ok(Version { transaction: version.transaction.max(base), is_chained: true })
    }

    /// Collects in `scratch` the records that a reader needs to build the page as of transaction `upto`. These are the
    /// chain's records after transaction `base`, from the last whole image on.
    fn collect(&self, base: u64, upto: u64, scratch: &mut Scratch) -> Result<Collected, LogError> {
        let mut walk = Walk::new(&self.area, &scratch.chain.extents, self.page_bytes).upto(upto);
        let mut found = Collected { transaction: 0, is_whole: false };
        scratch.records.clear();
        while let Some(record) = walk.next()? {
            if record.transaction <= base {
                continue;
            }
            if page_change::kind(&[walk.first_payload_byte(&record)]) == Ok(ChangeKind::Whole) {
                scratch.records.clear();
                found.is_whole = true;
            }
            found.transaction = record.transaction;
            scratch.records.push(record);
        }
        Ok(found)
    }

    /// Returns the header of a slot. The header needs no check here, because recovery checked it, or a living process
    /// stored it.
    pub(super) fn slot_header(&self, slot: u32) -> Result<SlotHeader, LogError> {
        let at = self.area.geometry.slot_offset(slot);
        if slot >= self.area.geometry.slots {
            let what = duralite_format::FormatError::Damaged { what: "the number of a slot" };
            return Err(LogError::Corrupt { offset: at, what });
        }
        let page_number = (self.area.nvm.load_u64(at) & 0xffff_ffff) as u32;
        Ok(SlotHeader { page_number, transaction: self.area.nvm.load_u64(at + 8) })
    }

    pub(super) fn read_slot(&self, slot: u32, page: &mut [u8]) -> Result<(), LogError> {
        self.slot_header(slot)?;
        self.area.nvm.read(self.area.geometry.slot_offset(slot) + SLOT_HEADER_BYTES, page);
        Ok(())
    }

    /// Returns the number of pages that the database has according to its home.
    pub(super) fn home_pages(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        match self.words.load(HOME_PAGES) {
            0 => Ok(file.size()?.div_ceil(u64::from(self.page_bytes))),
            pages => Ok(pages),
        }
    }
}

struct Collected {
    transaction: u64,
    is_whole: bool,
}

/// Returns whether two images of a page are the same. Ignores the version bytes of page 1. In one of the images the
/// guard may have replaced them, so what SQLite wrote there is not known.
pub(super) fn is_same(page_number: u32, one: &[u8], other: &[u8]) -> bool {
    if page_number != 1 || one.len() != other.len() {
        return one == other;
    }
    let (start, end) = (guard::VERSIONS.start, guard::VERSIONS.end);
    one.get(..start) == other.get(..start) && one.get(end..) == other.get(end..)
}

/// The number of places in [`Recent`]. Few are enough, because few threads checkpoint at the same time.
const PLACES: usize = 8;

thread_local! {
    /// The address of this byte identifies the thread.
    static THREAD: u8 = const { 0 };
}

#[derive(Default)]
struct Read {
    thread: usize,
    page_number: u32,
    transaction: u64,
    image: Vec<u8>,
}

/// For each of a few threads, the frame that it read last. SQLite's checkpoint reads a frame and then writes the same
/// image home, in the same thread. So the engine finds the version of that image here, without a search.
#[derive(Default)]
pub(super) struct Recent([Mutex<Read>; PLACES]);

impl Recent {
    fn place(&self) -> Option<(usize, MutexGuard<'_, Read>)> {
        let thread = THREAD.try_with(|byte| std::ptr::from_ref(byte).addr()).ok()?;
        let place = self.0.get((thread / 64) % PLACES)?;
        Some((thread, place.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Records that this thread has just read `page`, as of a transaction.
    pub(super) fn note(&self, page_number: u32, transaction: u64, page: &[u8]) {
        let Some((thread, mut read)) = self.place() else { return };
        (read.thread, read.page_number, read.transaction) = (thread, page_number, transaction);
        read.image.clear();
        read.image.extend_from_slice(page);
    }

    /// Returns the transaction after which the page had the contents `page`, if this thread read that image last.
    pub(super) fn version_of(&self, page_number: u32, page: &[u8]) -> Option<u64> {
        let (thread, read) = self.place()?;
        let is_it = read.thread == thread
            && read.page_number == page_number
            && is_same(page_number, &read.image, page);
        is_it.then_some(read.transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_thread_read_last_is_known() {
        let recent = Recent::default();
        recent.note(5, 9, &[1; 512]);
        assert_eq!(recent.version_of(5, &[1; 512]), Some(9));
        assert_eq!(recent.version_of(5, &[2; 512]), None);
        assert_eq!(recent.version_of(6, &[1; 512]), None);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(recent.version_of(5, &[1; 512]), None));
        });
        recent.note(6, 10, &[1; 512]);
        assert_eq!(recent.version_of(5, &[1; 512]), None);
    }
}
