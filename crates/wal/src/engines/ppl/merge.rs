//! Merging: the engine applies a page's records to the page on flash, and then frees the page's log (SQLite/PPL, section 3.2,
//! log merger).
//!
//! A merge brings a page up to the transaction to which SQLite has checkpointed it, and no further (invariant 17),
//! because readers of older snapshots read the page through the file. A power loss may tear the write of a page, and
//! records that move bytes are meaningless over a mixture of old and new bytes. So the engine first makes the new image
//! durable in a *slot* of the log. Until the page itself is durable, readers and recovery use the image in the slot
//! instead of the page on flash. A merge has three steps:
//!
//! 1. With the lock: store the images of a batch in slots, flush them, and fence once. Then the chains name the slots, and
//!    readers read the images there.
//! 2. Without the lock: write the images to the database file, and sync the file once for the batch.
//! 3. With the lock: if a chain has no records newer than the image, remove it from the page table. Otherwise move the
//!    newer records to a new log sector, or note in the chain up to which transaction it is merged. Then erase the
//!    headers of extents, fence, erase the slots, and fence.
//!
//! If a process dies between two steps, the slot still holds the image of the page, and the next merge writes that
//! image again.
//!
//! From step 1 to step 3 the process owns the slots of its batch, so no other process continues these merges. The
//! process holds the lock while it gives up the ownership and then erases the slots. Otherwise another process could
//! take an erased slot, and the first process would then clear the new owner's word. As a second safeguard, each step
//! first checks that the slot still has the image that step 1 has found or stored there.

use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, MERGED_AT, RECORD_HEADER_BYTES, SLOT_HEADER_BYTES, SlotHeader,
};

use rustc_hash::FxHashSet;

use super::area::State;
use super::chain::{Chain, NewRecord, RELOCATED, Walk};
use super::store::{AsOf, Scratch, Store};
use super::words::{DUE, EPOCH, LOST, MERGED, SEALED, Turn};
use crate::LogError;
use crate::engine::home::{self, DatabaseFile};
use crate::shared::log_memory::flush_all;

/// The reason why the engine merges pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The logs of the pages are full.
    Full,
    /// The log as a whole has little space left for other records.
    Room,
    /// The log is being drained before the last close.
    Closing,
}

impl Cause {
    pub(super) fn counter(self) -> u64 {
        MERGED + 8 * self as u64
    }
}

/// The result of a merge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) pages: usize,
    /// Whether another process is merging at the moment, so that some pages could not be merged.
    pub(super) is_other_merging: bool,
}

/// A batch of pages whose images have been stored in slots.
pub(super) struct Published {
    batch: Vec<Merging>,
    /// How many pages this batch covers, counted from the beginning of the caller's list. Pages that have nothing to
    /// merge are included.
    taken: usize,
    is_other_merging: bool,
}

/// The error of a process whose merge another process has continued.
const TAKEN: LogError = LogError::Unexpected("a slot that another process has taken");

/// The merge of one page.
struct Merging {
    page_number: u32,
    first: Extent,
    slot: u32,
    /// The newest transaction whose changes the slot's image contains.
    upto: u64,
}

