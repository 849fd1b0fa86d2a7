//! Recovery (SQLite/PPL, section 3.4). Recovery drops the records of a transaction that was not committed. Afterwards the
//! home positions of all pages are at the last commit (invariant 7), and SQLite finds an empty log.
//!
//! Recovery reads the headers of all extents. It finds the ends of the chains by walking the records of the extents in use. The
//! cost is proportional to the extents, not to the commits since the last recovery.

use duralite_format::FormatError;
use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, GROWN_OFFSET, SLOT_HEADER_BYTES, SlotHeader,
    TRANSACTION_BYTES, TRANSACTIONS, TransactionKind, TransactionRecord,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::area::{Area, State};
use super::chain::{Chain, RELOCATED, Walk};
use super::store::Store;
use super::words::{
    DB_PAGES, DUE, FRAMES_END, FRAMES_LAST, FREE_PIECE, FREE_SECTOR, GENERATION, OPEN, PIECES_USED, SEALED,
    SECTORS_USED, Turn, UNDO_END, UNDO_LAST,
};
use crate::LogError;

/// What a scan has found in a log.
#[derive(Default)]
pub(super) struct Scanned {
    /// The chain of each page, and the place where the chain ends.
    pub(super) chains: FxHashMap<u32, (Chain, End)>,
    /// Extents that are in no chain, but whose headers are not erased.
    pub(super) litter: Vec<Extent>,
    /// Slots that are not erased, but whose images are not valid any more.
    pub(super) stale_slots: Vec<u32>,
}

/// Where a chain ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Index of the extent in the chain, and offset in the extent.
    pub(super) at: (usize, u32),
    /// The number of bytes of all records in the chain.
    pub(super) bytes: u64,
}

/// Returns the newest commit in the transaction log; number 0 if there is none.
pub(super) fn last_commit(area: &Area) -> Result<TransactionRecord, LogError> {
    let mut newest = TransactionRecord {
        number: 0,
        kind: TransactionKind::Commit,
        db_pages: 0,
        time_ms: 0,
        retired: false,
    };
    for place in 0..TRANSACTIONS {
        let at = TransactionRecord::offset(place);
        let mut bytes = [0; TRANSACTION_BYTES];
        area.nvm.read(at, &mut bytes);
        let found = TransactionRecord::decode(&bytes, area.id, place);
        let found = found.map_err(|what| LogError::Corrupt { offset: at, what })?;
        if let Some(found) = found.filter(|found| found.kind == TransactionKind::Commit)
            && found.number > newest.number
        {
            newest = found;
        }
    }
    Ok(newest)
}

/// The extents of a page, before they are assembled into a chain.
#[derive(Default)]
struct Parts {
    /// Extents that begin a chain. For each: the transaction that took the extent, the transaction up to which the chain is
    /// merged, the extent, and whether the chain is relocated.
    firsts: Vec<(u64, u64, Extent, bool)>,
    /// The other extents. For each: its order, the transaction that took it, and the extent.
    others: Vec<(u32, u64, Extent)>,
}

impl Parts {
    /// Returns the extents of the newest chain in order. Stops before the first one that is missing.
    fn prefix(&self) -> Vec<Extent> {
        let Some((_, _, first, _)) = self.firsts.iter().max() else { return Vec::new() };
        let mut others = self.others.clone();
        others.sort_unstable();
        let mut extents = vec![*first];
        for (order, _, extent) in others {
            if order as usize == extents.len() {
                extents.push(extent);
            }
        }
        extents
    }
}

/// A page with a damaged chain, the error, and the intact part at the beginning of the chain.
type DamagedChain = (u32, LogError, Chain);

/// Reads all extents and slots. Stores nothing.
pub(super) fn scan(
    area: &Area,
    page_bytes: u32,
    committed: u64,
    is_other: impl Fn(Extent) -> bool,
) -> Result<Scanned, LogError> {
    scan_all(area, page_bytes, committed, is_other, &mut |(_, error, _)| Err(error))
}

