//! The pages of a database whose newest records are in a log: what all users of the log, and its home, stand on.
//!
//! A page after a transaction is its page on flash, or the image that it is being merged from, and after that its records
//! up to the transaction (SQLite/PPL, section 3.2, log roller). Readers take no lock: they look whether the epoch is
//! still the same once they have read, and begin again if it is not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use duralite_logfmt::guard::{self, JournalKind};
use duralite_logfmt::page_change::{self, ChangeKind};
use duralite_logfmt::ppl::{Extent, SLOT_HEADER_BYTES, SlotHeader};

use super::area::{Area, State};
use super::chain::{Record, Walk};
use super::pages::{Chain, Pages};
use super::recent::Recent;
use super::words::{FLOOR, HOME_PAGES, Turn, Words};
use crate::JournalError;
use crate::home::DatabaseFile;
use crate::pins::Pins;

/// Times that a reader begins again before it lets others run, and before it gives up.
const SPINS: u32 = 100;
const LAST_TRY: u32 = 1 << 20;

/// A log that this process has open.
pub(super) struct Store {
    pub(super) area: Area,
    pub(super) words: Words,
    pub(super) pages: Pages,
    pub(super) page_bytes: u32,
    /// What followers have pinned, where there can be followers.
    pub(super) pins: Option<Pins>,
    /// Bytes of records that a page may have before it is to be merged.
    pub(super) full_bytes: u64,
    pub(super) recent: Recent,
    pub(super) figures: Figures,
}

/// What this process has done.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) commits: AtomicU64,
    pub(super) frames: AtomicU64,
    pub(super) generations: AtomicU64,
    /// Records stored, by kind.
    pub(super) records: [AtomicU64; 4],
    pub(super) record_bytes: AtomicU64,
    /// Pages that were read and had records, and the time that laying those over them took.
    pub(super) rolled_pages: AtomicU64,
    pub(super) rolled_ns: AtomicU64,
    pub(super) read_pages: AtomicU64,
}

impl Figures {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// As of when a page is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AsOf {
    /// As its home shows it.
    Home,
    /// After a transaction, or the oldest state after that which there still is.
    Transaction(u64),
}

/// Buffers of whoever reads pages.
#[derive(Default)]
pub(super) struct Scratch {
    chain: Chain,
    records: Vec<Record>,
    payload: Vec<u8>,
}

/// A page as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// The newest transaction with a record in it; 0 where there is none.
    pub(super) transaction: u64,
    /// Whether the page has a chain, so that the number tells one version from another.
    pub(super) is_chained: bool,
}

impl Store {
    /// Takes the lock of the structure, and puts right what a dead holder has left.
    pub(super) fn lock(&self) -> Result<Turn<'_>, JournalError> {
        let turn = self.words.lock().map_err(|source| self.area.medium(source))?;
        let what = "a process is stopped while it changes the log";
        let turn = turn.ok_or_else(|| JournalError::Busy { path: self.area.path.clone(), what })?;
        if turn.inherited || self.has_open_transaction() || self.words.epoch().is_none() {
            self.repair(&turn)?;
        }
        Ok(turn)
    }

    /// Pages that have a log; 0 where that cannot be told just now.
    pub(super) fn logged_pages(&self) -> u64 {
        match &self.pages {
            Pages::Scanned(chains) => chains.len() as u64,
            Pages::Shared => self.area.all_chains().map_or(0, |chains| chains.len() as u64),
        }
    }

    /// Where a page begins in the database.
    pub(super) fn page_offset(&self, page_number: u32) -> u64 {
        u64::from(page_number.saturating_sub(1)) * u64::from(self.page_bytes)
    }

    /// The page as it is on flash.
    pub(super) fn read_flash(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &mut [u8],
    ) -> Result<(), JournalError> {
        let count = file.read(page, self.page_offset(page_number))?;
        page[count..].fill(0);
        if page_number == 1
            && page.get(guard::VERSIONS).and_then(JournalKind::of_guard) == Some(JournalKind::Wal)
        {
            guard::unmask(0, page);
        }
        Ok(())
    }

    /// The transaction that a page is home up to, by the word of its chain ([`State::Home`]).
    pub(super) fn home_position(&self, word: u64) -> u64 {
        word.max(self.words.load(FLOOR))
    }

    /// Whether the newest version of a chain's page is not at home.
    pub(super) fn is_ahead(&self, first: Extent) -> bool {
        self.area.state(first, State::Last) > self.home_position(self.area.state(first, State::Home))
    }

    /// Reads a page, which `page` holds on return; anything if that fails.
    pub(super) fn read(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        as_of: AsOf,
        page: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Version, JournalError> {
        for tries in 0..LAST_TRY {
            if let Some(epoch) = self.words.epoch() {
                let read = self.try_read(file, page_number, as_of, page, scratch);
                self.words.fence();
                if self.words.epoch() == Some(epoch) {
                    return read;
                }
            } else if tries % SPINS == SPINS - 1 && !self.words.segment().is_read_only() {
                // Whoever made the page table anew may have died.
                drop(self.lock()?);
            }
            if tries > SPINS {
                std::thread::yield_now();
            }
        }
        let what = "its log changes for ever";
        Err(JournalError::Busy { path: self.area.path.clone(), what })
    }

    fn try_read(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        as_of: AsOf,
        page: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Version, JournalError> {
        Figures::add(&self.figures.read_pages, 1);
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
                    .map_err(|what| JournalError::Corrupt { offset: record.at, what })?;
            }
            Figures::add(&self.figures.rolled_pages, 1);
            Figures::add(&self.figures.rolled_ns, start.elapsed().as_nanos() as u64);
        }
        Ok(Version { transaction: version.transaction.max(base), is_chained: true })
    }

    /// Finds the records of the chain in `scratch` that make a page as of a transaction, from the last whole image on.
    fn collect(&self, base: u64, upto: u64, scratch: &mut Scratch) -> Result<Collected, JournalError> {
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

    /// The header of a slot, which its owner has checked.
    pub(super) fn slot_header(&self, slot: u32) -> Result<SlotHeader, JournalError> {
        let at = self.area.geometry.slot_offset(slot);
        if slot >= self.area.geometry.slots {
            let what = duralite_logfmt::FormatError::Damaged { what: "the number of a slot" };
            return Err(JournalError::Corrupt { offset: at, what });
        }
        let page_number = (self.area.nvm.load_u64(at) & 0xffff_ffff) as u32;
        Ok(SlotHeader { page_number, transaction: self.area.nvm.load_u64(at + 8) })
    }

    pub(super) fn read_slot(&self, slot: u32, page: &mut [u8]) -> Result<(), JournalError> {
        self.slot_header(slot)?;
        self.area.nvm.read(self.area.geometry.slot_offset(slot) + SLOT_HEADER_BYTES, page);
        Ok(())
    }

    /// Pages of the database as its home shows it.
    pub(super) fn home_pages(&self, file: &dyn DatabaseFile) -> Result<u64, JournalError> {
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
