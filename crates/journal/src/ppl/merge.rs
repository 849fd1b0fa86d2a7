//! Merging: a page's records go into the page on flash, and its log is free (SQLite/PPL, section 3.2, log merger).
//!
//! A page is merged as far as SQLite has checkpointed it and no further, since readers of older snapshots read it through
//! the file. A write of a page may be torn, and records that move bytes mean nothing over a mixture of old and new. So the
//! image first goes into a *slot* of the log, durable, and stands for the page on flash until that is durable too:
//!
//! 1. Locked: the images of a batch go into slots, flushed, one fence; then the chains name them. Readers take them now.
//! 2. Not locked: the images are written to the database file; one sync for all.
//! 3. Locked: chains without newer records are taken out of the page table; of others the newer records move to a new
//!    log sector, or the chain notes what is merged. Then headers of extents are erased, fence; then slots, fence.
//!
//! Whatever dies on the way, the slot holds what the page is to be; whoever merges next writes it again.

use duralite_logfmt::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, MERGED_AT, RECORD_HEADER_BYTES, SLOT_HEADER_BYTES, SlotHeader,
};

use super::area::State;
use super::chain::{NewRecord, RELOCATED, Walk};
use super::pages::Chain;
use super::store::{AsOf, Scratch, Store};
use super::words::{DUE, EPOCH, LOST, MERGED, SEALED, Turn};
use crate::JournalError;
use crate::home::{self, DatabaseFile};
use crate::log_memory::flush_all;

/// Why pages are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Their logs are full.
    Full,
    /// There is little room for others.
    Room,
    /// The log is being drained.
    Closing,
}

impl Cause {
    pub(super) fn counter(self) -> u64 {
        MERGED + 8 * self as u64
    }
}

/// What has been merged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) pages: usize,
    /// Others could not be, because somebody else is merging just now.
    pub(super) is_other_merging: bool,
}

/// A batch whose images are in slots.
struct Published {
    batch: Vec<Merging>,
    /// How many pages that were, with those of which there is nothing to merge.
    taken: usize,
    is_other_merging: bool,
}

/// What is to be merged of a page.
struct Merging {
    page_number: u32,
    first: Extent,
    slot: u32,
    /// The transaction after which the image in the slot is.
    upto: u64,
}

impl Store {
    /// Merges pages, in batches of as many as there are slots; durable on return. Returns how many have been.
    pub(super) fn merge(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        cause: Cause,
    ) -> Result<Merged, JournalError> {
        // First those whose merge has begun: the others may wait for their slots.
        let mut pages = pages.to_vec();
        let has_slot = |page: &u32| {
            let first = self.area.find_chain(*page).ok().flatten();
            first.is_some_and(|first| self.area.state(first, State::Slot) != 0)
        };
        pages.sort_by_cached_key(|page| !has_slot(page));
        let mut left = pages.as_slice();
        let mut merged = Merged::default();
        while !left.is_empty() {
            let Published { batch, taken, is_other_merging } = self.publish(file, left, cause)?;
            merged.is_other_merging |= is_other_merging;
            if taken == 0 {
                break;
            }
            left = &left[taken..];
            let written = self.write_batch(file, &batch, cause);
            self.retire_batch(&batch, written.is_ok(), cause)?;
            written?;
            merged.pages += batch.len();
        }
        Ok(merged)
    }

    /// Whether there is little room for further records.
    fn is_short(&self) -> bool {
        let (used, limit) = self.area.fill(&self.words);
        used / 3 >= limit / 4
    }

    /// Merges the pages whose logs are full, and when there is little room those that were logged least recently.
    pub(super) fn tidy(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        if self.words.take(DUE) != 0 {
            let mut full = self.area.all_chains()?;
            full.retain(|(_, first)| self.is_full(*first));
            let pages: Vec<u32> = full.into_iter().map(|(page_number, _)| page_number).collect();
            let merged = self.merge(file, &pages, Cause::Full);
            if merged.as_ref().map_or(true, |merged| merged.pages < pages.len()) {
                self.words.store(DUE, 1);
            }
            merged?;
        }
        if self.is_short() {
            self.relieve(file, Cause::Room)?;
        }
        Ok(())
    }

    fn is_full(&self, first: Extent) -> bool {
        let slot = self.area.state(first, State::Slot);
        self.area.state(first, State::Bytes) >= self.full_bytes || slot != 0
    }

