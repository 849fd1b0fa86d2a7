//! Opens a log on blocks, and finds the batches that recovery will read.

use std::collections::VecDeque;
use std::sync::Arc;

use duralite_medium::block::{AlignedBuf, Block};

use super::circle::{Circle, Placed};
use super::{DiskLog, Grouping, writing};
use crate::error::Error;
use crate::format::{
    BATCH_HEADER_BYTES, Batch, DISK_DATA_OFFSET, DISK_SLOT_BYTES, DISK_SLOT_OFFSETS, DiskHead, DiskSlot,
    LARGEST_BLOCK, Object,
};
use crate::log::damage::{Beyond, Damage, OnDamage, PIECE};
use crate::log::{BEYOND, Log, Named};
use crate::poison::Poison;

/// When a log is opened, it writes this many of its newest batches again. No log ever has so many writes in progress at
/// once.
const REWRITTEN: usize = 256;

impl DiskLog {
    /// Opens a log. Follows its batches as long as each one is valid and continues the one before it. Makes these
    /// batches durable, and then durably begins a new epoch. If the log is damaged, writes nothing unless `on_damage`
    /// accepts the damage.
    pub(crate) fn open(
        block: Arc<dyn Block>,
        named: Named,
        grouping: Grouping,
        poison: Arc<Poison>,
        on_damage: &mut OnDamage<'_>,
    ) -> Result<Self, Error> {
        let reading = |error| Error::medium("reading the log", error);
        let mut bytes = vec![0; DISK_SLOT_BYTES];
        if block.len() < DISK_DATA_OFFSET {
            return Err(Error::corrupt("the head of the log"));
        }
        block.read(0, &mut bytes).map_err(reading)?;
        let head = DiskHead::decode(&bytes).map_err(|_| Error::corrupt("the head of the log"))?;
        named.check_seed(head.seed)?;
        let mut slots = Vec::new();
        for at in DISK_SLOT_OFFSETS {
            block.read(at, &mut bytes).map_err(reading)?;
            slots.extend(DiskSlot::decode(&bytes, head.seed));
        }
        let newest = slots.into_iter().max_by_key(|slot| slot.number);
        let slot = newest
            .filter(|slot| slot.place.max(slot.head).max(slot.began) < BEYOND)
            .ok_or_else(|| Error::corrupt("both slots of the log"))?;
        named.check_head(slot.head)?;
        let block_bytes = head.block_bytes.max(block.block_bytes());
        let circle = Circle::empty(head, block_bytes, slot.head, slot.place);
        let mut it = Self::over(block, grouping, poison, circle, slot);
        let mut circle = it.follow(slot)?;
        it.check_end(&circle, slot, named, on_damage)?;
        it.make_durable(&circle.batches)?;
        let place = circle.begin;
        it.write_slot(|slot| {
            (slot.place, slot.began) = (place, circle.end);
            slot.epoch = slot.epoch.wrapping_add(1);
        })?;
        if !it.fits_medium() {
            // The log came from a device with smaller blocks. A new batch must not share a block with a durable one.
            circle.end = circle.end.next_multiple_of(LARGEST_BLOCK);
        }
        let slot = *it.slot.lock();
        Ok(Self::over(Arc::clone(&it.block), it.grouping, Arc::clone(&it.poison), circle, slot))
    }

    /// Follows the batches from the place in the slot, as long as each continues the one before it.
    fn follow(&mut self, slot: DiskSlot) -> Result<Circle, Error> {
        let circle_bytes = self.head.circle_bytes;
        let mut circle = Circle::empty(self.head, self.block_bytes, slot.head, slot.place);
        let mut epoch = 0;
        let mut bytes = Vec::new();
        loop {
            let turn = (circle.end / circle_bytes + 1) * circle_bytes;
            let mut found = None;
            for place in [circle.end, circle.end.next_multiple_of(LARGEST_BLOCK), turn] {
                if place - circle.begin >= circle_bytes {
                    continue;
                }
                let batch = self.read_batch(place, &mut bytes)?;
                let is_first = circle.batches.is_empty();
                found = batch.filter(|batch| {
                    let last = batch.first_lsn + u64::from(batch.objects);
                    let continues = batch.first_lsn == circle.next;
                    let has_head = is_first && batch.first_lsn < slot.head && last > slot.head;
                    // Batches that an earlier recovery cut off are still on the disk. A new batch may have overwritten
                    // one of them. The old batch behind it may then seem to continue the new one. Only the epoch shows
                    // that it does not.
                    let is_of_epoch = if place < slot.began {
                        batch.epoch >= epoch && batch.epoch < slot.epoch
                    } else {
                        batch.epoch == slot.epoch
                    };
                    is_of_epoch && batch.objects > 0 && (continues || has_head)
                });
                if found.is_some() {
                    break;
                }
            }
            let Some(batch) = found else {
                circle.sure = circle.next;
                return Ok(circle);
            };
            epoch = batch.epoch;
            let block_bytes = if batch.block_bytes == 0 { self.head.block_bytes } else { batch.block_bytes };
            let len = (BATCH_HEADER_BYTES as u64 + batch.bytes).next_multiple_of(block_bytes.into());
            let placed = Placed { first: batch.first_lsn, place: batch.place, bytes: len, is_durable: true };
            if circle.batches.is_empty() {
                circle.begin = batch.place;
            }
            circle.batches.push_back(placed);
            circle.end = batch.place + len;
            circle.next = batch.first_lsn + u64::from(batch.objects);
        }
    }