/// Reads all extents and slots of a log whose chains may be damaged. Stores nothing.
///
/// # Errors
/// A damaged chain is not an error here, but is part of the result.
pub(super) fn scan_damaged(
    area: &Area,
    page_bytes: u32,
    committed: u64,
) -> Result<(Scanned, Vec<DamagedChain>), LogError> {
    let mut damaged = Vec::new();
    let scanned = scan_all(area, page_bytes, committed, |_| false, &mut |chain| {
        damaged.push(chain);
        Ok(())
    })?;
    Ok((scanned, damaged))
}

fn scan_all(
    area: &Area,
    page_bytes: u32,
    committed: u64,
    is_other: impl Fn(Extent) -> bool,
    on_damage: &mut dyn FnMut(DamagedChain) -> Result<(), LogError>,
) -> Result<Scanned, LogError> {
    let mut scanned = Scanned::default();
    let mut parts: FxHashMap<u32, Parts> = FxHashMap::default();
    for extent in (0..area.grown()?).flat_map(|chunk| area.geometry.extents_of(chunk)) {
        if is_other(extent) {
            continue;
        }
        match area.header(extent) {
            Some(header) if header.taken_by <= committed => {
                let parts = parts.entry(header.page_number).or_default();
                let ExtentHeader { order, taken_by, .. } = header;
                match order & !RELOCATED {
                    0 => parts.firsts.push((taken_by, area.merged(extent), extent, order == RELOCATED)),
                    order => parts.others.push((order, taken_by, extent)),
                }
            }
            _ if area.nvm.load_u64(area.at(extent, 0)) != 0 => scanned.litter.push(extent),
            _ => {}
        }
    }
    let slots = scan_slots(area, page_bytes, &mut scanned.stale_slots);
    for (page_number, parts) in parts {
        let slot = slots.get(&page_number).copied();
        let prefix = parts.prefix();
        let mut refuse = |error, extents: Vec<Extent>| {
            let merged = extents.first().map_or(0, |first| area.merged(*first));
            let slot = slot.map(|(slot, _)| slot);
            on_damage((page_number, error, Chain { extents, last: 0, home: committed, merged, slot }))
        };
        let extents = match put_together(area, page_number, parts, slot, &mut scanned.litter) {
            Ok(Some(extents)) => extents,
            Ok(None) => continue,
            Err(error) => {
                refuse(error, prefix)?;
                continue;
            }
        };
        let walked = match walk(area, (page_number, page_bytes), committed, &extents, slot) {
            Ok(walked) => walked,
            Err(error) => {
                refuse(error, extents)?;
                continue;
            }
        };
        match walked {
            // The page has neither a record nor a slot, so it is complete on flash.
            Some((_, end)) if end.bytes == 0 && slot.is_none() => scanned.litter.extend(extents),
            None => scanned.litter.extend(extents),
            Some((mut chain, end)) => {
                // A chain that was being dropped ends before its last extents, which are not needed any more.
                scanned.litter.extend(chain.extents.drain(end.at.0 + 1..));
                scanned.chains.insert(page_number, (chain, end));
            }
        }
    }
    // A page without records is complete on flash, so its slot is not needed.
    let unused = slots.iter().filter(|(page, _)| !scanned.chains.contains_key(page));
    scanned.stale_slots.extend(unused.map(|(_, slot)| slot.0));
    Ok(scanned)
}

