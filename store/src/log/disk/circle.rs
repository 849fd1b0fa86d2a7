//! The batches in the file's circle: where they are, which are needed, and which are being written.

use std::collections::VecDeque;

use crate::format::{BATCH_HEADER_BYTES, DiskHead, Lsn};

/// A batch in the circle, or one that a thread is writing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) first: Lsn,
    pub(super) place: u64,
    /// Bytes with the batch header, rounded up to whole blocks.
    pub(super) bytes: u64,
    pub(super) is_durable: bool,
}

/// The part of the circle that is in use.
#[derive(Debug)]
pub(super) struct Circle {
    pub(super) head: DiskHead,
    /// The oldest object that is needed.
    pub(super) oldest: Lsn,
    /// The place of the oldest batch that is needed.
    pub(super) begin: u64,
    /// The place of the next batch.
    pub(super) end: u64,
    /// The first object of the next batch.
    pub(super) next: Lsn,
    /// Objects below this one are durable, by the last check.
    pub(super) sure: Lsn,
    pub(super) batches: VecDeque<Placed>,
}

impl Circle {
    /// Bytes that a batch of `objects` bytes takes.
    pub(super) fn bytes_of(&self, objects: u64) -> u64 {
        (BATCH_HEADER_BYTES as u64 + objects).next_multiple_of(self.head.block_bytes.into())
    }

    /// The place for a batch of this many bytes. A batch does not wrap around the end.
    fn place_for(&self, bytes: u64) -> u64 {
        let left = self.head.circle_bytes - self.end % self.head.circle_bytes;
        if bytes <= left { self.end } else { self.end + left }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.head.circle_bytes - (self.end - self.begin)
    }

    /// Places a batch of the objects `self.next..next`. Returns `None` if the circle is full.
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

    /// Marks a batch as durable. Returns the number below which everything is durable.
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

    /// The place of the batch with an object, or the place where that batch would be.
    pub(super) fn place_of(&self, lsn: Lsn) -> u64 {
        let after = self.batches.partition_point(|batch| batch.first <= lsn);
        match after.checked_sub(1).and_then(|at| self.batches.get(at)) {
            Some(batch) if lsn < self.next => batch.place,
            _ => self.end,
        }
    }

    /// Gives up all objects below `oldest`.
    pub(super) fn give_up(&mut self, oldest: Lsn) {
        let begin = self.place_of(oldest);
        self.oldest = oldest;
        self.begin = begin;
        while self.batches.front().is_some_and(|batch| batch.place < begin) {
            self.batches.pop_front();
        }
    }
}