    /// Merges pages that were logged least recently until half of the room is free, as far as they are home; returns how
    /// many have been merged.
    pub(super) fn relieve(&self, file: &dyn DatabaseFile, cause: Cause) -> Result<Merged, JournalError> {
        let mut pages = Vec::new();
        for (page_number, first) in self.area.all_chains()? {
            // Those of which nothing would stay come first.
            pages.push((self.is_ahead(first), self.area.state(first, State::Last), page_number));
        }
        pages.sort_unstable();
        let mut merged = Merged::default();
        let slots = self.area.geometry.slots as usize;
        for batch in pages.chunks(slots.min(64)) {
            let (used, limit) = self.area.fill(&self.words);
            if used <= limit / 2 && merged.pages > 0 {
                break;
            }
            let batch: Vec<u32> = batch.iter().map(|(_, _, page_number)| *page_number).collect();
            let found = self.merge(file, &batch, cause)?;
            merged.pages += found.pages;
            merged.is_other_merging |= found.is_other_merging;
        }
        Ok(merged)
    }

    /// Step 1, for as many of these pages as there are slots for.
    fn publish(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        cause: Cause,
    ) -> Result<Published, JournalError> {
        let turn = self.lock()?;
        let mut stored = Vec::new();
        let published = self.store_images(file, pages, cause, &mut stored).and_then(|published| {
            let upto = published.batch.iter().map(|merging| merging.upto).max().unwrap_or(0);
            let is_kept = cause != Cause::Closing && self.loses_a_follower(upto)?;
            Ok(if is_kept { Published { batch: Vec::new(), ..published } } else { published })
        });
        if published.as_ref().map_or(true, |published| published.batch.is_empty()) {
            // A slot that nobody knows would pass for its page's after a crash.
            self.erase_slots(stored.into_iter());
            return published;
        }
        let published = published?;
        self.area.nvm.fence();
        for merging in &published.batch {
            self.words.own_slot(merging.slot, true);
            self.area.set_state(merging.first, State::Slot, u64::from(merging.slot) + 1);
        }
        self.words.add(EPOCH, 1);
        drop(turn);
        Ok(published)
    }

    /// Stores images in slots, whose numbers go into `stored`. What is stored is flushed, and not fenced.
    fn store_images(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        cause: Cause,
        stored: &mut Vec<u32>,
    ) -> Result<Published, JournalError> {
        let mut free = self.free_slots();
        let (mut batch, mut taken, mut is_other_merging) = (Vec::new(), 0, false);
        let mut chain = Chain::default();
        let mut scratch = Scratch::default();
        let mut image = vec![0; self.page_bytes as usize];
        // Nobody is left for whom it would be kept.
        let limit = if cause == Cause::Closing { u64::MAX } else { self.merge_limit()? };
        for &page_number in pages {
            if self.area.load_chain(page_number, &mut chain)?
                && let Some(first) = chain.extents.first().copied()
            {
                let upto = self.home_position(chain.home).min(limit);
                match chain.slot {
                    Some(slot) if self.is_merged_by_another(slot)? => is_other_merging = true,
                    Some(slot) => {
                        let upto = self.slot_header(slot)?.transaction;
                        batch.push(Merging { page_number, first, slot, upto });
                    }
                    None if upto <= chain.merged || upto < self.first_transaction(&chain)? => {}
                    None => {
                        let Some(slot) = free.pop() else {
                            is_other_merging |= batch.is_empty();
                            break;
                        };
                        self.read(file, page_number, AsOf::Transaction(upto), &mut image, &mut scratch)?;
                        stored.push(slot);
                        self.store_image(slot, SlotHeader { page_number, transaction: upto }, &image);
                        batch.push(Merging { page_number, first, slot, upto });
                    }
                }
            }
            taken += 1;
        }
        Ok(Published { batch, taken, is_other_merging })
    }

    fn is_merged_by_another(&self, slot: u32) -> Result<bool, JournalError> {
        self.words.is_merged_by_another(slot).map_err(|source| self.area.medium(source))
    }

    /// Whether a page has records, or an image in a slot, that have to go into it.
    pub(super) fn has_to_merge(&self, page_number: u32) -> Result<bool, JournalError> {
        let mut chain = Chain::default();
        if !self.area.load_chain(page_number, &mut chain)? {
            return Ok(false);
        }
        let upto = self.home_position(chain.home);
        Ok(chain.slot.is_some() || upto > chain.merged && upto >= self.first_transaction(&chain)?)
    }

    /// The transaction of the first record of a chain.
    fn first_transaction(&self, chain: &Chain) -> Result<u64, JournalError> {
        let first = Walk::new(&self.area, &chain.extents, self.page_bytes).next()?;
        Ok(first.map_or(u64::MAX, |record| record.transaction))
    }

    pub(super) fn free_slots(&self) -> Vec<u32> {
        let is_free = |slot: &u32| self.area.nvm.load_u64(self.area.geometry.slot_offset(*slot)) == 0;
        (0..self.area.geometry.slots).rev().filter(is_free).collect()
    }

