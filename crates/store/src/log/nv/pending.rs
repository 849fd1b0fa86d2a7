//! Objects that are in ordinary memory only.

use crate::sync::Mutex;
use duralite_logfmt::store::Lsn;

/// Objects that are made persistent with the same two fences.
pub(super) const BATCH: usize = 64;
const MOST: u64 = 16384;

/// One place for each object that may be pending at a time.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Box<[Mutex<Slot>]>,
}

/// An object's number, where it goes, and the object; only whoever takes it makes it persistent.
type Slot = Option<(Lsn, u64, Vec<u8>)>;

impl Pending {
    pub(super) fn new(entries: u64) -> Self {
        Self { slots: (0..entries.min(MOST)).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn objects(&self) -> u64 {
        self.slots.len() as u64
    }

    fn slot(&self, lsn: Lsn) -> &Mutex<Slot> {
        &self.slots[(lsn % self.slots.len() as u64) as usize]
    }

    pub(super) fn put(&self, lsn: Lsn, at: u64, object: Vec<u8>) {
        *self.slot(lsn).lock() = Some((lsn, at, object));
    }

    /// Where this object goes, and the object; `None` if another one has its place by now.
    pub(super) fn take(&self, lsn: Lsn) -> Option<(u64, Vec<u8>)> {
        let mut slot = self.slot(lsn).lock();
        slot.take_if(|(number, ..)| *number == lsn).map(|(_, at, object)| (at, object))
    }
}
