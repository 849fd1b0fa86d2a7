//! Shared copies of the inner pages of trees, which threads read without a latch or a pin.
//!
//! Every thread goes through the inner pages of a tree, and hardly any thread changes them. A latch and a pin are words
//! that every thread would write, so their cache lines would move from core to core. Instead threads share a copy of
//! such a page, and check a number that changes whenever the page does.
//!
//! Invariant 43: each frame has a change number. A thread that changes the inner page in a frame increases that number
//! before the change becomes visible. A thread that evicts the page increases it before the page can come into another
//! frame. A thread latches a child, and then checks that the copies on its path are current. If they are, latching
//! every page from the root down would have led it to the same child. The reason is that a thread that splits or frees
//! a page latches that page and its parent together.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::PageId;

/// The number of copies that each thread keeps, each at the index `page mod AT_HAND`.
const AT_HAND: usize = 32;

/// A copy of a page, made when the change number of its frame was `changes`.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The number of the cache that the page is in.
    pub(super) pool: u64,
    pub(super) id: PageId,
    /// The index of the page's frame in the cache, and the frame's change number.
    pub(super) frame: u32,
    pub(super) changes: u64,
    pub(super) bytes: Box<[u8]>,
}

impl Snapshot {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Option<Arc<Snapshot>>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with this thread's slot for copies of a page. Returns `None` if the thread is ending.
pub(super) fn kept<T>(id: PageId, work: impl FnOnce(&mut Option<Arc<Snapshot>>) -> T) -> Option<T> {
    let with = |all: &RefCell<Vec<_>>| {
        let mut all = all.borrow_mut();
        if all.is_empty() {
            all.resize(AT_HAND, None);
        }
        all.get_mut((id % AT_HAND as u64) as usize).map(work)
    };
    KEPT.try_with(with).ok().flatten()
}

/// Returns a number that no other cache in the process has.
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
