//! Reads logs for `duralite verify` and `duralite salvage`, with the code that recovers logs.
//!
//! A `ppl` log is not one sequence, because each page has a chain of records. If a page's chain is damaged, salvage
//! knows the page only up to the record before the damage. So here "before the damage" means: up to the newest
//! transaction at which salvage can still build all pages that have chains.

use std::collections::BTreeMap;
use std::sync::Arc;

use duralite_format::page_change::{self, ChangeKind};
use duralite_format::ppl::{
    RECORD_HEADER_BYTES, Superblock, TRANSACTION_BYTES, TRANSACTIONS, TransactionKind, TransactionRecord,
};
use duralite_medium::LocalSegment;
use rustc_hash::FxHashMap;

use super::area::Area;
use super::chain::{Chain, Pages, Record, Walk};
use super::recovery::{Scanned, scan_damaged};
use super::store::Store;
use super::words::{SHARED, Words};
use super::{Ppl, PplOptions};
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::salvage::{
    Damage, Later, LaterPage, LaterTransaction, Point, Salvaged, Source, damage_of, held,
};
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use crate::{ErrorKind, LogError};

/// Visits, in order, every committed transaction that still has records in the log. Checks every record, and rebuilds
/// every page from its version in the database file. In a damaged log, visits the transactions before the damage; to
/// find them, `damaged` opens the log again without its chains. Stores nothing.
pub(super) fn walk(
    log: Result<Ppl, LogError>,
    damaged: impl FnOnce() -> Result<(Area, Superblock), LogError>,
    file: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let mut visited = false;
    let result = log.and_then(|log| {
        log.walk(file, &mut |transaction| {
            visited = true;
            visit(transaction);
        })
    });
    match result {
        Err(error) if error.kind() == ErrorKind::Corrupt && !visited => {
            let (area, superblock) = damaged()?;
            let found = records_before_damage(area, &superblock)?;
            let found =
                found.iter().map(|(page, record, whole)| (record.transaction, walked(record, *page, *whole)));
            visit_all(found.collect(), visit);
            Err(error)
        }
        result => result,
    }
}

/// Passes transactions, each with its records, to `visit` in the order of their numbers.
fn visit_all(mut found: Vec<(u64, WalkedRecord)>, visit: &mut dyn FnMut(&WalkedTransaction)) {
    found.sort_by_key(|(number, record)| (*number, record.page_number));
    for (sequence, records) in (1u32..).zip(found.chunk_by(|one, other| one.0 == other.0)) {
        let number = records.first().map_or(0, |(number, _)| *number);
        visit(&WalkedTransaction {
            sequence,
            offset: TransactionRecord::offset(number),
            first_frame: 0,
            last_frame: 0,
            db_pages: 0,
            order: "ppl",
            records: records.iter().map(|(_, record)| record.clone()).collect(),
        });
    }
}

/// Returns a page's record as a walk reports it.
fn walked(record: &Record, page_number: u32, whole: bool) -> WalkedRecord {
    let record_bytes = RECORD_HEADER_BYTES + record.payload_bytes;
    WalkedRecord { offset: record.at, frame: 0, page_number, record_bytes, ranges: 0, whole }
}

impl Ppl {
    /// Visits the committed transactions of a log in order, and checks every record and page. The log is open read-only.
    ///
    /// # Errors
    /// `Corrupt`; the errors of reading the database file.
    pub fn walk(
        &self,
        file: &dyn DatabaseFile,
        visit: &mut dyn FnMut(&WalkedTransaction),
    ) -> Result<WalkSummary, LogError> {
        visit_all(records_of(self)?, visit);
        self.check_pages(file)?;
        Ok(WalkSummary {
            generation: 1,
            transactions: u32::try_from(self.position()).unwrap_or(u32::MAX),
            frames: 0,
            retired: self.is_spent(),
            mismatch: None,
        })
    }
}

/// Returns all records of committed transactions, each with the number of its transaction. Checks every record.
fn records_of(log: &Ppl) -> Result<Vec<(u64, WalkedRecord)>, LogError> {
    let store = &log.store;
    let Pages::Scanned(chains) = &store.pages else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut payload = Vec::new();
    for (page_number, chain) in chains {
        let mut walk = Walk::new(&store.area, &chain.extents, store.page_bytes);
        while let Some(record) = walk.next()? {
            if record.transaction > log.position() {
                break;
            }
            walk.payload(&record, *page_number, &mut payload)?;
            let whole = page_change::kind(&payload) == Ok(ChangeKind::Whole);
            found.push((record.transaction, walked(&record, *page_number, whole)));
        }
    }
    Ok(found)
}