    /// Checks whether the log may have ended here because of a crash. If not, calls `on_damage`.
    fn check_end(
        &self,
        circle: &Circle,
        slot: DiskSlot,
        named: Named,
        on_damage: &mut OnDamage<'_>,
    ) -> Result<(), Error> {
        let beyond = self.beyond(circle)?;
        // When the slot's epoch began, everything before the place `slot.began` was durable. So a log that ends before
        // that place is damaged.
        if circle.end >= slot.began && !beyond.proves(circle.next) && !named.proves(circle.next) {
            return Ok(());
        }
        let mut before = 0;
        let mut bytes = Vec::new();
        for placed in &circle.batches {
            if let Some(batch) = self.read_batch(placed.place, &mut bytes)? {
                let mut found = Beyond::default();
                self.add_objects(&batch, &bytes, placed.place, &mut found);
                before += found.commits;
            }
        }
        on_damage(Damage { missing: circle.next, before, beyond, from: self.head.offset(circle.end) })
    }

    fn add_objects(&self, batch: &Batch, bytes: &[u8], place: u64, to: &mut Beyond) {
        let mut rest = bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default();
        for _ in 0..batch.objects {
            let Ok(object) = Object::decode(rest, self.head.seed) else { return };
            to.add(&object.header, self.head.offset(place));
            rest = rest.get(object.header.bytes as usize..).unwrap_or_default();
        }
    }

    /// Counts the complete batches after the end, in the rest of the circular area. Such a batch may have been written
    /// after the log wrapped around again. In that case a newer slot was written before the batch, and that slot is
    /// damaged.
    fn beyond(&self, circle: &Circle) -> Result<Beyond, Error> {
        let circle_bytes = self.head.circle_bytes;
        let block_bytes = self.head.block_bytes as usize;
        let mut beyond = Beyond::default();
        let (mut piece, mut bytes) = (Vec::new(), Vec::new());
        let (mut place, end) = (circle.end, circle.begin + circle_bytes);
        while place < end {
            let left = (end - place).min(circle_bytes - place % circle_bytes).min(PIECE as u64);
            piece.resize(left as usize, 0);
            let reading = |error| Error::medium("reading the log", error);
            self.block.read(self.head.offset(place), &mut piece).map_err(reading)?;
            for (nth, block) in (0..).zip(piece.chunks(block_bytes)) {
                let here = (place + nth * block_bytes as u64) % circle_bytes;
                let Some(batch) = Batch::claimed_anywhere(block) else { continue };
                if batch.place % circle_bytes != here || batch.place >= BEYOND || batch.durable <= circle.next
                {
                    continue;
                }
                if let Some(batch) = self.read_batch(batch.place, &mut bytes)? {
                    beyond.claim(batch.durable);
                    self.add_objects(&batch, &bytes, batch.place, &mut beyond);
                }
            }
            place += left;
        }
        Ok(beyond)
    }

    /// Writes the last batches again. They may be only in the system's cache, because the process that wrote them died
    /// before it flushed them, or because a flush failed.
    fn make_durable(&self, batches: &VecDeque<Placed>) -> Result<(), Error> {
        let mut aligned = AlignedBuf::default();
        // A block of this device may also contain other batches, or part of a batch that an earlier recovery has cut
        // off. Writing the whole block again does not change them.
        let unit = u64::from(self.block_bytes);
        for placed in batches.iter().rev().take(REWRITTEN) {
            let from = placed.place / unit * unit;
            aligned.resize(((placed.place + placed.bytes).next_multiple_of(unit) - from) as usize);
            let at = self.head.offset(from);
            self.block.read(at, aligned.as_mut_slice()).map_err(writing)?;
            self.block.write(at, aligned.as_slice()).map_err(writing)?;
        }
        self.block.flush().map_err(writing)
    }
}
