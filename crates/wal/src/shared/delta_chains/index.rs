//! The volatile index of committed and staged records. It says which record holds a frame, and which record of the same page
//! comes before it. Each process rebuilds the index from the log.

use std::collections::hash_map::Entry;

use duralite_format::record::Base;
use duralite_format::sqlite_wal::Checksum;
use rustc_hash::FxHashMap;

use super::record::{Committed, Record, RecordNumber};
use crate::LogError;
use crate::engine::{Frame, Transaction};

/// The next record of a page is a whole image if the page's chain has this many differences …
pub(crate) const CHAIN_RECORDS: u32 = 64;
/// … or if the differences have more bytes than this many pages.
pub(crate) const CHAIN_PAGES: u32 = 2;

/// The newest record of a page, and the length of its chain, which decides what reading the page costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) record: RecordNumber,
    chain_records: u32,
    chain_bytes: u32,
}

impl Head {
    /// Whether the chain is longer, by a wide margin, than any that this program writes.
    pub(crate) fn is_impossible(&self, page_bytes: u32) -> bool {
        self.chain_records > 2 * CHAIN_RECORDS || self.chain_bytes > 4 * CHAIN_PAGES * page_bytes
    }

    /// Whether one more difference would make the page too expensive to read.
    pub(crate) fn is_long(&self, page_bytes: u32) -> bool {
        self.chain_records >= CHAIN_RECORDS || self.chain_bytes > CHAIN_PAGES * page_bytes
    }
}

/// A record that has just been staged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    pub(crate) number: RecordNumber,
    /// The page's head with this record.
    pub(crate) head: Head,
    /// The page's newest record before it.
    pub(crate) before: Option<RecordNumber>,
}

#[derive(Debug, Clone, Copy)]
struct CommittedFrame {
    record: RecordNumber,
    db_pages: u32,
    checksum: Option<Checksum>,
}

/// A transaction that no later one has replaced.
#[derive(Debug, Clone, Copy)]
struct CommittedTransaction {
    sequence: u32,
    last_frame: u32,
    time_ms: u64,
}

/// Index of one generation.
#[derive(Default)]
pub(crate) struct Index {
    records: Vec<Record>,
    frames: Vec<CommittedFrame>,
    /// Ascending by number and by frame.
    transactions: Vec<CommittedTransaction>,
    heads: FxHashMap<u32, Head>,
    /// Number of records of committed transactions. The records after them are staged.
    committed_records: usize,
    staged_first: u32,
    staged: Vec<RecordNumber>,
    /// The undo log of `heads`: what each staged record replaced, oldest first.
    undo: Vec<(u32, Option<Head>)>,
}

/// Entries of each list for which memory is kept when a new generation begins. A log that starts over every thousand frames would
/// otherwise allocate that memory again each time.
const KEPT: usize = 1 << 14;

impl Index {
    /// Empties the index.
    pub(crate) fn clear(&mut self) {
        let Self { records, frames, transactions, heads, committed_records, staged_first, staged, undo } =
            self;
        records.clear();
        records.shrink_to(KEPT);
        frames.clear();
        frames.shrink_to(KEPT);
        transactions.clear();
        transactions.shrink_to(KEPT);
        heads.clear();
        heads.shrink_to(KEPT);
        staged.clear();
        staged.shrink_to(KEPT);
        undo.clear();
        undo.shrink_to(KEPT);
        (*committed_records, *staged_first) = (0, 0);
    }

    pub(crate) fn frames(&self) -> u32 {
        self.frames.len() as u32
    }

    pub(crate) fn frame(&self, number: u32) -> Option<Frame> {
        let frame = self.frames.get(number.checked_sub(1)? as usize)?;
        let record = self.records.get(frame.record as usize)?;
        Some(Frame {
            page_number: record.page_number,
            db_pages: frame.db_pages,
            checksum: frame.checksum,
            record_bytes: Some(record.record_bytes),
        })
    }

    /// The record of a frame. A staged frame takes precedence over a committed one.
    pub(crate) fn record_of_frame(&self, number: u32) -> Option<RecordNumber> {
        if !self.staged.is_empty() && number >= self.staged_first {
            return self.staged.get((number - self.staged_first) as usize).copied();
        }
        self.frames.get(number.checked_sub(1)? as usize).map(|frame| frame.record)
    }

    pub(crate) fn record(&self, number: RecordNumber) -> Option<&Record> {
        self.records.get(number as usize)
    }

    pub(crate) fn head(&self, page_number: u32) -> Option<&Head> {
        self.heads.get(&page_number)
    }