/// Returns the slots that hold a valid image. For each page: the slot, and the newest transaction that the image
/// includes.
fn scan_slots(area: &Area, page_bytes: u32, stale: &mut Vec<u32>) -> FxHashMap<u32, (u32, u64)> {
    let mut slots: FxHashMap<u32, (u32, u64)> = FxHashMap::default();
    let mut bytes = vec![0; SLOT_HEADER_BYTES as usize + page_bytes as usize];
    for slot in 0..area.geometry.slots {
        let at = area.geometry.slot_offset(slot);
        if area.nvm.load_u64(at) == 0 {
            continue;
        }
        area.nvm.read(at, &mut bytes);
        let (head, image) = bytes.split_at(SLOT_HEADER_BYTES as usize);
        match SlotHeader::decode(head, area.id, image) {
            Some(SlotHeader { page_number, transaction }) => {
                // A page may have two images, if the older one was not erased yet. Keep the newer one.
                let newest = slots.entry(page_number).or_insert((slot, transaction));
                if *newest != (slot, transaction) {
                    let older = if newest.1 < transaction {
                        std::mem::replace(newest, (slot, transaction)).0
                    } else {
                        slot
                    };
                    stale.push(older);
                }
            }
            None => stale.push(slot),
        }
    }
    slots
}

/// Assembles the extents of a page's chain in order. Returns `None` if a completed merge has left nothing but
/// superfluous extents.
fn put_together(
    area: &Area,
    page_number: u32,
    mut parts: Parts,
    slot: Option<(u32, u64)>,
    litter: &mut Vec<Extent>,
) -> Result<Option<Vec<Extent>>, LogError> {
    parts.firsts.sort_unstable();
    parts.others.sort_unstable();
    let first = parts.firsts.pop();
    litter.extend(parts.firsts.iter().map(|(_, _, extent, _)| *extent));
    let Some((taken_by, _, first, is_relocated)) = first else {
        litter.extend(parts.others.iter().map(|(_, _, extent)| *extent));
        return if slot.is_some() { Ok(None) } else { Err(incomplete(area, page_number)) };
    };
    let mut extents = vec![first];
    let mut is_complete = true;
    for (order, taken, extent) in parts.others {
        if is_relocated && taken <= taken_by {
            litter.push(extent);
            continue;
        }
        is_complete &= order as usize == extents.len();
        extents.push(extent);
    }
    if is_complete {
        return Ok(Some(extents));
    }
    if slot.is_none() {
        return Err(incomplete(area, page_number));
    }
    litter.extend_from_slice(&extents);
    Ok(None)
}

fn incomplete(area: &Area, page_number: u32) -> LogError {
    let offset = area.geometry.bucket_offset(page_number);
    LogError::Corrupt { offset, what: FormatError::Damaged { what: "a page's log" } }
}

/// Finds the end of a chain, after the last record of a committed transaction. Refuses a chain if zeros have replaced a
/// record and so hide the records after it. Returns `None` if a completed merge has already erased the end of the
/// chain; then the slot's image has everything that the chain held.
fn walk(
    area: &Area,
    (page_number, page_bytes): (u32, u32),
    committed: u64,
    extents: &[Extent],
    slot: Option<(u32, u64)>,
) -> Result<Option<(Chain, End)>, LogError> {
    let merged = extents.first().map_or(0, |first| area.merged(*first));
    let mut walk = Walk::new(area, extents, page_bytes);
    let mut end = End { at: walk.position(), bytes: 0 };
    let mut last = 0;
    loop {
        let record = match walk.next() {
            Ok(Some(record)) if record.transaction <= committed => record,
            Ok(_) => break,
            Err(error) => {
                let torn = walk.transaction_at(end.at);
                // A process may have died while it stored this record, so this record may be torn. The records before it
                // are intact.
                if torn.is_some_and(|transaction| transaction > committed) {
                    break;
                }
                let is_merged = |transaction| slot.is_some_and(|(_, upto)| transaction <= upto);
                return if torn.is_some_and(is_merged) { Ok(None) } else { Err(error) };
            }
        };
        last = record.transaction;
        end = End { at: walk.position(), bytes: end.bytes + u64::from(record.payload_bytes) + 16 };
    }
    let upto = slot.map_or(0, |(_, upto)| upto);
    if let Some(offset) = walk.behind_end(page_number, (last.max(merged).max(upto), committed)) {
        let what = FormatError::Damaged { what: "a log record before one that is committed" };
        return Err(LogError::Corrupt { offset, what });
    }
    let slot = slot.map(|(slot, _)| slot);
    let extents = extents.to_vec();
    Ok(Some((Chain { extents, last, home: committed, merged, slot }, end)))
}

