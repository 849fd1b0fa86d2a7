//! A page's log, and the page table. A page's log is a chain of extents, which hold a stream of records (SQLite/PPL,
//! section 3.2, log writer). The page table says which page has which chain.
//!
//! A record has a header of two words, and begins where both words fit into the extent. If an extent becomes full within a
//! record, the record's payload continues in the next extent. The stream ends at a record whose first word is 0, or after
//! the last extent.
//!
//! Processes that share memory find a page's chain in the page table: a hash of the page number chooses one of its lists of
//! chains. A process that may only read finds the chains by a scan.

use duralite_format::FormatError;
use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, MERGED_AT, RECORD_HEADER_BYTES, read_record_word,
    record_check, record_word,
};
use rustc_hash::FxHashMap;

use super::area::{Area, Need, PIECE_ROOM, State};
use super::words::{Turn, Words};
use crate::LogError;

/// A record in a chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// Offset in the log.
    pub(super) at: u64,
    pub(super) transaction: u64,
    pub(super) payload_bytes: u32,
    word: u64,
    check: u64,
    /// The place at which the payload begins: index of the extent in the chain, and offset in the extent.
    payload: (usize, u32),
}

/// Reads the records of a chain, one after the other.
pub(super) struct Walk<'a> {
    area: &'a Area,
    extents: &'a [Extent],
    /// The index of the extent in which the next record begins, and the offset in that extent.
    index: usize,
    offset: u32,
    largest: u32,
    upto: u64,
}

/// Returns an upper bound on the bytes of a payload, for pages of this size.
pub(super) fn largest_payload(page_bytes: u32) -> u32 {
    2 * page_bytes + 64
}

impl<'a> Walk<'a> {
    pub(super) fn new(area: &'a Area, extents: &'a [Extent], page_bytes: u32) -> Self {
        let largest = largest_payload(page_bytes);
        Self { area, extents, index: 0, offset: EXTENT_HEADER_BYTES, largest, upto: u64::MAX }
    }

    /// Ends the walk before the first record of a transaction later than this one. Other processes may be storing later
    /// records in extents that this walk does not have.
    pub(super) fn upto(self, transaction: u64) -> Self {
        Self { upto: transaction, ..self }
    }

    /// Returns the place at which the next record begins: index of the extent in the chain, and offset in the extent.
    pub(super) fn position(&self) -> (usize, u32) {
        (self.index, self.offset)
    }

    fn damaged(&self, at: u64) -> LogError {
        LogError::Corrupt { offset: at, what: FormatError::Damaged { what: "a log record" } }
    }

    /// Returns the next record.
    pub(super) fn next(&mut self) -> Result<Option<Record>, LogError> {
        let Some(&extent) = self.extents.get(self.index) else { return Ok(None) };
        let mut room = self.area.geometry.extent_bytes(extent) - self.offset;
        if room < RECORD_HEADER_BYTES {
            if self.index + 1 >= self.extents.len() {
                return Ok(None);
            }
            self.index += 1;
            self.offset = EXTENT_HEADER_BYTES;
            return self.next();
        }
        let at = self.area.at(extent, self.offset);
        let word = self.area.nvm.load_u64(at);
        let Some((transaction, payload_bytes)) = read_record_word(word) else { return Ok(None) };
        if transaction > self.upto {
            return Ok(None);
        }
        if payload_bytes > self.largest {
            return Err(self.damaged(at));
        }
        let check = self.area.nvm.load_u64(at + 8);
        let payload = (self.index, self.offset + RECORD_HEADER_BYTES);
        let record = Record { at, transaction, payload_bytes, word, check, payload };
        room -= RECORD_HEADER_BYTES;
        self.offset += RECORD_HEADER_BYTES;
        let mut left = payload_bytes.next_multiple_of(8);
        while left > room {
            left -= room;
            self.index += 1;
            let Some(&extent) = self.extents.get(self.index) else { return Err(self.damaged(at)) };
            self.offset = EXTENT_HEADER_BYTES;
            room = self.area.geometry.extent_bytes(extent) - EXTENT_HEADER_BYTES;
        }
        self.offset += left;
        Ok(Some(record))
    }

    /// Returns the transaction of the record that begins at a place; `None` if no record begins there.
    pub(super) fn transaction_at(&self, (mut index, mut offset): (usize, u32)) -> Option<u64> {
        if self.area.geometry.extent_bytes(*self.extents.get(index)?) - offset < RECORD_HEADER_BYTES {
            (index, offset) = (index + 1, EXTENT_HEADER_BYTES);
        }
        let word = self.area.nvm.load_u64(self.area.at(*self.extents.get(index)?, offset));
        read_record_word(word).map(|(transaction, _)| transaction)
    }

