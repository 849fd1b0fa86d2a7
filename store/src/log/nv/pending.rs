//! Objects that have been stored but are not persistent yet.

use crate::format::{Lsn, OBJECT_ALIGNMENT};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of objects that are made persistent together, with two fences for all of them.
pub(super) const BATCH: usize = 64;
/// How many of the low bits of `place` hold the object's length, in cache lines. The higher bits hold the object's
/// address.
const LENGTH_BITS: u32 = 16;

/// A slot for each object that may be pending at the same time.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Box<[Slot]>,
}

/// The number of an object (0 for none), and its address. Only the thread that takes an object out of its slot makes
/// the object persistent.
#[derive(Debug)]
struct Slot {
    lsn: AtomicU64,
    place: AtomicU64,
}

impl Pending {
    /// Makes slots for `objects` objects.
    pub(super) fn new(objects: u64) -> Self {
        let slot = |_| Slot { lsn: AtomicU64::new(0), place: AtomicU64::new(0) };
        Self { slots: (0..objects).map(slot).collect() }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        std::mem::size_of_val(&*self.slots) as u64
    }

    fn slot(&self, lsn: Lsn) -> &Slot {
        &self.slots[(lsn % self.slots.len() as u64) as usize]
    }

    /// Adds an object that has been stored. The object's slot is empty, because the object that used it before is
    /// already persistent.
    pub(super) fn put(&self, lsn: Lsn, at: u64, bytes: u64) {
        let slot = self.slot(lsn);
        let place = (at / OBJECT_ALIGNMENT) << LENGTH_BITS | bytes.div_ceil(OBJECT_ALIGNMENT);
        slot.place.store(place, Ordering::Relaxed);
        // Stores the number last. A thread that sees the number then also sees the place and the object.
        slot.lsn.store(lsn, Ordering::Release);
    }

    /// Takes an object out of its slot. Returns the object's address, and its length in bytes, rounded up to whole
    /// cache lines. Returns `None` if the object is not there, or if another thread has taken it.
    pub(super) fn take(&self, lsn: Lsn) -> Option<(u64, u64)> {
        let slot = self.slot(lsn);
        if slot.lsn.load(Ordering::Acquire) != lsn {
            return None;
        }
        let place = slot.place.load(Ordering::Relaxed);
        // If the number is still the same, so is the place, because a slot gets another object only after this exchange
        // has emptied it.
        slot.lsn.compare_exchange(lsn, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let lines = place & ((1 << LENGTH_BITS) - 1);
        Some(((place >> LENGTH_BITS) * OBJECT_ALIGNMENT, lines * OBJECT_ALIGNMENT))
    }
}
