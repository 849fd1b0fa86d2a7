//! A page in the cache, with its pins and its latch.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::snapshot::Snapshot;
use crate::error::Error;
use crate::format::{Change, Lsn, PageId, PageKind, kind, lsn, set_lsn};

/// The bytes of a page, which the page's latch protects.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(super) id: PageId,
    /// Whether the bytes are the content of page `id`.
    pub(super) is_valid: bool,
    /// The index of the frame in the cache.
    pub(super) at: u32,
    pub(super) bytes: Box<[u8]>,
    /// A copy of an inner page, which threads share instead of latching the page.
    pub(super) snapshot: OnceLock<Arc<Snapshot>>,
}

/// A frame for a page. It has a cache line of its own, so that threads that use different pages do not contend for a
/// line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Frame {
    pub(super) content: RwLock<Content>,
    /// The page for which the frame is mapped.
    pub(super) id: AtomicU64,
    /// The number of users that pin the frame. While the frame is pinned, it keeps its page. To raise the count from 0,
    /// a thread must hold the lock of the page's part of the map.
    pub(super) pins: AtomicU32,
    /// Whether the page was used since it came into the cache, or since the cache last considered it for eviction.
    pub(super) is_used: AtomicBool,
    /// Whether the page was read ahead and has not been used yet.
    pub(super) is_ahead: AtomicBool,
    /// The count [`Pool::came`](super::Pool::came) at the moment when this page came into the cache.
    pub(super) came_at: AtomicU32,
    /// Whether the page is an inner page of a tree. Every thread that goes down that tree needs the page, so it is
    /// evicted last.
    pub(super) is_inner: AtomicBool,
    /// The LSN of the oldest change that is not yet in the page file; 0 if the page is clean. The LSN may be too low,
    /// because a thread sets it before the log object of the change gets its number.
    pub(super) first_change: AtomicU64,
    /// A number that grows when a thread changes a page that has a shared copy, and when the frame loses its page.
    pub(super) changes: AtomicU64,
}

impl Frame {
    pub(super) fn is_dirty(&self) -> bool {
        self.first_change() != 0
    }

    pub(super) fn first_change(&self) -> Lsn {
        self.first_change.load(Ordering::SeqCst)
    }

