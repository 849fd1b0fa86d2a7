//! A thread's path down a tree, through shared copies of the tree's inner pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::frame::{Frame, Latched};
use super::snapshot::{Snapshot, kept};
use crate::format::PageId;

/// The inner pages on a thread's path down a tree. Each thread keeps copies of such pages. To go down a tree, the
/// thread moves the copies that it needs into this path, and moves them back afterwards. It does not clone them,
/// because counting references would write to a word that all threads share.
#[derive(Debug)]
pub(crate) struct Way<'p> {
    /// The number of the cache that the tree is in.
    pool: u64,
    frames: &'p [Frame],
    pages: SmallVec<[Arc<Snapshot>; 4]>,
    /// Whether the pages stay pinned until the path is dropped.
    is_pinning: bool,
    /// The frames that this path pins.
    pinned: SmallVec<[&'p Frame; 4]>,
}

impl<'p> Way<'p> {
    pub(super) fn new(pool: u64, frames: &'p [Frame]) -> Self {
        Self { pool, frames, pages: SmallVec::new(), is_pinning: false, pinned: SmallVec::new() }
    }

    /// Makes the path pin its pages. Invariant 50: once the pages are pinned, the descent fails only if another thread
    /// changes one of them. The number of frames in the cache does not matter.
    pub(crate) fn pinning(mut self) -> Self {
        self.is_pinning = true;
        self
    }

    /// Returns whether a page has not changed since it was copied. If so, counts a use of the page.
    fn is_as_copied(&self, copy: &Snapshot) -> bool {
        let Some(frame) = self.frames.get(copy.frame as usize) else { return false };
        let is_current = copy.pool == self.pool && frame.changes.load(Ordering::Acquire) == copy.changes;
        if is_current {
            frame.used();
        }
        is_current
    }

    /// Adds an inner page to the path, using this thread's copy of it. Returns `None` if the thread has no current
    /// copy.
    pub(crate) fn by_copy(&mut self, id: PageId) -> Option<&Snapshot> {
        if self.is_pinning {
            return None;
        }
        let is_it = |copy: &mut Arc<Snapshot>| copy.id == id && self.is_as_copied(copy);
        self.pages.push(kept(id, |kept| kept.take_if(is_it)).flatten()?);
        self.pages.last().map(|page| &**page)
    }

    /// Adds an inner page, which the caller has latched, to the path. Returns a copy of the page.
    pub(crate) fn by(&mut self, page: &impl Latched) -> &Snapshot {
        let at = self.pages.len();
        let copy = page.snapshot(self.pool);
        if self.is_pinning
            && let Some(frame) = self.frames.get(copy.frame as usize)
        {
            // The caller's latch includes a pin, so the count does not rise from 0, and the map's lock is not needed.
            frame.pins.fetch_add(1, Ordering::Acquire);
            self.pinned.push(frame);
        }
        self.pages.push(copy);
        &self.pages[at]
    }

    /// Returns whether no page on the path has changed since it was copied.
    pub(crate) fn is_current(&self) -> bool {
        self.pages.iter().all(|page| self.is_as_copied(page))
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        for frame in &self.pinned {
            frame.pins.fetch_sub(1, Ordering::Release);
        }
        for page in self.pages.drain(..) {
            kept(page.id, |kept| *kept = Some(page));
        }
    }
}
