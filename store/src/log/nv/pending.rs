//! Objects that are stored and not yet made persistent.

use crate::format::{Lsn, OBJECT_ALIGNMENT};
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many objects are made persistent with the same two fences.
pub(super) const BATCH: usize = 64;
/// How many low bits of `place` are the length of the object, in lines; the bits above are its address.
const LENGTH_BITS: u32 = 16;

/// One slot for each object that may be pending at a time.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Box<[Slot]>,
}

/// An object's number (0 for none) and its address. Only the thread that takes the object makes it persistent.
#[derive(Debug)]
struct Slot {
    lsn: AtomicU64,
    place: AtomicU64,
}

impl Pending {
    /// Slots for `objects` objects.
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

    /// Adds an object that has been stored. Its slot is empty, because the older object of that slot is persistent.
    pub(super) fn put(&self, lsn: Lsn, at: u64, bytes: u64) {
        let slot = self.slot(lsn);
        let place = (at / OBJECT_ALIGNMENT) << LENGTH_BITS | bytes.div_ceil(OBJECT_ALIGNMENT);
        slot.place.store(place, Ordering::Relaxed);
        // A thread that sees the number also sees the place, and the stored object.
        slot.lsn.store(lsn, Ordering::Release);
    }

    /// Takes an object. Returns its address, and its bytes in whole lines; `None` if it is not here, or another thread
    /// has taken it.
    pub(super) fn take(&self, lsn: Lsn) -> Option<(u64, u64)> {
        let slot = self.slot(lsn);
        if slot.lsn.load(Ordering::Acquire) != lsn {
            return None;
        }
        let place = slot.place.load(Ordering::Relaxed);
        // If the number is still the same, so is the place: the slot is filled again only after the exchange.
        slot.lsn.compare_exchange(lsn, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let lines = place & ((1 << LENGTH_BITS) - 1);
        Some(((place >> LENGTH_BITS) * OBJECT_ALIGNMENT, lines * OBJECT_ALIGNMENT))
    }
}
