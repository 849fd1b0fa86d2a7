//! The rollback journal in the region: a byte stream in a chain of pages.
//!
//! Byte `o` of the journal is in its page `o / 4032`. One word in the log's file says whether the journal exists and how long
//! it is. So a single store of 8 bytes, after a fence, is enough to create, extend, truncate or delete the journal.
//!
//! All processes see what a process has stored, even if the process dies before its stores are durable. So if a dead
//! process overwrote a journal's header, a crash may bring the old header back. To prevent this, a count in the log's
//! file is odd from the first store of a change until all of the change is durable. If a process finds an odd count
//! that another process stored, it first makes the journal's words and headers durable as it sees them.
//!
//! Invariants kept here: 12, 24, 26. Callers hold SQLite's locks, so one writer at a time changes the journal.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_format::FormatError;
use duralite_format::scratchpad::{
    ACTIVE_OFFSET, HEADER_BYTES, JOURNAL_CHAIN_OFFSET, JOURNAL_CHANGES_OFFSET, JOURNAL_LIMIT,
    JOURNAL_STATE_OFFSET, Kind, NO_BLOCK, Owner, PAGE_BYTES, PageHeader, SLOT_BYTES, STREAM_BYTES, Slot,
    UndoChain, UndoState, read_active_word, slot_offset,
};
use duralite_medium::{LINE_BYTES, Nvm, lines_touched};

use super::region::{Needed, Region, offset_of, pages_for};
use crate::LogError;
use crate::engine::rollback::{MAGIC, RollbackJournal, SUPER_TAIL};
use crate::shared::generations;
use crate::shared::past_cache::{Choice, Work};

/// The headers in SQLite's journals begin at multiples of the sector size, which is at least this many bytes.
const SECTOR_BYTES: u64 = 512;
/// The most attempts to read. A process tries again if another process has replaced the journal during the read.
const READS: usize = 1000;

/// The rollback journal of one database.
pub(super) struct UndoLog {
    /// The log's file.
    nvm: Arc<dyn Nvm>,
    region: Arc<Region>,
    choice: Arc<Choice>,
    known: Mutex<Known>,
}

/// What this process knows of the journal. Before each use, the process checks it against the pages.
#[derive(Default)]
struct Known {
    chain: u64,
    pages: Vec<u32>,
    /// The odd count of changes that this process has stored for its own change in progress.
    change: u64,
    /// Ranges of the region that are stored but not flushed, each given as its first offset and its end.
    dirty: Vec<(u64, u64)>,
    /// The stores since the last sync; `None` if there are none.
    work: Option<Work>,
}

impl Known {
    /// Switches to another chain with these pages, but keeps the count of the change in progress.
    fn turn_to(&mut self, chain: u64, pages: Vec<u32>) {
        *self = Self { chain, pages, change: self.change, ..Self::default() };
    }
}

