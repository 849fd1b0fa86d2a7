//! The part of a ring that is in use.

use std::collections::VecDeque;

use crate::format::Lsn;

/// An object in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) lsn: Lsn,
    pub(super) place: u64,
    pub(super) epoch: u32,
    /// The length in bytes, rounded up to whole cache lines.
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Ring {
    /// The place of the oldest object that is still needed.
    pub(super) begin: u64,
    /// The place after the newest object.
    pub(super) end: u64,
    pub(super) objects: VecDeque<Placed>,
    /// Objects that were stored but not flushed: number, offset, and length in bytes.
    pub(super) unflushed: Vec<(Lsn, u64, u64)>,
}

impl Ring {
    /// Returns the place for an object, and how many bytes of the ring it takes there. An object that does not fit
    /// before the ring's end goes to the ring's beginning. Returns `None` if there is no room.
    pub(super) fn place_for(&self, bytes: u64, ring_bytes: u64) -> Option<(u64, u64)> {
        let left = ring_bytes - self.end % ring_bytes;
        let place = if bytes <= left { self.end } else { self.end + left };
        let end = place + bytes;
        // The ring never becomes quite full. Otherwise the place after the newest object would have the offset of the
        // oldest one.
        (end - self.begin < ring_bytes).then_some((place, end - self.end))
    }

    pub(super) fn add(&mut self, lsn: Lsn, place: u64, bytes: u64, at: u64) {
        self.objects.push_back(Placed { lsn, place, epoch: 0, bytes });
        self.end = place + bytes;
        self.unflushed.push((lsn, at, bytes));
    }

    /// Returns the place of the oldest object whose number is at least `head`. If there is none, returns the place for
    /// the next object.
    pub(super) fn begin_at(&self, head: Lsn) -> u64 {
        let first = self.objects.partition_point(|object| object.lsn < head);
        self.objects.get(first).map_or(self.end, |object| object.place)
    }

    /// Frees everything before the place `begin`. Returns the number of freed bytes.
    pub(super) fn give_up(&mut self, begin: u64) -> u64 {
        while self.objects.front().is_some_and(|object| object.place < begin) {
            self.objects.pop_front();
        }
        let freed = begin - self.begin;
        self.begin = begin;
        freed
    }
}