    /// Looks for a record of the page after the end of the chain. The chain may end too early, because zeros have
    /// overwritten the first word of a record. Returns only a record of a committed transaction later than `after`;
    /// older transactions may have left records in an extent before this chain took it.
    pub(super) fn behind_end(&self, page_number: u32, (after, committed): (u64, u64)) -> Option<u64> {
        let mut payload = Vec::new();
        let mut from = self.offset;
        for (index, extent) in self.extents.iter().enumerate().skip(self.index) {
            let header = self.area.header(*extent)?;
            // In a relocated log, the first extent has records that are older than the extent's `taken_by`, because a
            // merge moved them there. So do not use `taken_by` as a bound.
            let is_moved = index == 0 && header.order & RELOCATED != 0;
            let after = if is_moved { after } else { after.max(header.taken_by.saturating_sub(1)) };
            let bytes = self.area.geometry.extent_bytes(*extent);
            let last = bytes.saturating_sub(RECORD_HEADER_BYTES);
            for offset in (from.next_multiple_of(8)..=last).step_by(8) {
                let at = self.area.at(*extent, offset);
                let word = self.area.nvm.load_u64(at);
                let Some((transaction, payload_bytes)) = read_record_word(word) else { continue };
                if transaction <= after || transaction > committed || payload_bytes > self.largest {
                    continue;
                }
                let check = self.area.nvm.load_u64(at + 8);
                let payload_at = (index, offset + RECORD_HEADER_BYTES);
                let record = Record { at, transaction, payload_bytes, word, check, payload: payload_at };
                if self.payload(&record, page_number, &mut payload).is_ok() {
                    return Some(at);
                }
            }
            from = EXTENT_HEADER_BYTES;
        }
        None
    }

    /// Returns the first byte of a record's payload, which is the kind of the change. Does not check the payload.
    pub(super) fn first_payload_byte(&self, record: &Record) -> u8 {
        let (mut index, mut offset) = record.payload;
        if self.extents.get(index).is_some_and(|extent| self.area.geometry.extent_bytes(*extent) == offset) {
            (index, offset) = (index + 1, EXTENT_HEADER_BYTES);
        }
        let mut byte = [u8::MAX];
        if let Some(extent) = self.extents.get(index).filter(|_| record.payload_bytes > 0) {
            self.area.nvm.read(self.area.at(*extent, offset), &mut byte);
        }
        byte[0]
    }

    /// Reads the payload of a record, and checks it.
    pub(super) fn payload(
        &self,
        record: &Record,
        page_number: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), LogError> {
        out.clear();
        out.resize(record.payload_bytes as usize, 0);
        let (mut index, mut offset) = record.payload;
        let mut done = 0;
        while done < out.len() {
            let Some(&extent) = self.extents.get(index) else { return Err(self.damaged(record.at)) };
            let room = (self.area.geometry.extent_bytes(extent) - offset) as usize;
            let count = room.min(out.len() - done);
            self.area.nvm.read(self.area.at(extent, offset), &mut out[done..done + count]);
            done += count;
            index += 1;
            offset = EXTENT_HEADER_BYTES;
        }
        if record_check(self.area.id, page_number, record.word, out) == record.check {
            Ok(())
        } else {
            Err(self.damaged(record.at))
        }
    }
}

impl Area {
    /// Returns the extents that a record with a payload of this size needs. The record is appended to `chain`, or,
    /// without a chain, it is the first record of a page.
    pub(super) fn need(&self, chain: Option<Extent>, payload_bytes: u32) -> Result<Need, LogError> {
        let bytes = RECORD_HEADER_BYTES + payload_bytes.next_multiple_of(8);
        let room = match chain {
            None => self.geometry.sector_bytes - EXTENT_HEADER_BYTES,
            Some(first) => {
                let (extent, offset) = self.tail(first)?;
                let room = self.geometry.extent_bytes(extent) - offset;
                if room < RECORD_HEADER_BYTES { 0 } else { room }
            }
        };
        let pieces = u64::from(bytes.saturating_sub(room).div_ceil(PIECE_ROOM));
        Ok(Need { sectors: u64::from(chain.is_none()), pieces })
    }

    fn tail(&self, first: Extent) -> Result<(Extent, u32), LogError> {
        let extent = self.follow(self.state(first, State::TailExtent))?;
        let offset = self.state(first, State::TailOffset) as u32;
        match extent {
            Some(extent) if offset <= self.geometry.extent_bytes(extent) => Ok((extent, offset)),
            _ => Err(LogError::Corrupt {
                offset: self.geometry.state_offset(first),
                what: FormatError::Damaged { what: "the end of a page's log" },
            }),
        }
    }

