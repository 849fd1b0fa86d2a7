//! Objects on their way to the disk: in a buffer of all transactions, or in a list of each.

use crate::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Mutex;
use duralite_logfmt::store::{Lsn, seal_object};

use crate::log::window::Patience;

/// How objects wait for their group.
#[derive(Debug)]
pub(super) enum Buffer {
    /// One buffer, whose mutex numbers objects (`nv-disk` of the paper's table 3).
    Central(Mutex<Central>),
    /// A place for each object by its number, which is taken by one atomic operation.
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

/// Most objects that wait.
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

    /// Numbers, seals and keeps an object.
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

    /// Bytes that it takes with nothing in it.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Central(_) => 0,
            Self::Lists(lists) => std::mem::size_of_val(&*lists.slots) as u64,
        }
    }

    /// Takes objects from `from` on, up to `to`, or beyond, or until they have so many bytes; their bytes, and what the
    /// next one is. One at a time may do so. Objects that are numbered and not there yet are waited for.
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