    /// Adds a record as staged for `frame`; `None` if the frame number leaves a gap.
    pub(crate) fn stage(
        &mut self,
        frame: u32,
        page_number: u32,
        at: u64,
        record_bytes: u32,
        base: Base,
    ) -> Option<Staged> {
        let number = self.records.len() as RecordNumber;
        if self.staged.is_empty() {
            self.staged_first = frame;
        }
        let slot = frame.checked_sub(self.staged_first)? as usize;
        if slot == self.staged.len() {
            self.staged.push(number);
        } else {
            *self.staged.get_mut(slot)? = number;
        }
        let entry = self.heads.entry(page_number);
        let before = match &entry {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(_) => None,
        };
        let (previous, chain_records, chain_bytes) = match (base, before) {
            (Base::Previous | Base::Change, Some(head)) => {
                (Some(head.record), head.chain_records + 1, head.chain_bytes)
            }
            (Base::Previous | Base::Change, None) | (Base::Zeros, _) => (None, 0, 0),
        };
        self.records.push(Record { at, record_bytes, page_number, previous });
        let chain_bytes = if previous.is_some() { chain_bytes.saturating_add(record_bytes) } else { 0 };
        let head = Head { record: number, chain_records, chain_bytes };
        entry.insert_entry(head);
        self.undo.push((page_number, before));
        Some(Staged { number, head, before: before.map(|head| head.record) })
    }

    /// Commits the staged frames up to the transaction's last frame.
    pub(crate) fn commit(&mut self, committed: &Committed) {
        let Committed { last_frame, db_pages, checksum, sequence, time_ms } = *committed;
        while self.transactions.last().is_some_and(|before| before.last_frame >= self.staged_first) {
            self.transactions.pop();
        }
        self.transactions.push(CommittedTransaction { sequence, last_frame, time_ms });
        self.frames.truncate((self.staged_first - 1) as usize);
        let count = (last_frame + 1 - self.staged_first) as usize;
        for (i, &record) in self.staged.iter().take(count).enumerate() {
            let is_last = i + 1 == count;
            self.frames.push(CommittedFrame {
                record,
                db_pages: if is_last { db_pages } else { 0 },
                checksum: checksum.filter(|_| is_last),
            });
        }
        self.committed_records = self.records.len();
        self.staged.clear();
        self.undo.clear();
    }

    /// The first transaction with a number above `sequence`.
    pub(crate) fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        let at = self.transactions.partition_point(|transaction| transaction.sequence <= sequence);
        let CommittedTransaction { sequence, last_frame, time_ms } = *self.transactions.get(at)?;
        let before = at.checked_sub(1).and_then(|before| self.transactions.get(before));
        let first_frame = before.map_or(1, |before| before.last_frame + 1);
        let db_pages = self.frame(last_frame)?.db_pages;
        Some(Transaction { sequence, first_frame, last_frame, db_pages, time_ms })
    }

    /// Adds `base` (wrapping) to the places of the staged records.
    pub(crate) fn move_staged(&mut self, base: u64) {
        for record in self.records.iter_mut().skip(self.committed_records) {
            record.at = record.at.wrapping_add(base);
        }
    }

    /// Returns the records from which a page's image as of the record `number` is made, newest first. If `since` is among them,
    /// returns `true` and only the records after it.
    pub(crate) fn chain(
        &self,
        number: RecordNumber,
        since: Option<RecordNumber>,
    ) -> Result<(bool, Vec<&Record>), LogError> {
        // Usually no record follows `since`: do not allocate.
        let mut chain = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next.filter(|_| next != since) {
            let record = self.records.get(number as usize).ok_or(LogError::Unexpected("a record number"))?;
            chain.push(record);
            next = record.previous;
        }
        Ok((next.is_some(), chain))
    }

    /// Whether any frame is staged.
    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// The number of the first staged frame, and how many frames are staged.
    pub(crate) fn staged_frames(&self) -> (u32, u32) {
        (self.staged_first, self.staged.len() as u32)
    }

    /// Undoes the staged records. Calls `forget` for the page of each of them.
    pub(crate) fn discard(&mut self, mut forget: impl FnMut(u32)) {
        for (page_number, before) in self.undo.drain(..).rev() {
            match before {
                Some(head) => self.heads.insert(page_number, head),
                None => self.heads.remove(&page_number),
            };
            forget(page_number);
        }
        self.records.truncate(self.committed_records);
        self.staged.clear();
    }

    /// The pages with committed frames and the newest frame of each.
    pub(crate) fn newest_frames(&self) -> FxHashMap<u32, u32> {
        let mut newest = FxHashMap::default();
        for (i, frame) in self.frames.iter().enumerate() {
            if let Some(record) = self.records.get(frame.record as usize) {
                newest.insert(record.page_number, i as u32 + 1);
            }
        }
        newest
    }
}
