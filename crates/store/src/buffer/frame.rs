//! A page in the cache, and how it is held.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use duralite_logfmt::store::{Change, Lsn, PageId, PageKind, kind, lsn, set_lsn};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::snapshot::Snapshot;
use crate::error::Error;

/// A page's bytes, under its latch.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(super) id: PageId,
    /// Whether the bytes are the page's.
    pub(super) is_valid: bool,
    /// Its place in the cache.
    pub(super) at: u32,
    pub(super) bytes: Box<[u8]>,
    /// Of an inner page, what threads have been given of it.
    pub(super) snapshot: OnceLock<Arc<Snapshot>>,
}

/// A place for a page, on a line of its own: threads that use different pages do not meet.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Frame {
    pub(super) content: RwLock<Content>,
    /// The page that it is mapped for.
    pub(super) id: AtomicU64,
    /// Who uses it: it is not given to another page meanwhile. Goes up from 0 only under the lock of its part of the map.
    pub(super) pins: AtomicU32,
    /// Whether it was used since it came in, or since it was last looked at as one that could leave.
    pub(super) is_used: AtomicBool,
    /// Whether its page has come in ahead, and nobody has used it yet.
    pub(super) is_ahead: AtomicBool,
    /// As the how-manieth its page came into the cache.
    pub(super) came_at: AtomicU32,
    /// Whether it has an inner page of a tree. Whoever comes by needs that, so it goes last.
    pub(super) is_inner: AtomicBool,
    /// No change before this one is missing at home; 0 where none is.
    pub(super) first_change: AtomicU64,
    /// Another number than before once a page has been changed of which there are snapshots, or is not here any more.
    pub(super) changes: AtomicU64,
}

impl Frame {
    pub(super) fn is_dirty(&self) -> bool {
        self.first_change() != 0
    }

    pub(super) fn first_change(&self) -> Lsn {
        self.first_change.load(Ordering::SeqCst)
    }

    /// An object with this number or a later one is about to change it.
    fn announce(&self, next: Lsn, tallies: &Tallies) {
        if self.first_change() != 0 {
            return;
        }
        if self.first_change.compare_exchange(0, next.max(1), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            tallies.dirty.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Called by whoever has the page latched for a change, or fills the frame, with the page's bytes.
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

    /// A page has come in as the `now`th.
    pub(super) fn came(&self, now: u32) {
        self.came_at.store(now, Ordering::Relaxed);
        self.is_used.store(false, Ordering::Relaxed);
    }

    /// A page is coming in before somebody needs it; that is counted already.
    pub(super) fn comes_ahead(&self) {
        self.is_ahead.store(true, Ordering::Relaxed);
    }

    /// Its page is used for the first time, or leaves; whether it had come in ahead.
    pub(super) fn ends_ahead(&self, tallies: &Tallies) -> bool {
        let was_ahead = self.is_ahead.load(Ordering::Relaxed) && self.is_ahead.swap(false, Ordering::Relaxed);
        if was_ahead {
            tallies.ahead.fetch_sub(1, Ordering::Relaxed);
        }
        was_ahead
    }

    /// It is used, after so many pages have come in. What comes within a `moment` belongs to the use that it came in for.
    pub(super) fn touched(&self, now: u32, moment: u32, tallies: &Tallies) {
        if self.ends_ahead(tallies) {
            tallies.needed();
            self.came_at.store(now, Ordering::Relaxed);
        } else if now.wrapping_sub(self.came_at.load(Ordering::Relaxed)) > moment {
            self.used();
        }
    }

    /// It is used, and not for the first time.
    pub(super) fn used(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Called by whoever has the page latched for a change, or takes the frame, which nobody uses, for another.
    pub(super) fn has_changed(&self) {
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
    }

    /// It is home as it is.
    pub(super) fn is_home(&self, tallies: &Tallies) {
        if self.first_change.swap(0, Ordering::SeqCst) != 0 {
            tallies.dirty.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Keeps a page in its frame.
#[derive(Debug)]
pub(crate) struct Pinned<'p> {
    pub(super) frame: &'p Frame,
    pub(super) tallies: &'p Tallies,
}

/// How many frames of a cache are of a kind.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// Have a page that is not as it is at home.
    pub(super) dirty: AtomicUsize,
    /// Have an inner page of a tree.
    pub(super) inner: AtomicUsize,
    /// Have a page that has come in ahead and nobody has used, or are about to get one.
    pub(super) ahead: AtomicUsize,
    /// How many pages have to be needed before as much as ever is read ahead: [`VAIN_COSTS`] for each one in vain.
    pub(super) owed: AtomicUsize,
}

/// So many pages have to be needed for each that was read in vain.
const VAIN_COSTS: usize = 4;

impl Tallies {
    /// A page was needed that was read ahead, or that was not in the cache.
    pub(super) fn needed(&self) {
        if self.owed.load(Ordering::Relaxed) > 0 {
            let one_less = |owed: usize| owed.checked_sub(1);
            // There is no more to be paid back if it fails.
            let _ = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }

    /// A page was read ahead in vain.
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
    // In this order: the latch goes before the pin.
    pub(super) guard: RwLockReadGuard<'p, Content>,
    pin: Pinned<'p>,
}

/// A page that is latched, one way or the other.
pub(crate) trait Latched {
    fn content(&self) -> &Content;
    fn pin(&self) -> &Pinned<'_>;

    /// The page as it is, for looking at it when it is not latched any more; `pool` is the number of the cache.
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

/// A page latched for a change.
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

    /// Says that the page is about to be changed by an object with this number or a later one. Invariant 34: this
    /// is before the object has its number, so that no checkpoint overlooks it.
    pub(crate) fn announce(&self, next: Lsn) {
        self.pin.frame.announce(next, self.pin.tallies);
    }

    /// Makes a change that is in the log as `at`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the page cannot be changed so.
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