    /// Marks the page as dirty, before the caller logs a change of the page. The log object of that change will have
    /// the number `next` or a higher one.
    fn announce(&self, next: Lsn, tallies: &Tallies) {
        if self.first_change() != 0 {
            return;
        }
        if self.first_change.compare_exchange(0, next.max(1), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            tallies.dirty.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records whether the page is an inner page. The caller has the page latched for writing, or is filling the frame.
    pub(super) fn note_kind(&self, bytes: &[u8], tallies: &Tallies) {
        let is_inner = kind(bytes) == PageKind::Inner;
        if self.is_inner.load(Ordering::Relaxed) != is_inner {
            self.is_inner.store(is_inner, Ordering::Relaxed);
            if is_inner {
                tallies.inner.fetch_add(1, Ordering::Relaxed);
            } else {
                tallies.inner.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes that the page came into the cache. `now` is the number of pages that had come in before.
    pub(super) fn came(&self, now: u32) {
        self.came_at.store(now, Ordering::Relaxed);
        self.is_used.store(false, Ordering::Relaxed);
    }

    /// Marks the page as being read ahead. The caller has already counted it in [`Tallies::ahead`].
    pub(super) fn comes_ahead(&self) {
        self.is_ahead.store(true, Ordering::Relaxed);
    }

    /// Clears the mark that the page was read ahead, because a thread uses or evicts the page. Returns whether the mark
    /// was set, which means that nothing has used the page before.
    pub(super) fn ends_ahead(&self, tallies: &Tallies) -> bool {
        let was_ahead = self.is_ahead.load(Ordering::Relaxed) && self.is_ahead.swap(false, Ordering::Relaxed);
        if was_ahead {
            tallies.ahead.fetch_sub(1, Ordering::Relaxed);
        }
        was_ahead
    }

    /// Notes a use of the page. `now` is the number of pages that have come into the cache. The use is ignored if at
    /// most `moment` pages have come in after this page, because it then belongs to the access that brought the page
    /// in.
    pub(super) fn touched(&self, now: u32, moment: u32, tallies: &Tallies) {
        if self.ends_ahead(tallies) {
            tallies.needed();
            self.came_at.store(now, Ordering::Relaxed);
        } else if now.wrapping_sub(self.came_at.load(Ordering::Relaxed)) > moment {
            self.used();
        }
    }

    /// Notes a use that is not ignored. Because of this use, the cache does not evict the page the next time that its
    /// turn comes.
    pub(super) fn used(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Makes shared copies of the page outdated. The caller has latched the page for writing, or is about to use the
    /// frame for another page.
    pub(super) fn has_changed(&self) {
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
    }

    /// Marks the page as clean, because the page file has all of its changes.
    pub(super) fn is_home(&self, tallies: &Tallies) {
        if self.first_change.swap(0, Ordering::SeqCst) != 0 {
            tallies.dirty.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A pin: while it exists, the frame keeps its page.
#[derive(Debug)]
pub(crate) struct Pinned<'p> {
    pub(super) frame: &'p Frame,
    pub(super) tallies: &'p Tallies,
}

/// Counts of the cache's frames by state, and the penalty for pages that were read ahead but never used.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// The number of frames with a dirty page.
    pub(super) dirty: AtomicUsize,
    /// The number of frames with an inner page of a tree.
    pub(super) inner: AtomicUsize,
    /// The number of frames whose page was read ahead and is still unused, plus the number of frames that are reserved
    /// for reading ahead.
    pub(super) ahead: AtomicUsize,
    /// A penalty that lowers how much the cache reads ahead. Each page that was read ahead but evicted unused adds
    /// [`VAIN_COSTS`]. Each call of `needed` subtracts one.
    pub(super) owed: AtomicUsize,
}

/// The number of needed pages that make up for one page that was read ahead but evicted unused.
const VAIN_COSTS: usize = 4;

impl Tallies {
    /// Reduces the penalty by one. The cache calls this when a thread needs a page that was read ahead, and when a
    /// thread needs a page that is not in the cache.
    pub(super) fn needed(&self) {
        if self.owed.load(Ordering::Relaxed) > 0 {
            let one_less = |owed: usize| owed.checked_sub(1);
            // If the penalty is already zero, the update fails. That does not matter.
            let _ = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }

    /// Adds to the penalty. The cache calls this when it evicts a page that was read ahead and never used.
    pub(super) fn was_in_vain(&self) {
        self.owed.fetch_add(VAIN_COSTS, Ordering::Relaxed);
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.frame.pins.fetch_sub(1, Ordering::Release);
    }
}

impl<'p> Pinned<'p> {
    pub(super) fn read(self) -> Reading<'p> {
        Reading { guard: self.frame.content.read(), pin: self }
    }

    pub(super) fn write(self) -> Writing<'p> {
        Writing { guard: self.frame.content.write(), pin: self }
    }
}

/// A page latched for reading.
#[derive(Debug)]
pub(crate) struct Reading<'p> {
    // Fields are dropped in this order: the latch before the pin.
    pub(super) guard: RwLockReadGuard<'p, Content>,
    pin: Pinned<'p>,
}

/// A latched page, for reading or for writing.
pub(crate) trait Latched {
    fn content(&self) -> &Content;
    fn pin(&self) -> &Pinned<'_>;

    /// Returns a copy of the page, which the caller may read after it has released the latch. `pool` is the number of
    /// the cache that holds the page.
    fn snapshot(&self, pool: u64) -> Arc<Snapshot> {
        let content = self.content();
        let copied = || Snapshot {
            pool,
            id: content.id,
            frame: content.at,
            changes: self.pin().frame.changes.load(Ordering::SeqCst),
            bytes: content.bytes.clone(),
        };
        Arc::clone(content.snapshot.get_or_init(|| Arc::new(copied())))
    }
}

impl Latched for Reading<'_> {
    fn content(&self) -> &Content {
        &self.guard
    }
    fn pin(&self) -> &Pinned<'_> {
        &self.pin
    }
}

impl Latched for Writing<'_> {
    fn content(&self) -> &Content {
        &self.guard
    }
    fn pin(&self) -> &Pinned<'_> {
        &self.pin
    }
}

impl Content {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Reading<'_> {
    pub(crate) fn id(&self) -> PageId {
        self.guard.id
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.guard.bytes
    }
}

/// A page latched for writing.
#[derive(Debug)]
pub(crate) struct Writing<'p> {
    pub(super) guard: RwLockWriteGuard<'p, Content>,
    pub(super) pin: Pinned<'p>,
}

impl Writing<'_> {
    pub(crate) fn id(&self) -> PageId {
        self.guard.id
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.guard.bytes
    }

    /// Marks the page as dirty, because an object with the number `next` or a higher one is about to change it.
    /// Invariant 34: this happens before the object gets its number, so that no checkpoint overlooks the change.
    pub(crate) fn announce(&self, next: Lsn) {
        self.pin.frame.announce(next, self.pin.tallies);
    }

    /// Applies a change to the page, as part of the log object `at`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the change does not fit the page.
    pub(crate) fn apply(&mut self, change: &Change<'_>, at: Lsn) -> Result<(), Error> {
        let id = self.guard.id;
        if self.guard.snapshot.take().is_some() {
            self.pin.frame.has_changed();
        }
        change.apply(&mut self.guard.bytes).map_err(|error| Error::page(id, error))?;
        set_lsn(&mut self.guard.bytes, at);
        self.pin.frame.note_kind(&self.guard.bytes, self.pin.tallies);
        Ok(())
    }

    pub(crate) fn lsn(&self) -> Lsn {
        lsn(&self.guard.bytes)
    }
}

/// Sorts by keys that other threads may change at the same time, such as the page of a frame. Reads each key only once.
/// If a key changed between two comparisons, the order would contradict itself, and the sort might panic.
pub(super) fn sort_by_changing<T, K: Ord>(items: &mut [T], key: impl FnMut(&T) -> K) {
    items.sort_by_cached_key(key);
}
