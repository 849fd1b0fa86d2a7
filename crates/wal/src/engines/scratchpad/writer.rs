//! Stores a transaction in pages of the region, commits it, and starts the log over.

use duralite_format::Origin;
use duralite_format::scratchpad::{
    Base, CommitEntry, ENTRY_BYTES, FOLLOW_AT, HEADER_BYTES, Kind, LAST_AT, NO_BLOCK, PAGE_BYTES, PageHeader,
    RECORD_AT, RecordHeader, Slot, TxHash, TxHeader, active_word, change_header, committed_mark,
    committing_mark, entry_bytes, first_link_offset, first_link_tag, link_word,
};
use duralite_format::sqlite_wal::{WAL_HEADER_BYTES, WalHeader};

use duralite_medium::LINE_BYTES;

use super::region::{Needed, offset_of};
use super::transaction::LINES;
use super::{OpenTransaction, Scratchpad, apply_from};
use crate::LogError;
use crate::engine::Commit;
use crate::engine::prelude::*;
use crate::shared::delta_chains::{Committed, encode_whole_record};
use crate::shared::generations::InForce;

impl Scratchpad {
    /// Decides what to log for a page, stores it, and updates the page's cached image.
    pub(super) fn stage_record(
        &mut self,
        frame: u32,
        page_number: u32,
        page: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<(), LogError> {
        let header = if self.diff {
            let mut apply = apply_from(&self.region, &mut self.record);
            self.chains.encode_record(frame, page_number, page, payload, &mut apply)?
        } else {
            encode_whole_record(frame, page_number, page, payload)
        };
        let at = self.append(&header, payload)?;
        self.activity.records += 1;
        if header.base == Base::Zeros {
            self.activity.whole_pages += 1;
        }
        self.chains.stored(at, &header, payload, page)
    }

    /// Stores one entry at the end of the open transaction. Returns the offset of its record.
    fn append(&mut self, header: &RecordHeader, payload: &[u8]) -> Result<u64, LogError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin_transaction()?,
        };
        let result = self.append_to(&mut open, header, payload);
        self.open = Some(open);
        result
    }

    fn append_to(
        &mut self,
        open: &mut OpenTransaction,
        header: &RecordHeader,
        payload: &[u8],
    ) -> Result<u64, LogError> {
        let size = entry_bytes(header.record_bytes);
        let first_new = open.pages.len();
        let offset = open.offset;
        self.reach(open, size)?;
        let hash = open.hash.record(&header.encode(), payload);
        let head = change_header(self.sequence + 1, header, hash);
        // If the last page is full, the entry begins in the next page.
        let (mut index, mut at) =
            if offset == PAGE_BYTES { (first_new, HEADER_BYTES) } else { (first_new - 1, offset) };
        let page_at = |index: usize| open.pages.get(index).map_or(0, |(page, _)| offset_of(*page));
        let record_at = page_at(index) + at + RECORD_AT;
        // Assemble the entry in whole cache lines, so that no cache line is stored twice.
        self.entry.clear();
        self.entry.extend_from_slice(&head);
        self.entry.extend_from_slice(payload);
        self.entry.resize(size as usize, 0);
        let mut rest = &self.entry[..];
        while !rest.is_empty() {
            if at == PAGE_BYTES {
                (index, at) = (index + 1, HEADER_BYTES);
            }
            let here = rest.len().min((PAGE_BYTES - at) as usize);
            let (now, later) = rest.split_at(here);
            let (nvm, to, through) = (&self.region.nvm, page_at(index) + at, open.work.through);
            let put = || if through { nvm.stream(to, now) } else { nvm.store(to, now) };
            open.work.part(here as u64 / LINE_BYTES, put);
            (rest, at) = (later, at + here as u64);
        }
        open.offset = at;
        open.hash = hash;
        open.records += 1;
        Ok(record_at)
    }

    fn begin_transaction(&mut self) -> Result<OpenTransaction, LogError> {
        let (sequence, generation) = (self.sequence + 1, self.in_force.slot.generation);
        let hash = TxHash::new(self.region.id, generation, sequence);
        let pages = std::mem::take(&mut self.spare);
        let work = self.choice.begin();
        let mut open = OpenTransaction { pages, offset: PAGE_BYTES, hash, records: 0, work };
        open.pages.clear();
        self.reach(&mut open, ENTRY_BYTES)?;
        open.offset = HEADER_BYTES;
        Ok(open)
    }

    /// Makes sure that `bytes` more bytes fit into the transaction's pages. After an error the transaction has the same
    /// pages as before the call.
    fn reach(&mut self, open: &mut OpenTransaction, bytes: u64) -> Result<(), LogError> {
        let mut room = PAGE_BYTES - open.offset;
        let before = open.pages.len();
        while room < bytes {
            match self.take_page(open) {
                Ok(page) => open.pages.push(page),
                Err(error) => {
                    // The link to these pages stays, which does no harm. Either a writer replaces it later, or no
                    // process ever follows it.
                    self.region.give_back(open.pages.drain(before..).map(|(page, _)| page));
                    return Err(error);
                }
            }
            room += PAGE_BYTES - HEADER_BYTES;
        }
        Ok(())
    }

    fn take_page(&mut self, open: &OpenTransaction) -> Result<(u32, u32), LogError> {
        let limit = self.superblock.limit_pages;
        if limit > 0 && self.pages.len() + open.pages.len() >= limit as usize {
            return Err(LogError::LimitReached { limit_bytes: u64::from(limit) * PAGE_BYTES });
        }
        let header = PageHeader {
            kind: Kind::Redo,
            generation: self.in_force.slot.generation,
            transaction: self.sequence + 1,
            index: open.pages.len() as u32,
        };
        let page = self.region.take(&header, || self.needed(open))?;
        if let Some((before, tag)) = open.pages.last() {
            self.region.link(*before, *tag, page);
        }
        Ok((page, header.tag(self.region.id, page)))
    }

    /// Returns a function that tells which pages of the log are needed, or `None` if that is not known. The call makes
    /// durable what recovery needs to find these pages. So after a crash recovery needs no others.
    fn needed(&self, open: &OpenTransaction) -> Option<Needed<'static>> {
        // Only a writer that has applied everything committed knows which pages are needed.
        if !matches!(self.next_transaction(), Ok(None)) {
            return None;
        }
        let mut needed = self.needed_beside(self.rollback.pages().ok()?);
        needed.extend(open.pages());
        if self.doubtful_generation {
            self.settle_generation();
        }
        self.forget_first();
        Some(Box::new(move |page| needed.contains(&page)))
    }

    /// Commits the staged frames: stores the last entry, flushes everything and fences. Then stores the mark *committed*,
    /// flushes it and fences. If a store is durable without a flush, the flushes do nothing.
    pub(super) fn seal_staged(&mut self, commit: &Commit) -> Result<(), LogError> {
        let (first, count) = self.chains.staged_frames();
        let covers = commit.first_frame == first && (first..first + count).contains(&commit.last_frame);
        let Some(mut open) = self.open.take().filter(|_| covers) else {
            return Err(LogError::Unexpected("a commit of frames that are not staged"));
        };
        let bytes = if open.offset == PAGE_BYTES { ENTRY_BYTES } else { 0 };
        if let Err(error) = self.reach(&mut open, bytes) {
            self.open = Some(open);
            return Err(error);
        }
        if open.offset == PAGE_BYTES {
            open.offset = HEADER_BYTES;
        }
        let sequence = self.sequence + 1;
        let elapsed_ms = self.sealed_at.until((self.clock)());
        let last = self.store_last(&open, commit, elapsed_ms);
        let generation = self.in_force.slot.generation;
        let mut work = std::mem::take(&mut open.work);
        let through = work.through;
        work.part(0, || {
            self.flush_stored(&open, through);
            self.settle_flushed();
            self.region.nvm.fence();
        });
        self.choice.end(&work);
        self.store_follow(open.pages.first().map_or(0, |(page, _)| *page));
        // This store alone commits the transaction. Everything else of the transaction is durable by now (invariant 25).
        self.region.nvm.store_u64(last, committed_mark(self.region.id, generation, sequence));
        self.region.nvm.flush(last, 8);
        self.region.nvm.fence();
        self.sealed_at.advance(elapsed_ms);
        self.chains.commit(&Committed {
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            checksum: Some(commit.checksum),
            sequence,
            time_ms: self.sealed_at.told(),
        });
        self.newest = open.pages.first().copied().unwrap_or_default();
        self.pages.extend(open.pages());
        self.spare = open.pages;
        self.sequence = sequence;
        self.activity.commits += 1;
        self.activity.frames += u64::from(commit.last_frame + 1 - commit.first_frame);
        Ok(())
    }

    /// Flushes the cache lines that were stored through the cache. If the records were stored non-temporally
    /// (`through`), these are only the headers of pages and the last entry.
    fn flush_stored(&self, open: &OpenTransaction, through: bool) {
        let nvm = &self.region.nvm;
        if nvm.is_durable_on_store() {
            return;
        }
        for page in open.pages() {
            let stored = if page == open.last() { open.offset + ENTRY_BYTES } else { PAGE_BYTES };
            nvm.flush(offset_of(page), if through { HEADER_BYTES } else { stored });
        }
        if through {
            nvm.flush(offset_of(open.last()) + open.offset, ENTRY_BYTES);
        }
    }

    /// Stores the last entry with the mark *committing*, and the link to this entry. Returns the entry's offset.
    fn store_last(&self, open: &OpenTransaction, commit: &Commit, elapsed_ms: u32) -> u64 {
        let generation = self.in_force.slot.generation;
        let mut header = TxHeader {
            hash: 0,
            elapsed_ms,
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            records: open.records,
            wal_checksum: commit.checksum,
        };
        header.hash = header.seal_hash(open.hash);
        let (transaction, pages) = (self.sequence + 1, open.pages.len() as u32);
        let entry = CommitEntry { header, generation, transaction, pages };
        let at = offset_of(open.last()) + open.offset;
        let nvm = &self.region.nvm;
        // Store the mark *committing* before the rest of its line. A line's stores become durable in their order, so a
        // reader that finds the rest of the line with neither mark knows that the line is damaged.
        nvm.store_u64(at, committing_mark(self.region.id, generation, transaction));
        nvm.store(at + 8, &entry.encode(self.region.id)[8..]);
        if let Some((first, tag)) = open.pages.first() {
            let line = u64::from(open.last()) * LINES + open.offset / ENTRY_BYTES;
            nvm.store_u64(offset_of(*first) + LAST_AT, link_word(line as u32, *tag));
        }
        at
    }

    /// Stores the link by which running processes find the next transaction. The link is not durable, because recovery
    /// scans the region instead of following links.
    pub(super) fn store_follow(&self, first: u32) {
        let (id, generation) = (self.region.id, self.in_force.slot.generation);
        let (page, tag) = self.newest;
        if page == 0 {
            let tag = first_link_tag(id, generation);
            self.nvm.store_u64(first_link_offset(generation), link_word(first, tag));
        } else {
            self.region.nvm.store_u64(offset_of(page) + FOLLOW_AT, link_word(first, tag));
        }
    }

    /// Begins a new generation with this WAL header. Without a header, makes the log empty.
    pub(super) fn start_over(&mut self, header: Option<&WalHeader>) -> Result<(), LogError> {
        // Other processes may have begun several generations since this process last looked.
        self.refresh()?;
        if header.is_some_and(|header| header.page_bytes != self.superblock.head.page_bytes) {
            return Err(LogError::Unexpected("a WAL header with another page size than the log's"));
        }
        self.switch_generation(header, false);
        Ok(())
    }

    pub(super) fn switch_generation(&mut self, header: Option<&WalHeader>, retired: bool) {
        let generation = self.in_force.slot.generation + 1;
        self.drop_staged();
        // There are two slots, and the new generation overwrites the older one. If the last switch is not durable yet,
        // a crash might bring back the older generation. So make the last switch durable first.
        self.settle_doubtful();
        let slot = Slot {
            generation,
            first_block: if header.is_some() { 0 } else { NO_BLOCK },
            wal_header: header.map_or([0; WAL_HEADER_BYTES], |header| header.bytes),
            retired,
        };
        let origin = Origin { generation, position: self.position(), time_ms: (self.clock)() };
        let in_force = InForce { active: active_word(generation), slot, origin, wal_header: header.copied() };
        // The old link in this place leads to the first transaction of an earlier generation. Clear it.
        self.nvm.store_u64(first_link_offset(generation), 0);
        in_force.store(self.nvm.as_ref(), self.region.id);
        let old = std::mem::take(&mut self.pages);
        self.enter(in_force);
        self.region.give_back(old);
        self.activity.generations += 1;
    }
}