impl UndoLog {
    pub(super) fn new(nvm: Arc<dyn Nvm>, region: Arc<Region>, choice: Arc<Choice>) -> Self {
        Self { nvm, region, choice, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let chain = self.nvm.load_u64(JOURNAL_CHAIN_OFFSET);
        if known.chain != chain {
            known.turn_to(chain, Vec::new());
        }
        known
    }

    /// Makes the count of changes odd. The caller does so before the first store of a change.
    fn begin_change(&self, known: &mut Known) -> Result<(), LogError> {
        let count = self.nvm.load_u64(JOURNAL_CHANGES_OFFSET);
        let is_odd = count % 2 == 1;
        if is_odd && count == known.change {
            return Ok(());
        }
        if is_odd {
            self.settle()?;
        }
        known.change = (count | 1).wrapping_add(2);
        self.nvm.store_u64(JOURNAL_CHANGES_OFFSET, known.change);
        Ok(())
    }

    /// Makes the count of changes even. The caller does so once everything that this process has stored is durable.
    fn end_change(&self, known: &Known) {
        if self.nvm.load_u64(JOURNAL_CHANGES_OFFSET) == known.change {
            self.nvm.store_u64(JOURNAL_CHANGES_OFFSET, known.change.wrapping_add(1));
        }
    }

    /// Makes durable what a dead process may have stored: the words that say whether there is a journal and how long it
    /// is, and, in the journal, every word at which a header may begin.
    fn settle(&self) -> Result<(), LogError> {
        self.flush_words();
        let (chain, UndoState::Bytes(bytes)) = self.state()? else { return Ok(()) };
        for (index, page) in self.walk(chain, pages_for(bytes).max(1) as usize).into_iter().enumerate() {
            for at in self.places_of_heads(page, index, index as u64 * STREAM_BYTES) {
                self.region.nvm.flush(at, 8);
            }
        }
        self.region.nvm.fence();
        Ok(())
    }

    /// Reads the chain and the state. Tries again if a running process changes them during the read.
    fn state(&self) -> Result<(UndoChain, UndoState), LogError> {
        let mut tries = 0;
        loop {
            let before = self.nvm.load_u64(JOURNAL_CHAIN_OFFSET);
            let word = self.nvm.load_u64(JOURNAL_STATE_OFFSET);
            let chain = UndoChain::read(before);
            match UndoState::read(word, self.region.id, chain) {
                Ok(state) => return Ok((chain, state)),
                Err(_) if tries < 100 => tries += 1,
                Err(what) => return Err(LogError::Corrupt { offset: JOURNAL_STATE_OFFSET, what }),
            }
        }
    }

    fn length(&self) -> Result<(UndoChain, u64), LogError> {
        match self.state()? {
            (chain, UndoState::Bytes(bytes)) => Ok((chain, bytes)),
            (_, UndoState::Gone) => Err(LogError::Unexpected("the rollback journal is used after its end")),
        }
    }

    fn header(chain: UndoChain, index: usize) -> PageHeader {
        let generation = u64::from(chain.number);
        PageHeader { kind: Kind::Undo, generation, transaction: 0, index: index as u32 }
    }

    /// Returns whether a page is the journal's page with this index.
    fn is_at(&self, page: u32, chain: UndoChain, index: usize) -> bool {
        let expected = Self::header(chain, index);
        self.region.is_own(page) && self.region.header(page).is_some_and(|(header, _)| header == expected)
    }

    /// Returns the pages of a chain, as far as the chain's links lead, but at most `most` pages.
    fn walk(&self, chain: UndoChain, most: usize) -> Vec<u32> {
        let mut pages = Vec::new();
        let mut next = Some(chain.first).filter(|first| self.is_at(*first, chain, 0));
        while let Some(page) = next.filter(|_| pages.len() < most) {
            pages.push(page);
            let linked = self.region.header(page).and_then(|(_, tag)| self.region.linked(page, tag));
            next = linked.filter(|page| self.is_at(*page, chain, pages.len()));
        }
        pages
    }

    /// Returns the journal's page with this index.
    fn page(&self, known: &mut Known, chain: UndoChain, index: usize) -> Result<u32, LogError> {
        if let Some(page) = known.pages.get(index).copied().filter(|page| self.is_at(*page, chain, index)) {
            return Ok(page);
        }
        known.pages = self.walk(chain, usize::MAX);
        let what = FormatError::Damaged { what: "the chain of pages of the rollback journal" };
        known.pages.get(index).copied().ok_or(LogError::Corrupt { offset: JOURNAL_CHAIN_OFFSET, what })
    }

    /// Returns all pages of the journal, if there is one. On return the journal's words are durable, so after a crash
    /// recovery needs no other pages for the journal.
    pub(super) fn pages(&self) -> Result<Vec<u32>, LogError> {
        let found = self.state()?;
        self.flush_words();
        match found {
            (chain, UndoState::Bytes(_)) => Ok(self.walk(chain, usize::MAX)),
            (_, UndoState::Gone) => Ok(Vec::new()),
        }
    }

    /// Returns whether there is no journal.
    pub(super) fn is_gone(&self) -> bool {
        self.nvm.load_u64(JOURNAL_STATE_OFFSET) == 0
    }

    /// Checks that the journal has all the pages that its length requires.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check(&self) -> Result<Vec<u32>, LogError> {
        let pages = self.pages()?;
        if let (_, UndoState::Bytes(bytes)) = self.state()?
            && pages_for(bytes).max(1) > pages.len() as u64
        {
            let what = FormatError::Damaged { what: "the chain of pages of the rollback journal" };
            return Err(LogError::Corrupt { offset: JOURNAL_CHAIN_OFFSET, what });
        }
        Ok(pages)
    }