impl Store {
    /// Computes the shared words from the log, and drops what is not committed. No other process may use the log.
    pub(super) fn recover(&self) -> Result<(), LogError> {
        let turn = self.words.lock().map_err(|source| self.area.medium(source))?;
        let turn = turn.ok_or(LogError::Unexpected("a lock in new memory"))?;
        let last = last_commit(&self.area)?;
        // Flush the record. It is visible, but the process that stored it may have died before the record was durable.
        let at = TransactionRecord::offset(last.number);
        self.area.nvm.flush(at, TRANSACTION_BYTES as u64);
        self.words.begin_after(&last);
        self.rebuild(&turn, last.number, &FxHashSet::default())
    }

    /// Returns whether a process died while it was storing a transaction. The caller holds the lock.
    pub(super) fn has_open_transaction(&self) -> bool {
        self.words.load(OPEN) != 0
    }

    /// Repairs what a process left when it died holding the lock.
    pub(super) fn repair(&self, turn: &Turn<'_>) -> Result<(), LogError> {
        let open = self.words.load(OPEN);
        if open != 0 {
            self.finish_open(open)?;
        }
        let mut others = FxHashSet::default();
        others.extend(self.area.frame_pieces(&self.words)?);
        self.words.set_rebuilding(true);
        self.rebuild(turn, self.words.load(SEALED), &others)?;
        self.words.set_rebuilding(false);
        self.words.store(OPEN, 0);
        Ok(())
    }

    /// Completes the transaction that a dead process was storing: makes it visible if it is committed, and otherwise
    /// withdraws its frames.
    fn finish_open(&self, open: u64) -> Result<(), LogError> {
        let at = TransactionRecord::offset(open);
        let mut bytes = [0; TRANSACTION_BYTES];
        self.area.nvm.read(at, &mut bytes);
        let found = TransactionRecord::decode(&bytes, self.area.id, open % TRANSACTIONS);
        let found = found.map_err(|what| LogError::Corrupt { offset: at, what })?;
        if let Some(record) = found.filter(|found| found.number == open)
            && record.kind == TransactionKind::Commit
        {
            self.area.nvm.flush(at, TRANSACTION_BYTES as u64);
            self.area.nvm.fence();
            self.words.store(DB_PAGES, u64::from(record.db_pages));
            self.words.store(SEALED, open);
            return Ok(());
        }
        // Make the list of frames end where it ended before the transaction.
        let last = self.words.load(UNDO_LAST);
        self.words.store(FRAMES_LAST, last);
        self.words.store(FRAMES_END, self.words.load(UNDO_END));
        if last == 0 {
            self.words.set_first_frames(self.words.load(GENERATION), 0);
        }
        Ok(())
    }

    fn rebuild(&self, turn: &Turn<'_>, committed: u64, others: &FxHashSet<Extent>) -> Result<(), LogError> {
        let area = &self.area;
        self.settle_doubtful()?;
        let scanned = scan(area, self.page_bytes, committed, |extent| others.contains(&extent))?;
        // The image in a slot replaces what is left of its page's old log. So erase that rest first, durably, and then
        // the slot.
        self.erase_litter(&scanned.litter);
        self.erase_slots(scanned.stale_slots.iter().copied());
        for (chain, end) in scanned.chains.values() {
            if let Some(extent) = chain.extents.get(end.at.0) {
                area.cut(*extent, end.at.1);
            }
        }
        area.nvm.fence();
        for bucket in 0..u64::from(area.geometry.buckets) {
            area.nvm.store_u64(area.geometry.buckets_offset + 8 * bucket, 0);
        }
        let mut used: FxHashSet<Extent> = others.clone();
        for (page_number, (chain, end)) in &scanned.chains {
            used.extend(chain.extents.iter().copied());
            self.enter_scanned(*page_number, chain, end);
        }
        self.list_free(turn, area.grown()?, &used);
        area.give_back_rest(turn)?;
        self.words.store(DUE, 1);
        Ok(())
    }