/// What is known of the versions of one page.
struct History {
    chain: Chain,
    /// The newest transaction whose changes the page's image includes. The image is in the slot or in the database
    /// file.
    base: u64,
    /// The records after that image, up to the first record whose check fails.
    records: Vec<Record>,
    /// The first transaction whose version of the page may be lost; `None` if no version is lost.
    limit: Option<u64>,
}

/// The readable part of a log.
struct UpToDamage {
    source: PagesAsOf,
    commits: BTreeMap<u64, TransactionRecord>,
    damage: Option<LogError>,
    /// Pages whose chain has lost its beginning, but still has later records.
    older: Vec<u32>,
    page_bytes: u32,
}

impl UpToDamage {
    fn read(area: Area, superblock: &Superblock) -> Result<Self, LogError> {
        let page_bytes = superblock.head.page_bytes;
        let (commits, mut damage) = commits(&area)?;
        let committed = commits.keys().next_back().copied().unwrap_or(0);
        let (Scanned { chains, .. }, damaged) = scan_damaged(&area, page_bytes, committed)?;
        let mut older = Vec::new();
        let mut all: Vec<(u32, Chain, bool)> =
            chains.into_iter().map(|(page, (chain, _))| (page, chain, false)).collect();
        for (page_number, error, chain) in damaged {
            damage.get_or_insert(damage_of(error)?);
            if chain.extents.is_empty() && chain.slot.is_none() {
                older.push(page_number);
            } else {
                all.push((page_number, chain, true));
            }
        }
        older.sort_unstable();
        let words = Words::new(Arc::new(LocalSegment::new(SHARED.all)), 0);
        let pages = Pages::Scanned(FxHashMap::default());
        let store = Store::new(area, words, pages, superblock, &PplOptions::default());
        let mut pages = FxHashMap::default();
        for (page_number, chain, is_cut) in all {
            let (history, error) = history_of(&store, page_number, chain, committed, is_cut)?;
            if let Some(error) = error {
                damage.get_or_insert(damage_of(error)?);
            }
            pages.insert(page_number, history);
        }
        let limits = pages.values().filter_map(|history| history.limit);
        let upto = limits.map(|limit| limit.saturating_sub(1)).min().unwrap_or(committed).min(committed);
        Ok(Self { source: PagesAsOf { store, pages, upto }, commits, damage, older, page_bytes })
    }
}

/// Salvages a log, given its mapped memory.
pub(super) fn salvage(
    area: Area,
    superblock: &Superblock,
    file: &dyn DatabaseFile,
    later: Later<'_>,
) -> Result<Salvaged, LogError> {
    let UpToDamage { source, commits, damage, older, page_bytes } = UpToDamage::read(area, superblock)?;
    let (pages, upto) = (&source.pages, source.upto);
    let known = commits.get(&upto);
    let point = Point {
        transactions: upto,
        position: Some(upto),
        time_ms: known.map_or(0, |commit| commit.time_ms),
        db_pages: known.map_or(0, |commit| commit.db_pages),
        last_frame: 0,
    };
    let mut numbers: Vec<u32> = pages.keys().copied().collect();
    numbers.sort_unstable();
    let mut newer: Vec<u32> =
        pages.iter().filter(|(_, page)| page.base > upto).map(|(number, _)| *number).collect();
    newer.sort_unstable();
    let checkpointed = pages.values().map(|page| page.base).filter(|base| *base > upto).max();
    source.give_later(file, &commits, later)?;
    let damage = damage.map(|error| {
        let from = if let LogError::Corrupt { offset, .. } = error { offset } else { 0 };
        Damage { error, from, until: None }
    });
    let mut salvaged = Salvaged::new(page_bytes, point, damage, numbers, Box::new(source));
    (salvaged.newer, salvaged.older, salvaged.checkpointed) = (newer, older, checkpointed);
    salvaged.is_sequence = false;
    Ok(salvaged)
}

/// Returns the records of transactions before the damage. For each: the page, the record, and whether the record is a whole
/// page.
fn records_before_damage(area: Area, superblock: &Superblock) -> Result<Vec<(u32, Record, bool)>, LogError> {
    let UpToDamage { source, .. } = UpToDamage::read(area, superblock)?;
    let mut found = Vec::new();
    for (page_number, History { chain, records, .. }) in &source.pages {
        let walk = Walk::new(&source.store.area, &chain.extents, source.store.page_bytes);
        for record in records.iter().filter(|record| record.transaction <= source.upto) {
            found.push((*page_number, *record, is_whole(&walk, record)));
        }
    }
    Ok(found)
}

fn is_whole(walk: &Walk<'_>, record: &Record) -> bool {
    page_change::kind(&[walk.first_payload_byte(record)]) == Ok(ChangeKind::Whole)
}

