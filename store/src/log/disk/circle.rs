//! The batches in the file's circular area: where they are, which are still needed, and which are being written.

use std::collections::VecDeque;

use crate::format::{BATCH_HEADER_BYTES, DiskHead, Lsn};

/// A batch in the circular area, written or being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) first: Lsn,
    pub(super) place: u64,
    /// The size in bytes, including the header, rounded up to whole blocks.
    pub(super) bytes: u64,
    pub(super) is_durable: bool,
}

/// The part of the circular area that is in use.
#[derive(Debug)]
pub(super) struct Circle {
    pub(super) head: DiskHead,
    /// The alignment of new batches in bytes.
    pub(super) block_bytes: u32,
    /// The oldest object that is still needed.
    pub(super) oldest: Lsn,
    /// The place of the oldest batch that is still needed.
    pub(super) begin: u64,
    /// The place after the newest batch.
    pub(super) end: u64,
    /// The number of the next batch's first object.
    pub(super) next: Lsn,
    /// All objects with numbers below this one are durable. Later objects may have become durable since this was
    /// computed.
    pub(super) sure: Lsn,
    pub(super) batches: VecDeque<Placed>,
}

impl Circle {
    /// Makes a circular area without batches. The next object gets the number `oldest`, and its batch goes to `place`.
    pub(super) fn empty(head: DiskHead, block_bytes: u32, oldest: Lsn, place: u64) -> Self {
        Self {
            head,
            block_bytes,
            oldest,
            begin: place,
            end: place,
            next: oldest,
            sure: oldest,
            batches: VecDeque::new(),
        }
    }

    /// Returns how many bytes a batch takes if its objects have `objects` bytes.
    pub(super) fn bytes_of(&self, objects: u64) -> u64 {
        (BATCH_HEADER_BYTES as u64 + objects).next_multiple_of(self.block_bytes.into())
    }

    /// Returns the place for a batch of this many bytes. A batch that does not fit before the end of the circular area
    /// goes to the beginning.
    fn place_for(&self, bytes: u64) -> u64 {
        let left = self.head.circle_bytes - self.end % self.head.circle_bytes;
        if bytes <= left { self.end } else { self.end + left }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        // `end` may be beyond the last free byte, because it is rounded up when a log moves to a device with larger
        // blocks.
        self.head.circle_bytes.saturating_sub(self.end - self.begin)
    }

    /// Places a batch with the objects `self.next..next`, which have `objects` bytes. Returns `None` if the circular
    /// area is full.
    pub(super) fn place(&mut self, next: Lsn, objects: u64) -> Option<Placed> {
        let bytes = self.bytes_of(objects);
        let place = self.place_for(bytes);
        if place + bytes - self.begin > self.head.circle_bytes {
            return None;
        }
        let placed = Placed { first: self.next, place, bytes, is_durable: false };
        self.end = place + bytes;
        self.next = next;
        self.batches.push_back(placed);
        Some(placed)
    }

    /// Marks a batch as durable. Returns the number below which all objects are durable.
    pub(super) fn written(&mut self, first: Lsn) -> Lsn {
        let found = self.batches.partition_point(|batch| batch.first < first);
        if let Some(batch) = self.batches.get_mut(found) {
            batch.is_durable = true;
        }
        self.durable()
    }

    fn durable(&mut self) -> Lsn {
        let from = self.batches.partition_point(|batch| batch.first < self.sure);
        let open = self.batches.range(from..).find(|batch| !batch.is_durable);
        self.sure = open.map_or(self.next, |batch| batch.first);
        self.sure
    }

    /// Returns the place of the batch that contains an object, or the place where that batch would go.
    pub(super) fn place_of(&self, lsn: Lsn) -> u64 {
        let after = self.batches.partition_point(|batch| batch.first <= lsn);
        match after.checked_sub(1).and_then(|at| self.batches.get(at)) {
            Some(batch) if lsn < self.next => batch.place,
            _ => self.end,
        }
    }

    /// Frees the space of all objects below `oldest`.
    pub(super) fn give_up(&mut self, oldest: Lsn) {
        let begin = self.place_of(oldest);
        self.oldest = oldest;
        self.begin = begin;
        while self.batches.front().is_some_and(|batch| batch.place < begin) {
            self.batches.pop_front();
        }
    }
}