    /// Returns which pages of the log are needed, as far as the writer of a journal knows. These are all pages that
    /// this process has taken, the pages of the journal, and the pages of the generation in force unless it is empty.
    /// The call makes durable the words by which recovery finds these pages. So after a crash recovery needs no others.
    fn needed(&self) -> Option<Needed<'_>> {
        let (chain, state) = self.state().ok()?;
        let generation = read_active_word(self.nvm.load_u64(ACTIVE_OFFSET));
        // The process that began the generation may have died before the generation was durable.
        generations::flush(&*self.nvm, generation);
        self.flush_words();
        let mut bytes = [0; SLOT_BYTES];
        self.nvm.read(slot_offset(generation), &mut bytes);
        let slot = Slot::decode(&bytes, self.region.id, generation).ok()?;
        let is_empty = slot.first_block == NO_BLOCK;
        let undo = (state != UndoState::Gone).then(|| u64::from(chain.number));
        Some(Box::new(move |page| {
            let is_own = Owner::slot_in(self.region.owner_word(page)) == self.region.slot;
            is_own
                || self.region.header(page).is_some_and(|(header, _)| match header.kind {
                    Kind::Redo => !is_empty && header.generation >= generation,
                    Kind::Undo => Some(header.generation) == undo,
                })
        }))
    }

    /// Makes sure that the chain has `count` pages. The journal has `bytes` bytes.
    fn reach(&self, known: &mut Known, chain: UndoChain, count: usize, bytes: u64) -> Result<(), LogError> {
        let have = pages_for(bytes).max(1) as usize;
        if count <= have {
            return Ok(());
        }
        self.page(known, chain, have - 1)?;
        // A writer linked these further pages, but died before the length included them. So give them back.
        let stale = known.pages.split_off(have);
        self.region.give_back(stale);
        for index in have..count {
            let page = match self.region.take(&Self::header(chain, index), || self.needed()) {
                Ok(page) => page,
                Err(error) => {
                    self.region.give_back(known.pages.drain(have..));
                    return Err(error);
                }
            };
            if let Some(before) = known.pages.last().copied() {
                let tag = Self::header(chain, index - 1).tag(self.region.id, before);
                self.region.link(before, tag, page);
                self.region.nvm.flush(offset_of(before), HEADER_BYTES);
            }
            self.erase_heads(page, index, index as u64 * STREAM_BYTES);
            self.region.nvm.flush(offset_of(page), HEADER_BYTES);
            known.pages.push(page);
        }
        // No fence is needed here. The writer fences before it stores a length that includes these pages, and that
        // fence makes the pages durable.
        Ok(())
    }

    /// Makes the words of the chain and the state durable, even if another process stored them.
    fn flush_words(&self) {
        self.nvm.flush(JOURNAL_CHAIN_OFFSET, 16);
        self.nvm.fence();
    }

    /// Erases old journal headers in a page, from byte `from` of the journal on. That byte is in this page. After a
    /// crash, the journal's new length may be durable although the new bytes are not. In place of these bytes SQLite
    /// must not find the header of an earlier journal. The erasure is durable with the next fence.
    fn erase_heads(&self, page: u32, index: usize, from: u64) {
        for at in self.places_of_heads(page, index, from) {
            if self.region.nvm.load_u64(at).to_le_bytes() == MAGIC {
                self.region.nvm.store_u64(at, 0);
            }
            // Flush even if no header is visible. A header may have been erased without a flush, and the durable word
            // may still be that header.
            self.region.nvm.flush(at, 8);
        }
    }

    /// Returns the offsets in a page at which an old journal header may begin, from byte `from` of the journal on.
    /// There are none if a store is durable without a flush: in that case the bytes are always durable before a length
    /// that includes them.
    fn places_of_heads(&self, page: u32, index: usize, from: u64) -> impl Iterator<Item = u64> {
        let first = index as u64 * STREAM_BYTES;
        let end = if self.region.nvm.is_durable_on_store() { first } else { first + STREAM_BYTES };
        let heads = (from.next_multiple_of(SECTOR_BYTES)..end).step_by(SECTOR_BYTES as usize);
        heads.map(move |head| offset_of(page) + HEADER_BYTES + head - first)
    }

    /// Erases the name of a super-journal in the bytes `cut`, which the caller cuts off the end of the journal. The
    /// last word of these bytes shows whether they end with such a name. Without the erasure, a later journal of the
    /// same length could become durable before its own end does. After a crash it would name the wrong super-journal. A
    /// process that writes a copy of the log home erases nothing: the pages belong to the original, whose users still
    /// need the name.
    fn erase_trailer(&self, known: &mut Known, chain: UndoChain, cut: Range<u64>) {
        if !self.region.is_writable() {
            return;
        }
        let mut last = [0; MAGIC.len()];
        let Some(at) = cut.end.checked_sub(last.len() as u64).filter(|at| *at >= cut.start) else { return };
        if self.region.nvm.is_durable_on_store() || self.read_pages(known, chain, &mut last, at).is_err() {
            return;
        }
        if last == MAGIC && self.store(known, chain, &[0; MAGIC.len()], at).is_ok() {
            self.flush(known);
        }
    }

    /// Flushes the last bytes of a journal of `end` bytes, which tell SQLite whether the journal names a super-journal.
    /// The bytes are durable with the next fence. A dead process may have deleted an earlier journal without erasing
    /// the name of a super-journal at its end. If the new length became durable before the new end, SQLite could find
    /// that old name, and take the transaction for committed.
    fn flush_end(&self, known: &mut Known, chain: UndoChain, end: u64) -> Result<(), LogError> {
        let is_durable = self.region.nvm.is_durable_on_store();
        let mut from = if is_durable { end } else { end.saturating_sub(SUPER_TAIL) };
        while from < end {
            let within = from % STREAM_BYTES;
            let here = (end - from).min(STREAM_BYTES - within);
            let page = self.page(known, chain, (from / STREAM_BYTES) as usize)?;
            self.region.nvm.flush(offset_of(page) + HEADER_BYTES + within, here);
            from += here;
        }
        Ok(())
    }

    fn store_state(&self, state: UndoState, chain: UndoChain) {
        self.nvm.store_u64(JOURNAL_STATE_OFFSET, state.word(self.region.id, chain));
    }

    /// Stores in one word whether the journal exists and how long it is (invariant 26). The word is durable on return.
    fn put_in_force(&self, state: UndoState, chain: UndoChain) {
        self.store_state(state, chain);
        self.flush_words();
    }

    /// Stores bytes at byte `offset` of the journal. The journal has the pages for these bytes already.
    fn store(&self, known: &mut Known, chain: UndoChain, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let (mut rest, mut offset) = (bytes, offset);
        while !rest.is_empty() {
            let within = offset % STREAM_BYTES;
            let here = rest.len().min((STREAM_BYTES - within) as usize);
            let (now, later) = rest.split_at(here);
            let page = self.page(known, chain, (offset / STREAM_BYTES) as usize)?;
            let at = offset_of(page) + HEADER_BYTES + within;
            self.put(known, at, now);
            (rest, offset) = (later, offset + here as u64);
        }
        Ok(())
    }

    /// Stores bytes. The writer does not soon store to the same cache lines again, so `choice` may prescribe
    /// non-temporal stores for whole lines.
    fn put(&self, known: &mut Known, at: u64, bytes: &[u8]) {
        let nvm = &self.region.nvm;
        let work = known.work.get_or_insert_with(|| self.choice.begin());
        let end = at + bytes.len() as u64;
        let (from, to) = (at.next_multiple_of(LINE_BYTES), end - end % LINE_BYTES);
        if !work.through || from >= to {
            work.part(lines_touched(at, bytes.len() as u64), || nvm.store(at, bytes));
            self.touch(known, at, end);
            return;
        }
        let (head, rest) = bytes.split_at((from - at) as usize);
        let (lines, tail) = rest.split_at((to - from) as usize);
        work.part((to - from) / LINE_BYTES, || nvm.stream(from, lines));
        for (at, part) in [(at, head), (to, tail)] {
            if !part.is_empty() {
                nvm.store(at, part);
                self.touch(known, at, at + part.len() as u64);
            }
        }
    }

    fn touch(&self, known: &mut Known, from: u64, to: u64) {
        if self.region.nvm.is_durable_on_store() {
            return;
        }
        match known.dirty.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => known.dirty.push((from, to)),
        }
    }

    /// Fills the bytes from `from` to `to` with zeros.
    fn fill(&self, known: &mut Known, chain: UndoChain, from: u64, to: u64) -> Result<(), LogError> {
        let zeros = [0; PAGE_BYTES as usize];
        let mut at = from;
        while at < to {
            let here = (to - at).min(PAGE_BYTES);
            self.store(known, chain, &zeros[..here as usize], at)?;
            at += here;
        }
        Ok(())
    }

    /// Stores the beginning of the journal. Stores the first word separately. If that word makes the journal hot,
    /// stores it after the other bytes. If it ends the journal, stores it before them.
    fn store_beginning(&self, known: &mut Known, chain: UndoChain, bytes: &[u8]) -> Result<(), LogError> {
        let Some((word, rest)) = bytes.split_first_chunk::<8>() else {
            return self.store(known, chain, bytes, 0);
        };
        let at = offset_of(self.page(known, chain, 0)?) + HEADER_BYTES;
        let word = u64::from_le_bytes(*word);
        let store_word = |known: &mut Known| {
            self.region.nvm.store_u64(at, word);
            self.touch(known, at, at + 8);
        };
        if word == 0 {
            store_word(known);
            self.region.nvm.fence();
        }
        self.store(known, chain, rest, 8)?;
        if word != 0 {
            self.region.nvm.fence();
            store_word(known);
        }
        Ok(())
    }
}