    /// Erases the headers of extents that are in no chain. The erasure is durable on return. Erases the extents of one
    /// old chain from the last to the first. So a crash in between leaves no gap in the chain, which recovery would
    /// take for damage.
    fn erase_litter(&self, litter: &[Extent]) {
        let area = &self.area;
        let order = |extent: Extent| area.header(extent).map_or(0, |header| header.order & !RELOCATED);
        let mut litter: Vec<(u32, Extent)> = litter.iter().map(|extent| (order(*extent), *extent)).collect();
        litter.sort_unstable();
        for alike in litter.chunk_by(|(one, _), (other, _)| one == other).rev() {
            alike.iter().for_each(|(_, extent)| area.erase_header(*extent));
            area.nvm.fence();
        }
    }

    /// Rebuilds the free lists. They contain the unused extents of the first `chunks` chunks, in the order of the
    /// chunks. So writers take the last chunks last, and the log can give these chunks back.
    pub(super) fn list_free(&self, turn: &Turn<'_>, chunks: u32, used: &FxHashSet<Extent>) {
        for word in [FREE_SECTOR, FREE_PIECE] {
            self.words.store(word, 0);
        }
        let (mut sectors, mut pieces) = (0, 0);
        for chunk in (0..chunks).rev() {
            let extents: Vec<Extent> = self.area.geometry.extents_of(chunk).collect();
            for extent in extents.into_iter().rev() {
                match (used.contains(&extent), extent.is_piece()) {
                    (false, _) => self.area.put_free(&self.words, turn, extent),
                    (true, false) => sectors += 1,
                    (true, true) => pieces += 1,
                }
            }
        }
        self.words.store(SECTORS_USED, sectors);
        self.words.store(PIECES_USED, pieces);
    }

    /// Flushes the words on which the next steps of recovery rely. A process may have stored or erased such a word, and
    /// died before it flushed the word.
    fn settle_doubtful(&self) -> Result<(), LogError> {
        let (nvm, geometry) = (&self.area.nvm, &self.area.geometry);
        nvm.flush(GROWN_OFFSET, 8);
        for extent in (0..self.area.grown()?).flat_map(|chunk| geometry.extents_of(chunk)) {
            nvm.flush(geometry.extent_offset(extent), u64::from(EXTENT_HEADER_BYTES));
        }
        for slot in 0..geometry.slots {
            let at = geometry.slot_offset(slot);
            nvm.flush(at, if nvm.load_u64(at) == 0 { 8 } else { geometry.slot_bytes });
        }
        nvm.fence();
        Ok(())
    }

    /// Enters in the page table a chain that the scan has found.
    fn enter_scanned(&self, page_number: u32, chain: &Chain, end: &End) {
        let area = &self.area;
        let Some(&first) = chain.extents.first() else { return };
        let was = area.state(first, State::Home);
        let links = chain.extents.iter().skip(1).map(|extent| extent.to_link()).chain([0]);
        for (extent, next) in chain.extents.iter().zip(links) {
            area.set_state(*extent, State::Next, next);
        }
        let tail = chain.extents.get(end.at.0).copied().unwrap_or(first);
        let slot = chain.slot.map_or(0, |slot| u64::from(slot) + 1);
        let home = was.min(chain.home);
        for (state, value) in [
            (State::Last, chain.last),
            (State::Home, home),
            (State::Slot, slot),
            (State::TailExtent, tail.to_link()),
            (State::TailOffset, u64::from(end.at.1.max(EXTENT_HEADER_BYTES))),
            (State::Bytes, end.bytes),
        ] {
            area.set_state(first, state, value);
        }
        area.enter_chain(page_number, first);
    }
}