/// Returns the commits in the transaction log, by their numbers, and the first damage found there.
fn commits(area: &Area) -> Result<(BTreeMap<u64, TransactionRecord>, Option<LogError>), LogError> {
    let (mut commits, mut damage) = (BTreeMap::new(), None);
    for place in 0..TRANSACTIONS {
        let offset = TransactionRecord::offset(place);
        let mut bytes = [0; TRANSACTION_BYTES];
        area.nvm.read(offset, &mut bytes);
        match TransactionRecord::decode(&bytes, area.id, place) {
            Ok(Some(record)) if record.kind == TransactionKind::Commit => {
                commits.insert(record.number, record);
            }
            Ok(_) => {}
            Err(what) => drop(damage.get_or_insert(LogError::Corrupt { offset, what })),
        }
    }
    Ok((commits, damage))
}

/// Reads a page's chain, up to the first record whose check fails.
fn history_of(
    store: &Store,
    page_number: u32,
    chain: Chain,
    committed: u64,
    is_cut: bool,
) -> Result<(History, Option<LogError>), LogError> {
    let mut base = chain.merged;
    if let Some(slot) = chain.slot {
        base = base.max(store.slot_header(slot)?.transaction);
    }
    let mut walk = Walk::new(&store.area, &chain.extents, store.page_bytes);
    let (mut records, mut payload, mut good) = (Vec::new(), Vec::new(), 0);
    let (error, stated) = loop {
        let at = walk.position();
        match walk.next() {
            Ok(Some(record)) if record.transaction <= committed => {
                if let Err(error) = walk.payload(&record, page_number, &mut payload) {
                    break (Some(error), Some(record.transaction));
                }
                good = record.transaction;
                if record.transaction > base {
                    records.push(record);
                }
            }
            Ok(_) => break (None, None),
            Err(error) => break (Some(error), walk.transaction_at(at)),
        }
    };
    // A damaged record may state any transaction number. Accept it only if it is plausible.
    let stated = stated.filter(|stated| *stated > good && *stated <= committed);
    let limit = (error.is_some() || is_cut).then(|| stated.unwrap_or(good + 1).max(base + 1));
    Ok((History { chain, base, records, limit }, error))
}

/// The pages as of one transaction.
struct PagesAsOf {
    store: Store,
    pages: FxHashMap<u32, History>,
    upto: u64,
}

impl Source for PagesAsOf {
    fn read(&mut self, file: &dyn DatabaseFile, page_number: u32, page: &mut [u8]) -> Result<(), LogError> {
        self.read_as_of(file, page_number, self.upto, page)
    }
}

impl PagesAsOf {
    fn read_as_of(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        upto: u64,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        let History { chain, records, .. } = held(self.pages.get(&page_number))?;
        let walk = Walk::new(&self.store.area, &chain.extents, self.store.page_bytes);
        let count = records.partition_point(|record| record.transaction <= upto);
        let records = records.get(..count).unwrap_or_default();
        let whole = records.iter().rposition(|record| is_whole(&walk, record));
        match (whole, chain.slot) {
            (Some(_), _) => {}
            (None, Some(slot)) => self.store.read_slot(slot, page)?,
            (None, None) => self.store.read_flash(file, page_number, page)?,
        }
        let mut payload = Vec::new();
        for record in records.get(whole.unwrap_or(0)..).unwrap_or_default() {
            walk.payload(record, page_number, &mut payload)?;
            page_change::apply(page, &payload)
                .map_err(|what| LogError::Corrupt { offset: record.at, what })?;
        }
        Ok(())
    }

    /// Passes the transactions after the damage to `later`, with those of their pages that are known.
    fn give_later(
        &self,
        file: &dyn DatabaseFile,
        commits: &BTreeMap<u64, TransactionRecord>,
        later: Later<'_>,
    ) -> Result<(), LogError> {
        let mut behind: BTreeMap<u64, Vec<(u32, bool)>> = BTreeMap::new();
        for (page_number, History { records, limit, .. }) in &self.pages {
            let known = records.iter().map(|record| (record.transaction, true));
            for (number, is_known) in known.chain(limit.map(|limit| (limit, false))) {
                if number > self.upto {
                    behind.entry(number).or_default().push((*page_number, is_known));
                }
            }
        }
        for (number, mut pages) in behind {
            pages.sort_unstable();
            let commit = commits.get(&number);
            let mut images = Vec::new();
            for (page_number, is_known) in pages {
                let mut page = vec![0; self.store.page_bytes as usize].into_boxed_slice();
                if is_known {
                    self.read_as_of(file, page_number, number, &mut page)?;
                }
                images.push(LaterPage { page_number, image: is_known.then_some(page) });
            }
            later(&LaterTransaction {
                number: Some(number),
                position: Some(number),
                time_ms: commit.map_or(0, |commit| commit.time_ms),
                db_pages: commit.map_or(0, |commit| commit.db_pages),
                first_frame: 0,
                offset: TransactionRecord::offset(number),
                pages: images,
            })?;
        }
        Ok(())
    }
}