impl RollbackJournal for UndoLog {
    fn size(&self) -> Result<Option<u64>, LogError> {
        Ok(match self.state()?.1 {
            UndoState::Bytes(bytes) => Some(bytes),
            UndoState::Gone => None,
        })
    }

    fn create(&self) -> Result<(), LogError> {
        self.delete()?;
        let mut known = self.known();
        self.begin_change(&mut known)?;
        let number = UndoChain::read(known.chain).number.wrapping_add(1);
        let header = Self::header(UndoChain { first: 0, number }, 0);
        let chain = UndoChain { first: self.region.take(&header, || self.needed())?, number };
        self.region.nvm.flush(offset_of(chain.first), HEADER_BYTES);
        self.region.nvm.fence();
        self.nvm.store_u64(JOURNAL_CHAIN_OFFSET, chain.word());
        self.nvm.flush(JOURNAL_CHAIN_OFFSET, 8);
        self.nvm.fence();
        self.put_in_force(UndoState::Bytes(0), chain);
        known.turn_to(chain.word(), vec![chain.first]);
        Ok(())
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        for _ in 0..READS {
            let (chain, UndoState::Bytes(bytes)) = self.state()? else { return Ok(0) };
            let read = self.read_of(chain, bytes, buf, offset);
            // A process that checks whether the journal is hot may read while a writer deletes the journal or begins
            // another one. So check that the same journal still exists.
            let (now, state) = self.state()?;
            if now.word() == chain.word() && state != UndoState::Gone {
                return read;
            }
        }
        Err(LogError::Unexpected("a rollback journal that is another one each time it is read"))
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let (chain, length) = self.length()?;
        let end = offset.saturating_add(bytes.len() as u64);
        if end >= JOURNAL_LIMIT {
            return Err(LogError::LimitReached { limit_bytes: JOURNAL_LIMIT });
        }
        let mut known = self.known();
        self.begin_change(&mut known)?;
        self.reach(&mut known, chain, pages_for(end) as usize, length)?;
        if length == 0 {
            self.erase_heads(self.page(&mut known, chain, 0)?, 0, 0);
        }
        self.fill(&mut known, chain, length, offset)?;
        if offset == 0 {
            self.store_beginning(&mut known, chain, bytes)?;
        } else {
            self.store(&mut known, chain, bytes, offset)?;
        }
        if end > length {
            // The fence makes the erased words and the end of the journal durable before the new length. It also
            // ensures that a process that reads the new length reads the new bytes.
            self.flush_end(&mut known, chain, end)?;
            self.region.nvm.fence();
            self.store_state(UndoState::Bytes(end), chain);
        }
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        let (chain, length) = self.length()?;
        let mut known = self.known();
        if bytes >= length {
            drop(known);
            return if bytes == length { Ok(()) } else { self.extend(chain, length, bytes) };
        }
        self.begin_change(&mut known)?;
        let kept = pages_for(bytes).max(1) as usize;
        if bytes > 0 {
            let last = self.page(&mut known, chain, kept - 1)?;
            self.erase_heads(last, kept - 1, bytes);
        }
        // Flush first, because SQLite may have written to the remaining part of the journal since the last sync.
        self.flush(&mut known);
        self.put_in_force(UndoState::Bytes(bytes), chain);
        self.erase_trailer(&mut known, chain, bytes..length);
        self.end_change(&known);
        let all = self.walk(chain, usize::MAX);
        self.region.give_back(all.iter().skip(kept).copied());
        known.pages = all;
        known.pages.truncate(kept);
        Ok(())
    }

