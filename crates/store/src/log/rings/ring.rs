//! What of one ring is in use.

use std::collections::VecDeque;

use duralite_logfmt::store::Lsn;

/// An object in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) lsn: Lsn,
    pub(super) place: u64,
    pub(super) epoch: u32,
    /// In whole lines.
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Where the oldest object that is needed is.
    pub(super) begin: u64,
    /// Where the next one comes.
    pub(super) end: u64,
    pub(super) objects: VecDeque<Placed>,
    /// Objects that were stored and not flushed: number, offset, bytes.
    pub(super) unflushed: Vec<(Lsn, u64, u64)>,
}

impl Ring {
    /// Where an object comes, and how much of the ring that takes: one that does not fit at the end begins at the next
    /// turn. `None` if there is no room.
    pub(super) fn place_for(&self, bytes: u64, ring_bytes: u64) -> Option<(u64, u64)> {
        let left = ring_bytes - self.end % ring_bytes;
        let place = if bytes <= left { self.end } else { self.end + left };
        let end = place + bytes;
        // Never quite full: the place behind the newest object is not the oldest one's.
        (end - self.begin < ring_bytes).then_some((place, end - self.end))
    }

    pub(super) fn add(&mut self, lsn: Lsn, place: u64, bytes: u64, at: u64) {
        self.objects.push_back(Placed { lsn, place, epoch: 0, bytes });
        self.end = place + bytes;
        self.unflushed.push((lsn, at, bytes));
    }

    /// Where the oldest object from `head` on is, or the next one comes.
    pub(super) fn begin_at(&self, head: Lsn) -> u64 {
        let first = self.objects.partition_point(|object| object.lsn < head);
        self.objects.get(first).map_or(self.end, |object| object.place)
    }

    /// Gives up what is before a place; how many bytes that frees.
    pub(super) fn give_up(&mut self, begin: u64) -> u64 {
        while self.objects.front().is_some_and(|object| object.place < begin) {
            self.objects.pop_front();
        }
        let freed = begin - self.begin;
        self.begin = begin;
        freed
    }
}
