//! Memory for objects, in extents. Each extent is filled from its beginning by the threads of one stripe.
//!
//! The log does not store durably which memory is allocated. When it is opened, it treats the extents that contain
//! objects in the index as used.

use crate::sync::atomic::{AtomicU64, Ordering};

use crate::format::{Lsn, NvHead};
use crate::sync::Mutex;

use crate::sync::thread_number;

const MOST_STRIPES: u64 = 16;

/// The extents of a log.
#[derive(Debug)]
pub(super) struct Extents {
    begin: u64,
    extent_bytes: u64,
    /// For each extent, the number of its newest object.
    newest: Box<[AtomicU64]>,
    free: AtomicU64,
    lists: Mutex<Lists>,
    stripes: Box<[Mutex<Stripe>]>,
}

#[derive(Debug, Default)]
struct Lists {
    free: Vec<u64>,
    /// Full extents. An extent is freed once no object in it is needed.
    closed: Vec<u64>,
}

/// The extent that the threads of this stripe are filling.
#[derive(Debug, Default)]
struct Stripe {
    extent: Option<u64>,
    next: u64,
    end: u64,
}

impl Extents {
    pub(super) fn new(layout: &NvHead) -> Self {
        let stripes = (layout.extents / 4).clamp(1, MOST_STRIPES);
        Self {
            begin: layout.extent_at(0),
            extent_bytes: layout.extent_bytes,
            newest: (0..layout.extents).map(|_| AtomicU64::new(0)).collect(),
            free: AtomicU64::new(layout.extents),
            lists: Mutex::new(Lists { free: (0..layout.extents).rev().collect(), closed: Vec::new() }),
            stripes: (0..stripes).map(|_| Mutex::default()).collect(),
        }
    }

    /// Marks the extents that contain these objects as used. The caller does this once, before any other call.
    pub(super) fn occupy(&self, layout: &NvHead, objects: &[(u64, Lsn)]) {
        for (at, lsn) in objects {
            if let Some(newest) = self.newest.get(((at - self.begin) / layout.extent_bytes) as usize) {
                newest.fetch_max(*lsn, Ordering::Relaxed);
            }
        }
        let mut lists = self.lists.lock();
        let is_used = |extent: &u64| self.newest[*extent as usize].load(Ordering::Relaxed) != 0;
        let (closed, free): (Vec<u64>, Vec<u64>) = lists.free.drain(..).partition(is_used);
        self.free.store(free.len() as u64, Ordering::Relaxed);
        *lists = Lists { free, closed };
    }

    /// Allocates memory for an object, and gives the object its number. Both happen under the stripe's mutex, so that
    /// no other thread can mistake the extent for an unused one. Returns `None`, without taking a number, if there is
    /// no room.
    pub(super) fn take(&self, bytes: u64, number: impl FnOnce() -> Lsn) -> Option<(u64, Lsn)> {
        if bytes > self.extent_bytes {
            return None;
        }
        let mut stripe = self.stripes[thread_number() % self.stripes.len()].lock();
        if stripe.extent.is_none() || stripe.end - stripe.next < bytes {
            let mut lists = self.lists.lock();
            let extent = lists.free.pop()?;
            lists.closed.extend(stripe.extent);
            self.free.store(lists.free.len() as u64, Ordering::Relaxed);
            let next = self.begin + extent * self.extent_bytes;
            *stripe = Stripe { extent: Some(extent), next, end: next + self.extent_bytes };
        }
        let at = stripe.next;
        stripe.next += bytes;
        let lsn = number();
        if let Some(newest) = stripe.extent.and_then(|extent| self.newest.get(extent as usize)) {
            newest.fetch_max(lsn, Ordering::Relaxed);
        }
        Some((at, lsn))
    }

    /// Frees the full extents whose objects all have numbers below `head`.
    pub(super) fn recycle(&self, head: Lsn) {
        let mut lists = self.lists.lock();
        let lists = &mut *lists;
        lists.closed.retain(|extent| {
            let newest = &self.newest[*extent as usize];
            let is_needed = newest.load(Ordering::Relaxed) >= head;
            if !is_needed {
                newest.store(0, Ordering::Relaxed);
                lists.free.push(*extent);
            }
            is_needed
        });
        self.free.store(lists.free.len() as u64, Ordering::Relaxed);
    }

    /// Returns how many bytes are sure to fit, for objects of any size. Up to a quarter of each extent may be lost at
    /// its end, so this counts only three quarters.
    pub(super) fn free_bytes(&self) -> u64 {
        let kept = self.stripes.len() as u64;
        self.free.load(Ordering::Relaxed).saturating_sub(kept) * self.extent_bytes / 4 * 3
    }

    pub(super) fn all_bytes(&self) -> u64 {
        (self.newest.len() as u64).saturating_sub(self.stripes.len() as u64) * self.extent_bytes / 4 * 3
    }
}