    /// Frees slots; durable on return. Nothing is left of the logs that they stand for.
    pub(super) fn erase_slots(&self, slots: impl Iterator<Item = u32>) {
        for slot in slots {
            let at = self.area.geometry.slot_offset(slot);
            self.area.nvm.store_u64(at, 0);
            self.area.nvm.flush(at, 8);
        }
        self.area.nvm.fence();
    }

    fn store_image(&self, slot: u32, header: SlotHeader, image: &[u8]) {
        let at = self.area.geometry.slot_offset(slot);
        let head = header.encode(self.area.id, image);
        self.area.nvm.store(at + SLOT_HEADER_BYTES, image);
        self.area.nvm.store(at + 8, &head[8..]);
        self.area.nvm.store(at, &head[..8]);
        self.area.nvm.flush(at, SLOT_HEADER_BYTES + image.len() as u64);
    }

    /// Announces that transactions up to one cannot be read one by one any more, and looks whether somebody has pinned one
    /// of them meanwhile: whoever pins stores the pin first, and then looks what is announced.
    fn loses_a_follower(&self, upto: u64) -> Result<bool, JournalError> {
        if upto > self.words.load(LOST) {
            self.words.store(LOST, upto);
        }
        Ok(upto > self.merge_limit()?)
    }

    /// The transaction that nothing may be merged beyond: what a follower has pinned is kept for it, unless the log is
    /// nearly full.
    fn merge_limit(&self) -> Result<u64, JournalError> {
        let Some(pins) = &self.pins else { return Ok(u64::MAX) };
        let Some(pinned) = pins.oldest().map_err(|source| self.area.medium(source))? else {
            return Ok(u64::MAX);
        };
        if !self.is_short() {
            return Ok(pinned);
        }
        self.words.store(LOST, self.words.load(SEALED));
        Ok(u64::MAX)
    }

