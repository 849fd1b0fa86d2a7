//! Objects that are stored and not yet made persistent.

use crate::sync::atomic::{AtomicU64, Ordering};
use duralite_logfmt::store::{Lsn, OBJECT_ALIGNMENT};

/// Objects that are made persistent with the same two fences.
pub(super) const BATCH: usize = 64;
/// Of a place the bits that say how long its object is, in lines; those above say where it is.
const LENGTH_BITS: u32 = 16;

/// One place for each object that may be pending at a time.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Box<[Slot]>,
}

/// An object's number, 0 for none, and where it is; only whoever takes it makes it persistent.
#[derive(Debug)]
struct Slot {
    lsn: AtomicU64,
    place: AtomicU64,
}

impl Pending {
    /// Slots for so many objects.
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

    /// Adds an object that has been stored. Its slot is empty: objects that are so much older are persistent.
    pub(super) fn put(&self, lsn: Lsn, at: u64, bytes: u64) {
        let slot = self.slot(lsn);
        let place = (at / OBJECT_ALIGNMENT) << LENGTH_BITS | bytes.div_ceil(OBJECT_ALIGNMENT);
        slot.place.store(place, Ordering::Relaxed);
        // Whoever sees the number sees the place, and what was stored there.
        slot.lsn.store(lsn, Ordering::Release);
    }

    /// Where this object is, and its bytes in whole lines; `None` if it is not there, or somebody else has taken it.
    pub(super) fn take(&self, lsn: Lsn) -> Option<(u64, u64)> {
        let slot = self.slot(lsn);
        if slot.lsn.load(Ordering::Acquire) != lsn {
            return None;
        }
        let place = slot.place.load(Ordering::Relaxed);
        // If it is still this one, the place is its own: the slot is filled again only after that.
        slot.lsn.compare_exchange(lsn, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let lines = place & ((1 << LENGTH_BITS) - 1);
        Some(((place >> LENGTH_BITS) * OBJECT_ALIGNMENT, lines * OBJECT_ALIGNMENT))
    }
}
