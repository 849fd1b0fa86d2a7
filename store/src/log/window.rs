//! Tracks which objects are persistent. Objects become persistent in any order. The log is durable up to the first
//! object that is not persistent.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::format::Lsn;
use crate::sync::pause;

/// The number of the next object, the number below which all objects are persistent, and a mark for each persistent
/// object.
#[derive(Debug)]
pub(super) struct Window {
    done: Box<[AtomicU64]>,
    next: AtomicU64,
    durable: AtomicU64,
}

impl Window {
    /// Makes a window that begins with the object `first`. The window has room for `objects` objects at a time; this
    /// number must be a power of two.
    pub(super) fn new(objects: u64, first: Lsn) -> Self {
        Self {
            done: (0..objects).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(first),
            durable: AtomicU64::new(first),
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        std::mem::size_of_val(&*self.done) as u64
    }

    pub(super) fn next(&self) -> Lsn {
        self.next.load(Ordering::SeqCst)
    }

    pub(super) fn durable(&self) -> Lsn {
        self.durable.load(Ordering::SeqCst)
    }

    /// Takes the next number of the sequence, by one atomic operation.
    pub(super) fn number(&self) -> Lsn {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    fn slot(&self, lsn: Lsn) -> &AtomicU64 {
        // The length of `done` is a power of two, so the mask gives the remainder.
        &self.done[(lsn & (self.done.len() as u64 - 1)) as usize]
    }

    /// Marks an object as persistent.
    pub(super) fn done(&self, lsn: Lsn) {
        self.slot(lsn).store(lsn, Ordering::SeqCst);
    }

    /// Moves `durable` forward over all objects that are marked as persistent. Returns the number below which all
    /// objects are durable.
    pub(super) fn advance(&self) -> Lsn {
        let mut at = self.durable();
        while at < self.next() && self.slot(at).load(Ordering::SeqCst) == at {
            match self.durable.compare_exchange(at, at + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => at += 1,
                Err(now) => at = now,
            }
        }
        at
    }
}

/// Waits for another thread that is about to do something. Spins at first, then yields, and then sleeps.
#[derive(Debug, Default)]
pub(super) struct Patience(u32);

impl Patience {
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            ..8 => std::hint::spin_loop(),
            8..512 => pause(Duration::ZERO),
            _ => pause(Duration::from_micros(50)),
        }
    }
}