    /// Stores a record at the end of a chain. The record's first word becomes visible only after the rest. Adds to `dirty`
    /// the ranges that the caller has to flush. The caller has made sure that there is space ([`Area::need`]).
    pub(super) fn append(
        &self,
        words: &Words,
        turn: &Turn<'_>,
        first: Extent,
        new: &NewRecord<'_>,
        dirty: &mut Vec<(u64, u64)>,
    ) -> Result<(), LogError> {
        let NewRecord { page_number, transaction, payload } = *new;
        let (mut extent, mut offset) = self.tail(first)?;
        let next = |extent: Extent| -> Result<Extent, LogError> {
            let order = self.header(extent).map_or(0, |header| header.order & !RELOCATED) + 1;
            let piece = self.take(words, turn, true)?;
            let piece = piece.ok_or(LogError::Unexpected("a record for which there is no room"))?;
            self.store_header(piece, &ExtentHeader { page_number, order, taken_by: transaction }, 0);
            self.set_state(extent, State::Next, piece.to_link());
            Ok(piece)
        };
        let mut from = self.at(extent, offset);
        if self.geometry.extent_bytes(extent) - offset < RECORD_HEADER_BYTES {
            extent = next(extent)?;
            from = self.at(extent, 0);
            offset = EXTENT_HEADER_BYTES;
        } else if offset == EXTENT_HEADER_BYTES {
            from = self.at(extent, 0);
        }
        let word_at = self.at(extent, offset);
        let word = record_word(transaction, payload.len() as u32);
        let check = record_check(self.id, page_number, word, payload);
        self.nvm.store(word_at + 8, &check.to_le_bytes());
        offset += RECORD_HEADER_BYTES;
        let mut left = payload;
        loop {
            let room = (self.geometry.extent_bytes(extent) - offset) as usize;
            let (now, later) = left.split_at(room.min(left.len()));
            self.nvm.store(self.at(extent, offset), now);
            offset = (offset + now.len() as u32).next_multiple_of(8);
            left = later;
            if left.is_empty() {
                break;
            }
            dirty.push((from, self.at(extent, offset)));
            extent = next(extent)?;
            from = self.at(extent, 0);
            offset = EXTENT_HEADER_BYTES;
        }
        let mut end = self.at(extent, offset);
        if self.geometry.extent_bytes(extent) - offset >= RECORD_HEADER_BYTES {
            self.nvm.store_u64(end, 0);
            end += 8;
        }
        self.nvm.store_u64(word_at, word);
        dirty.push((from, end));
        self.set_state(first, State::TailExtent, extent.to_link());
        self.set_state(first, State::TailOffset, u64::from(offset));
        let bytes = u64::from(RECORD_HEADER_BYTES) + payload.len() as u64;
        self.set_state(first, State::Bytes, self.state(first, State::Bytes) + bytes);
        Ok(())
    }

    /// Ends a chain at this offset in this extent. The new end is durable once the caller has fenced.
    pub(super) fn cut(&self, extent: Extent, offset: u32) {
        if self.geometry.extent_bytes(extent) - offset >= RECORD_HEADER_BYTES {
            let at = self.at(extent, offset);
            self.nvm.store_u64(at, 0);
            self.nvm.flush(at, 8);
        }
    }
}

/// The bit of an extent's order that marks the first extent of a relocated chain. A merge makes such a chain by moving
/// the newest records of the old chain into a new sector.
pub(super) const RELOCATED: u32 = 1 << 31;

/// A record to be stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewRecord<'a> {
    pub(super) page_number: u32,
    pub(super) transaction: u64,
    pub(super) payload: &'a [u8],
}

/// A page's chain. It does not show changes that were made after it was loaded.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    /// The extents, in order.
    pub(super) extents: Vec<Extent>,
    /// The newest committed transaction with a record in the chain.
    pub(super) last: u64,
    /// The page's own home position. If the home position that all pages share is later, it applies instead.
    pub(super) home: u64,
    /// The page on flash already includes the chain's records up to this transaction.
    pub(super) merged: u64,
    /// The slot with the page's new image, while the page is being merged.
    pub(super) slot: Option<u32>,
}

/// Where a reader finds the chains of pages.
pub(super) enum Pages {
    /// In the page table.
    Shared,
    /// In the result of a scan, for a log that this process may not change.
    Scanned(FxHashMap<u32, Chain>),
}

impl Area {
    fn too_long(&self, at: u64) -> LogError {
        LogError::Corrupt { offset: at, what: FormatError::Damaged { what: "a list of extents" } }
    }

    /// Returns an upper bound on the steps through any list, so that no process follows a damaged list for ever.
    fn most_steps(&self) -> u32 {
        self.known_chunks().saturating_mul(64 + 3 * 32)
    }