    fn sync(&self) -> Result<(), LogError> {
        let mut known = self.known();
        self.flush(&mut known);
        self.flush_words();
        self.end_change(&known);
        Ok(())
    }

    fn delete(&self) -> Result<(), LogError> {
        let mut known = self.known();
        self.begin_change(&mut known)?;
        let (chain, state) = self.state()?;
        if let UndoState::Bytes(length) = state {
            let pages = self.walk(chain, usize::MAX);
            self.put_in_force(UndoState::Gone, chain);
            self.erase_trailer(&mut known, chain, 0..length);
            self.region.give_back(pages);
            known.turn_to(chain.word(), Vec::new());
        }
        self.end_change(&known);
        Ok(())
    }
}

impl UndoLog {
    /// Makes the stores in the journal's pages durable.
    fn flush(&self, known: &mut Known) {
        let mut work = known.work.take().unwrap_or_default();
        work.part(0, || {
            for (from, to) in known.dirty.drain(..) {
                self.region.nvm.flush(from, to - from);
            }
            self.region.nvm.fence();
        });
        self.choice.end(&work);
    }

    fn read_of(&self, chain: UndoChain, bytes: u64, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let mut known = self.known();
        let count = bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        self.read_pages(&mut known, chain, &mut buf[..count], offset)?;
        Ok(count)
    }

