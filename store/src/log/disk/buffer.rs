//! The objects that wait to be written to disk. They are in a common buffer, or each object is in a slot of its own.

use crate::sync::atomic::{AtomicU64, Ordering};

use crate::format::{Lsn, seal_object};
use crate::sync::Mutex;

use crate::log::window::Patience;

/// The buffer in which objects wait until a batch takes them.
#[derive(Debug)]
pub(super) enum Buffer {
    /// One buffer for all transactions. Its mutex determines the order of the objects (`nv-disk` in table 3 of the
    /// NV-Logging paper).
    Central(Mutex<Central>),
    /// A slot for each object. The object's number selects the slot, and one atomic operation assigns the number.
    Lists(Lists),
}

#[derive(Debug)]
pub(super) struct Central {
    next: Lsn,
    first: Lsn,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Lists {
    next: AtomicU64,
    slots: Box<[Mutex<Option<Vec<u8>>>]>,
}

/// The largest number of objects that may wait.
pub(super) const MOST: u64 = 16384;

impl Buffer {
    pub(super) fn central(next: Lsn) -> Self {
        Self::Central(Mutex::new(Central { next, first: next, bytes: Vec::new() }))
    }

    pub(super) fn lists(next: Lsn) -> Self {
        let slots = (0..MOST).map(|_| Mutex::default()).collect();
        Self::Lists(Lists { next: AtomicU64::new(next), slots })
    }

    pub(super) fn next(&self) -> Lsn {
        match self {
            Self::Central(central) => central.lock().next,
            Self::Lists(lists) => lists.next.load(Ordering::SeqCst),
        }
    }

    /// Gives an object its number, seals it, and keeps a copy of it in the buffer until it is taken for a batch.
    pub(super) fn put(&self, object: &mut [u8], epoch: u32, seed: u64) -> Lsn {
        match self {
            Self::Central(central) => {
                let mut central = central.lock();
                let lsn = central.next;
                seal_object(object, lsn, epoch, seed);
                central.bytes.extend_from_slice(object);
                central.next += 1;
                lsn
            }
            Self::Lists(lists) => {
                let lsn = lists.next.fetch_add(1, Ordering::SeqCst);
                seal_object(object, lsn, epoch, seed);
                *lists.slot(lsn).lock() = Some(object.to_vec());
                lsn
            }
        }
    }

    /// Returns the size of the empty buffer in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Central(_) => 0,
            Self::Lists(lists) => std::mem::size_of_val(&*lists.slots) as u64,
        }
    }

    /// Moves the objects in `from..to` into `bytes`. May stop earlier once it has moved `most_bytes`, and may also move
    /// some objects from `to` on. Returns the number after the last moved object. If an object has a number but is not
    /// in its slot yet, waits for it. Only one thread at a time may call this.
    pub(super) fn take(&self, from: Lsn, to: Lsn, most_bytes: u64, bytes: &mut Vec<u8>) -> Lsn {
        match self {
            Self::Central(central) => {
                let mut central = central.lock();
                std::mem::swap(bytes, &mut central.bytes);
                central.bytes.clear();
                central.first = central.next;
                central.next
            }
            Self::Lists(lists) => {
                for lsn in from..to {
                    if bytes.len() as u64 >= most_bytes {
                        return lsn;
                    }
                    let mut patience = Patience::default();
                    loop {
                        if let Some(object) = lists.slot(lsn).lock().take() {
                            bytes.extend(object);
                            break;
                        }
                        patience.wait();
                    }
                }
                to
            }
        }
    }
}

impl Lists {
    fn slot(&self, lsn: Lsn) -> &Mutex<Option<Vec<u8>>> {
        &self.slots[(lsn % self.slots.len() as u64) as usize]
    }
}