impl Store {
    /// Merges pages, in batches of at most as many pages as there are slots. The merges are durable on return. Returns how
    /// many pages were merged.
    pub(super) fn merge(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        cause: Cause,
    ) -> Result<Merged, LogError> {
        // No page may be in a batch twice, because it would get two slots and two new logs.
        let mut seen = FxHashSet::default();
        let mut pages: Vec<u32> = pages.iter().copied().filter(|page| seen.insert(*page)).collect();
        // Pages whose merge has begun come first, because other pages may need the slots that they occupy.
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

    /// Returns whether three quarters of the log's usual space are in use.
    fn is_short(&self) -> bool {
        let (used, limit) = self.area.fill(&self.words);
        used / 3 >= limit / 4
    }

    /// Merges the pages whose logs are full. If the log has little space left, also merges the pages that were logged least
    /// recently.
    pub(super) fn tidy(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        if self.words.take(DUE) != 0 {
            let mut full = self.steadily(|| self.area.all_chains())?;
            full.retain(|(_, first)| self.is_full(*first));
            let pages: Vec<u32> = full.into_iter().map(|(page_number, _)| page_number).collect();
            let merged = self.merge(file, &pages, Cause::Full);
            if merged.as_ref().map_or(true, |merged| merged.pages < pages.len()) {
                self.words.store(DUE, 1);
            }
            merged?;
        }
        if self.is_short() || self.area.has_outgrown()? {
            self.relieve(file, Cause::Room)?;
        }
        self.shrink()
    }

    /// Gives back the chunks beyond the usual size, if the log has outgrown that size. Keeps every chunk up to the last one
    /// with an extent in use.
    pub(super) fn shrink(&self) -> Result<(), LogError> {
        let area = &self.area;
        let (used, usual) = area.fill(&self.words);
        if !area.has_outgrown()? || used > usual {
            return Ok(());
        }
        let turn = self.lock()?;
        let mut used = FxHashSet::default();
        used.extend(area.frame_pieces(&self.words)?);
        let mut chain = Vec::new();
        for (_, first) in area.all_chains()? {
            area.extents_from(first, &mut chain)?;
            used.extend(chain.iter().copied());
        }
        let (kept, grown) = (area.chunks_for(used.iter()), area.grown()?);
        self.list_free(&turn, kept.min(grown), &used);
        if kept < grown { area.shrink(&turn, kept) } else { Ok(()) }
    }

    fn is_full(&self, first: Extent) -> bool {
        let slot = self.area.state(first, State::Slot);
        self.area.state(first, State::Bytes) >= self.full_bytes || slot != 0
    }

    /// Merges pages up to their home positions, the least recently logged pages first, until half of the usual space is
    /// free. If the log has outgrown its usual size, merges every page, because the log of any page may keep the file
    /// from shrinking. Returns how many pages were merged.
    pub(super) fn relieve(&self, file: &dyn DatabaseFile, cause: Cause) -> Result<Merged, LogError> {
        let mut pages = Vec::new();
        for (page_number, first) in self.steadily(|| self.area.all_chains())? {
            // Put the chains that a merge can remove completely at the front of the list.
            pages.push((self.is_ahead(first), self.area.state(first, State::Last), page_number));
        }
        pages.sort_unstable();
        let mut merged = Merged::default();
        let slots = self.area.geometry.slots as usize;
        let merges_all = self.area.has_outgrown()?;
        for batch in pages.chunks(if merges_all { slots } else { slots.min(64) }) {
            let (used, limit) = self.area.fill(&self.words);
            if used <= limit / 2 && merged.pages > 0 && !merges_all {
                break;
            }
            let batch: Vec<u32> = batch.iter().map(|(_, _, page_number)| *page_number).collect();
            let found = self.merge(file, &batch, cause)?;
            merged.pages += found.pages;
            merged.is_other_merging |= found.is_other_merging;
        }
        Ok(merged)
    }

    /// Does step 1, for as many of these pages as there are free slots.
    pub(super) fn publish(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        cause: Cause,
    ) -> Result<Published, LogError> {
        let turn = self.lock()?;
        let mut stored = Vec::new();
        let published = self.store_images(file, pages, cause, &mut stored).and_then(|published| {
            let upto = published.batch.iter().map(|merging| merging.upto).max().unwrap_or(0);
            let is_kept = cause != Cause::Closing && self.loses_a_follower(upto)?;
            Ok(if is_kept { Published { batch: Vec::new(), ..published } } else { published })
        });
        if published.as_ref().map_or(true, |published| published.batch.is_empty()) {
            // Erase the slots. No chain names them, but recovery would take each of them for the valid image of its
            // page.
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

    /// Stores images in slots, and adds the slots' numbers to `stored`. Flushes what it stores, but does not fence.
    fn store_images(
        &self,
        file: &dyn DatabaseFile,
        pages: &[u32],
        cause: Cause,
        stored: &mut Vec<u32>,
    ) -> Result<Published, LogError> {
        let mut free = self.free_slots();
        let (mut batch, mut taken, mut is_other_merging) = (Vec::new(), 0, false);
        let mut chain = Chain::default();
        let mut scratch = Scratch::default();
        let mut image = vec![0; self.page_bytes as usize];
        // While the log is being drained, no follower is left that needs older versions.
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

    fn is_merged_by_another(&self, slot: u32) -> Result<bool, LogError> {
        self.words.is_merged_by_another(slot).map_err(|source| self.area.medium(source))
    }

    /// Returns whether a merge still has to write a page's records, or its image in a slot, to the database file.
    pub(super) fn has_to_merge(&self, page_number: u32) -> Result<bool, LogError> {
        let mut chain = Chain::default();
        if !self.area.load_chain(page_number, &mut chain)? {
            return Ok(false);
        }
        let upto = self.home_position(chain.home);
        Ok(chain.slot.is_some() || upto > chain.merged && upto >= self.first_transaction(&chain)?)
    }

    /// Returns the transaction of the first record of a chain.
    fn first_transaction(&self, chain: &Chain) -> Result<u64, LogError> {
        let first = Walk::new(&self.area, &chain.extents, self.page_bytes).next()?;
        Ok(first.map_or(u64::MAX, |record| record.transaction))
    }

    pub(super) fn free_slots(&self) -> Vec<u32> {
        let is_free = |slot: &u32| self.area.nvm.load_u64(self.area.geometry.slot_offset(*slot)) == 0;
        (0..self.area.geometry.slots).rev().filter(is_free).collect()
    }

    /// Frees slots. They are durably free on return. The caller makes sure that no chain names the slots, or has erased
    /// the records that the images in the slots replace.
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

    /// Announces that followers cannot read the transactions up to `upto` any more. Returns whether a follower has
    /// pinned one of these transactions. A follower stores its pin first and then checks the announcement, so this call
    /// misses no pin.
    fn loses_a_follower(&self, upto: u64) -> Result<bool, LogError> {
        if upto > self.words.load(LOST) {
            self.words.store(LOST, upto);
        }
        Ok(upto > self.merge_limit()?)
    }

    /// Returns the newest transaction up to which pages may be merged. Followers have pinned the transactions after it.
    /// If there are no pins, or if the log is nearly full, there is no limit.
    fn merge_limit(&self) -> Result<u64, LogError> {
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

    /// Does step 2: writes the images to the database file.
    fn write_batch(&self, file: &dyn DatabaseFile, batch: &[Merging], cause: Cause) -> Result<(), LogError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut image = vec![0; self.page_bytes as usize];
        let pages = self.home_pages(file)?;
        for merging in batch {
            // Write pages beyond the end of the database too. If the database grows again, such a page may become a
            // part of it although SQLite does not write the page. The page's next record is then a difference from the
            // page in the file. A drain skips these pages, because it truncates the file afterwards.
            if cause == Cause::Closing && u64::from(merging.page_number) > pages {
                continue;
            }
            self.read_slot(merging.slot, &mut image)?;
            // Check the slot's header only after the copy. If another process has taken the slot, the copy may contain
            // parts of the image of another page.
            self.words.fence();
            if !self.holds(merging) {
                return Err(TAKEN);
            }
            if merging.page_number == 1 {
                home::write_past_guard(file, &image, 0)?;
            } else {
                file.write(&image, self.page_offset(merging.page_number))?;
            }
        }
        file.sync()
    }

    /// Does step 3: ends the merge of a batch. After a failure, only gives up the ownership of those slots that still
    /// have the batch's images. (This process still owns these slots, so no other process has taken them.)
    fn retire_batch(&self, batch: &[Merging], written: bool, cause: Cause) -> Result<(), LogError> {
        let retired = if written { self.detach_batch(batch, cause) } else { Ok(()) };
        if !written || retired.is_err() {
            self.disown(batch.iter().filter(|merging| self.holds(merging)));
            self.words.store(DUE, 1);
        }
        retired
    }

    /// Returns whether the slot of a merge still has the image of the merge.
    fn holds(&self, merging: &Merging) -> bool {
        let Merging { page_number, slot, upto, .. } = *merging;
        self.slot_header(slot).is_ok_and(|found| found == SlotHeader { page_number, transaction: upto })
    }

    /// Gives up the ownership of slots. Afterwards any process may continue the merges that use these slots, or take
    /// the slots once they are erased.
    fn disown<'a>(&self, merges: impl Iterator<Item = &'a Merging>) {
        merges.for_each(|merging| self.words.own_slot(merging.slot, false));
    }

    /// Ends the merges of a batch in the log, or at least as many of them as it can.
    fn detach_batch(&self, batch: &[Merging], cause: Cause) -> Result<(), LogError> {
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
        // From here on, if the merge of one page fails, continue with the other pages. Otherwise the new sectors of
        // these pages would stay. Recovery would prefer them to the old logs, but the page table would still lead the
        // next commits to the old logs.
        let (mut ended, mut gone, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut result = Ok(());
        for (merging, change) in batch.iter().zip(done) {
            match self.area.replace(merging, &change) {
                Ok(()) => {
                    ended.push(merging);
                    if let Detached::Replaced { old, .. } = change {
                        gone.extend(old);
                    }
                }
                Err(error) => {
                    left.push(change);
                    result = Err(error);
                }
            }
        }
        if !left.is_empty() {
            self.undo_relocations(&turn, &left);
        }
        self.words.add(EPOCH, 1);
        gone.iter().for_each(|extent| self.area.erase_header(*extent));
        self.area.nvm.fence();
        // Give up the ownership before erasing the slots, and with the lock, because another process may take an erased
        // slot.
        self.disown(ended.iter().copied());
        self.erase_slots(ended.iter().map(|merging| merging.slot));
        gone.into_iter().for_each(|extent| self.area.give_back(&self.words, &turn, extent));
        self.words.add(cause.counter(), ended.len() as u64);
        result
    }

    /// Frees new log sectors that are not in a chain yet. Otherwise recovery would take them for the newest logs of their
    /// pages.
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

    /// Frees the extents of a chain that is no longer in the page table. First marks all records of the chain as merged and
    /// cuts the chain. Then frees the extents from the last to the first. So a crash in between leaves a chain without gaps,
    /// and recovery does not take records after the cut for a sign of damage.
    pub(super) fn drop_extents(&self, turn: &Turn<'_>, extents: &[Extent]) {
        if let Some(first) = extents.first() {
            self.set_merged(*first, self.words.load(SEALED));
            self.area.nvm.fence();
            self.area.cut(*first, EXTENT_HEADER_BYTES);
            self.area.nvm.fence();
        }
        for extent in extents.iter().rev() {
            self.area.erase_header(*extent);
            self.area.nvm.fence();
            self.area.give_back(&self.words, turn, *extent);
        }
    }

    /// Prepares a chain for the end of its merge. Flushes what it stores, but does not fence.
    fn detach(&self, turn: &Turn<'_>, merging: &Merging) -> Result<Detached, LogError> {
        let mut chain = Chain::default();
        let found = self.area.load_chain(merging.page_number, &mut chain)?;
        if !found || chain.extents.first() != Some(&merging.first) {
            return Err(LogError::Unexpected("a merge of a page whose log has changed"));
        }
        if chain.slot != Some(merging.slot) || !self.holds(merging) {
            return Err(TAKEN);
        }
        if chain.last <= merging.upto {
            return Ok(Detached::Replaced { old: chain.extents, new: None });
        }
        if let Some(new) = self.relocate(turn, merging, &chain)? {
            return Ok(Detached::Replaced { old: chain.extents, new: Some(new) });
        }
        self.set_merged(merging.first, merging.upto);
        Ok(Detached::Noted)
    }

    /// Stores in a chain's header the transaction up to which the chain is merged. Flushes what it stores, but does not
    /// fence.
    fn set_merged(&self, first: Extent, upto: u64) {
        let at = self.area.at(first, MERGED_AT as u32);
        self.area.nvm.store_u64(at, upto);
        self.area.nvm.flush(at, 8);
    }

    /// Copies the records that are newer than the merge into a new log sector. Returns `None` if they do not fit into one
    /// sector, or if no sector is free.
    fn relocate(
        &self,
        turn: &Turn<'_>,
        merging: &Merging,
        chain: &Chain,
    ) -> Result<Option<Extent>, LogError> {
        let mut walk = Walk::new(&self.area, &chain.extents, self.page_bytes);
        let (mut kept, mut bytes) = (Vec::new(), 0);
        while let Some(record) = walk.next()? {
            if record.transaction > merging.upto {
                bytes += RECORD_HEADER_BYTES + record.payload_bytes.next_multiple_of(8);
                kept.push(record);
            }
        }
        let (sectors, _) = self.area.free_counts(&self.words)?;
        if sectors == 0 || bytes > self.area.geometry.sector_bytes - EXTENT_HEADER_BYTES {
            return Ok(None);
        }
        // If the file cannot grow, leave the newer records where they are.
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
        // Store the header last. With the header the sector becomes the page's log, because recovery takes the newest
        // log of a page that it finds.
        let header =
            ExtentHeader { page_number: merging.page_number, order: RELOCATED, taken_by: chain.last };
        self.area.store_header(new, &header, merging.upto);
        self.area.nvm.flush(self.area.at(new, 0), u64::from(EXTENT_HEADER_BYTES));
        Ok(Some(new))
    }

    /// Makes an extent the first of a chain that has no records yet.
    pub(super) fn begin_chain(&self, first: Extent) {
        self.area.set_state(first, State::TailExtent, first.to_link());
        self.area.set_state(first, State::TailOffset, u64::from(EXTENT_HEADER_BYTES));
    }
}

/// What happens to a page's chain once the page has been merged.
enum Detached {
    /// The chain gives up its old extents. If there are newer records, `new` holds them.
    Replaced { old: Vec<Extent>, new: Option<Extent> },
    /// The chain stays. Its header says up to which transaction it is merged.
    Noted,
}

impl super::area::Area {
    fn replace(&self, merging: &Merging, change: &Detached) -> Result<(), LogError> {
        match change {
            Detached::Replaced { new, .. } => self.replace_chain(merging.page_number, merging.first, *new),
            Detached::Noted => {
                self.set_state(merging.first, State::Slot, 0);
                Ok(())
            }
        }
    }
}