    /// Step 2.
    fn write_batch(
        &self,
        file: &dyn DatabaseFile,
        batch: &[Merging],
        cause: Cause,
    ) -> Result<(), JournalError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut image = vec![0; self.page_bytes as usize];
        let pages = self.home_pages(file)?;
        for merging in batch {
            // Beyond the end of the database too: it may grow again by pages that nobody writes, and what is recorded of those
            // later are changes of what is here. Not when all goes, and the file is cut.
            if cause == Cause::Closing && u64::from(merging.page_number) > pages {
                continue;
            }
            self.read_slot(merging.slot, &mut image)?;
            if merging.page_number == 1 {
                home::write_past_guard(file, &image, 0)?;
            } else {
                file.write(&image, self.page_offset(merging.page_number))?;
            }
        }
        file.sync()
    }

    /// Step 3; of a batch that could not be written, only that nobody merges it any more.
    fn retire_batch(&self, batch: &[Merging], written: bool, cause: Cause) -> Result<(), JournalError> {
        let retired = if written { self.detach_batch(batch, cause) } else { Ok(false) };
        // Whatever has become of it, it is nobody's.
        batch.iter().for_each(|merging| self.words.own_slot(merging.slot, false));
        if !matches!(retired, Ok(true)) {
            self.words.store(DUE, 1);
        }
        retired.map(|_| ())
    }

    fn detach_batch(&self, batch: &[Merging], cause: Cause) -> Result<bool, JournalError> {
        let turn = self.lock()?;
        let mut done = Vec::new();
        for merging in batch {
            match self.detach(&turn, merging) {
                Ok(change) => done.push(change),
                Err(error) => {
                    self.undo_relocations(&turn, &done);
                    return Err(error);
                }
            }
        }
        self.area.nvm.fence();
        let mut gone = Vec::new();
        for (merging, change) in batch.iter().zip(&done) {
            self.area.replace(merging, change)?;
            if let Detached::Replaced { old, .. } = change {
                gone.extend_from_slice(old);
            }
        }
        self.words.add(EPOCH, 1);
        gone.iter().for_each(|extent| self.area.erase_header(*extent));
        self.area.nvm.fence();
        self.erase_slots(batch.iter().map(|merging| merging.slot));
        gone.into_iter().for_each(|extent| self.area.give_back(&self.words, &turn, extent));
        self.words.add(cause.counter(), batch.len() as u64);
        Ok(true)
    }

    /// Takes back new log sectors that are in no chain: to recovery they would be their pages' newest.
    fn undo_relocations(&self, turn: &Turn<'_>, done: &[Detached]) {
        let new = done.iter().filter_map(|change| match change {
            Detached::Replaced { new, .. } => *new,
            Detached::Noted => None,
        });
        let new: Vec<Extent> = new.collect();
        new.iter().for_each(|extent| self.area.erase_header(*extent));
        self.area.nvm.fence();
        new.into_iter().for_each(|extent| self.area.give_back(&self.words, turn, extent));
    }

    /// Frees the extents of a chain that is in no table any more. It is cut before it goes, and goes from its end, so that a crash
    /// on the way leaves a whole one.
    pub(super) fn drop_extents(&self, turn: &Turn<'_>, extents: &[Extent]) {
        if let Some(first) = extents.first() {
            self.area.cut(*first, EXTENT_HEADER_BYTES);
            self.area.nvm.fence();
        }
        for extent in extents.iter().rev() {
            self.area.erase_header(*extent);
            self.area.nvm.fence();
            self.area.give_back(&self.words, turn, *extent);
        }
    }

    /// Prepares a chain for the end of its merge. What is stored is flushed, and not fenced.
    fn detach(&self, turn: &Turn<'_>, merging: &Merging) -> Result<Detached, JournalError> {
        let mut chain = Chain::default();
        let found = self.area.load_chain(merging.page_number, &mut chain)?;
        if !found || chain.extents.first() != Some(&merging.first) {
            return Err(JournalError::Unexpected("a merge of a page whose log has changed"));
        }
        if chain.last <= merging.upto {
            return Ok(Detached::Replaced { old: chain.extents, new: None });
        }
        if let Some(new) = self.relocate(turn, merging, &chain)? {
            return Ok(Detached::Replaced { old: chain.extents, new: Some(new) });
        }
        let at = self.area.at(merging.first, MERGED_AT as u32);
        self.area.nvm.store_u64(at, merging.upto);
        self.area.nvm.flush(at, 8);
        Ok(Detached::Noted)
    }

    /// Copies the records that are newer than a merge into a new log sector; `None` where they do not fit into one, or
    /// there is none.
    fn relocate(
        &self,
        turn: &Turn<'_>,
        merging: &Merging,
        chain: &Chain,
    ) -> Result<Option<Extent>, JournalError> {
        let mut walk = Walk::new(&self.area, &chain.extents, self.page_bytes);
        let (mut kept, mut bytes) = (Vec::new(), 0);
        while let Some(record) = walk.next()? {
            if record.transaction > merging.upto {
                bytes += RECORD_HEADER_BYTES + record.payload_bytes.next_multiple_of(8);
                kept.push(record);
            }
        }
        let (sectors, _) = self.area.free_counts(&self.words);
        if sectors == 0 || bytes > self.area.geometry.sector_bytes - EXTENT_HEADER_BYTES {
            return Ok(None);
        }
        // Where there is no room for a longer file, what is newer stays where it is.
        let Ok(Some(new)) = self.area.take_of(&self.words, turn, false) else { return Ok(None) };
        self.begin_chain(new);
        let mut dirty = Vec::new();
        let mut payload = Vec::new();
        for record in &kept {
            walk.payload(record, merging.page_number, &mut payload)?;
            let (page_number, transaction) = (merging.page_number, record.transaction);
            let record = NewRecord { page_number, transaction, payload: &payload };
            self.area.append(&self.words, turn, new, &record, &mut dirty)?;
        }
        flush_all(self.area.nvm.as_ref(), &dirty);
        self.area.nvm.fence();
        self.area.set_state(new, State::Last, chain.last);
        self.area.set_state(new, State::Home, chain.home);
        // Only now is it the page's log: recovery takes the newest one that it finds.
        let header =
            ExtentHeader { page_number: merging.page_number, order: RELOCATED, taken_by: chain.last };
        self.area.store_header(new, &header, merging.upto);
        self.area.nvm.flush(self.area.at(new, 0), u64::from(EXTENT_HEADER_BYTES));
        Ok(Some(new))
    }

    /// Makes an extent the first one of a chain without records.
    pub(super) fn begin_chain(&self, first: Extent) {
        self.area.set_state(first, State::TailExtent, first.to_link());
        self.area.set_state(first, State::TailOffset, u64::from(EXTENT_HEADER_BYTES));
    }
}

/// What becomes of a chain once its page is merged.
enum Detached {
    /// It goes; what is newer is in another one.
    Replaced { old: Vec<Extent>, new: Option<Extent> },
    /// It stays, and says what is merged.
    Noted,
}

impl super::area::Area {
    fn replace(&self, merging: &Merging, change: &Detached) -> Result<(), JournalError> {
        match change {
            Detached::Replaced { new, .. } => self.replace_chain(merging.page_number, merging.first, *new),
            Detached::Noted => {
                self.set_state(merging.first, State::Slot, 0);
                Ok(())
            }
        }
    }
}