    /// Reads bytes at one place of the journal. The journal has the pages with these bytes already.
    fn read_pages(
        &self,
        known: &mut Known,
        chain: UndoChain,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<(), LogError> {
        let (mut rest, mut offset) = (buf, offset);
        while !rest.is_empty() {
            let within = offset % STREAM_BYTES;
            let here = rest.len().min((STREAM_BYTES - within) as usize);
            let (now, later) = rest.split_at_mut(here);
            let page = self.page(known, chain, (offset / STREAM_BYTES) as usize)?;
            self.region.nvm.read(offset_of(page) + HEADER_BYTES + within, now);
            (rest, offset) = (later, offset + here as u64);
        }
        Ok(())
    }

    fn extend(&self, chain: UndoChain, length: u64, bytes: u64) -> Result<(), LogError> {
        if bytes >= JOURNAL_LIMIT {
            return Err(LogError::LimitReached { limit_bytes: JOURNAL_LIMIT });
        }
        let mut known = self.known();
        self.begin_change(&mut known)?;
        self.reach(&mut known, chain, pages_for(bytes) as usize, length)?;
        self.fill(&mut known, chain, length, bytes)?;
        self.flush(&mut known);
        self.put_in_force(UndoState::Bytes(bytes), chain);
        self.end_change(&known);
        Ok(())
    }
}