    /// Returns the first extent of a page's chain.
    pub(super) fn find_chain(&self, page_number: u32) -> Result<Option<Extent>, LogError> {
        let bucket = self.geometry.bucket_offset(page_number);
        let mut link = self.nvm.load_u64(bucket);
        let mut steps = 0;
        while let Some(extent) = self.follow(link)? {
            if self.page_of(extent) == page_number {
                return Ok(Some(extent));
            }
            link = self.state(extent, State::Bucket);
            steps += 1;
            if steps > self.most_steps() {
                return Err(self.too_long(bucket));
            }
        }
        Ok(None)
    }

    /// Enters a chain in the page table.
    pub(super) fn enter_chain(&self, page_number: u32, first: Extent) {
        let bucket = self.geometry.bucket_offset(page_number);
        self.set_state(first, State::Bucket, self.nvm.load_u64(bucket));
        self.nvm.store_u64(bucket, first.to_link());
    }

    /// Takes a chain out of the page table, or replaces it by the chain `by`. A concurrent reader sees either the old state or
    /// the new state.
    pub(super) fn replace_chain(
        &self,
        page_number: u32,
        first: Extent,
        by: Option<Extent>,
    ) -> Result<(), LogError> {
        let bucket = self.geometry.bucket_offset(page_number);
        let after = self.state(first, State::Bucket);
        let link = match by {
            Some(new) => {
                self.set_state(new, State::Bucket, after);
                new.to_link()
            }
            None => after,
        };
        if self.nvm.load_u64(bucket) == first.to_link() {
            self.nvm.store_u64(bucket, link);
            return Ok(());
        }
        let mut at = self.follow(self.nvm.load_u64(bucket))?;
        for _ in 0..self.most_steps() {
            let Some(extent) = at else { break };
            let next = self.state(extent, State::Bucket);
            if next == first.to_link() {
                self.set_state(extent, State::Bucket, link);
                return Ok(());
            }
            at = self.follow(next)?;
        }
        Err(self.too_long(bucket))
    }

    /// Collects the extents of a chain from its first extent on, in order.
    pub(super) fn extents_from(&self, first: Extent, out: &mut Vec<Extent>) -> Result<(), LogError> {
        out.clear();
        out.push(first);
        let mut link = self.state(first, State::Next);
        while let Some(extent) = self.follow(link)? {
            out.push(extent);
            if out.len() > self.most_steps() as usize {
                return Err(self.too_long(self.geometry.state_offset(first)));
            }
            link = self.state(extent, State::Next);
        }
        Ok(())
    }

    pub(super) fn merged(&self, first: Extent) -> u64 {
        self.nvm.load_u64(self.at(first, MERGED_AT as u32))
    }

    /// Loads a page's chain from the page table. Returns whether the page has a chain.
    pub(super) fn load_chain(&self, page_number: u32, chain: &mut Chain) -> Result<bool, LogError> {
        let Some(first) = self.find_chain(page_number)? else { return Ok(false) };
        self.extents_from(first, &mut chain.extents)?;
        chain.last = self.state(first, State::Last);
        chain.home = self.state(first, State::Home);
        // Load the slot before `merged`, because a merge stores `merged` before it gives up the slot.
        chain.slot = u32::try_from(self.state(first, State::Slot)).ok().and_then(|slot| slot.checked_sub(1));
        chain.merged = self.merged(first);
        Ok(true)
    }

    /// Returns all chains in the page table: each page with the first extent of its chain. The caller holds the lock,
    /// or is the only user, or calls this method in [`Store::steadily`](super::store::Store::steadily). Otherwise
    /// another process may free an extent and take it again for another list, and the walk may continue in that list.
    pub(super) fn all_chains(&self) -> Result<Vec<(u32, Extent)>, LogError> {
        let mut found = Vec::new();
        for bucket in 0..u64::from(self.geometry.buckets) {
            let at = self.geometry.buckets_offset + 8 * bucket;
            let mut link = self.nvm.load_u64(at);
            while let Some(extent) = self.follow(link)? {
                found.push((self.page_of(extent), extent));
                if found.len() > self.most_steps() as usize {
                    return Err(self.too_long(at));
                }
                link = self.state(extent, State::Bucket);
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

impl Pages {
    /// Loads a page's chain. Returns whether the page has a chain.
    pub(super) fn load(&self, area: &Area, page_number: u32, chain: &mut Chain) -> Result<bool, LogError> {
        match self {
            Self::Shared => area.load_chain(page_number, chain),
            Self::Scanned(chains) => match chains.get(&page_number) {
                Some(found) => {
                    chain.clone_from(found);
                    Ok(true)
                }
                None => Ok(false),
            },
        }
    }
}
