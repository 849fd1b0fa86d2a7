//! Which objects are persistent: in any order, and up to where without a gap.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_logfmt::store::Lsn;

use crate::sync::pause;

/// Numbers of objects that are handed out, and those below which all are done.
#[derive(Debug)]
pub(super) struct Window {
    done: Box<[AtomicU64]>,
    next: AtomicU64,
    durable: AtomicU64,
}

impl Window {
    /// A window for so many objects at a time (a power of two), the first of them `first`.
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

    /// The one global number, by one atomic operation.
    pub(super) fn number(&self) -> Lsn {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    fn slot(&self, lsn: Lsn) -> &AtomicU64 {
        // Its length is a power of two.
        &self.done[(lsn & (self.done.len() as u64 - 1)) as usize]
    }

    /// The object is persistent.
    pub(super) fn done(&self, lsn: Lsn) {
        self.slot(lsn).store(lsn, Ordering::SeqCst);
    }

    /// Moves on over what is done; what everything is durable below now.
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

/// Waits for something that others are about to have done: first by giving the processor away.
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
