//! Inner pages of trees, looked at without latch or pin.
//!
//! Everybody comes by the inner pages of a tree, and hardly anybody changes them. A latch and a pin are words that each
//! of them would change, and so fetch from the core that had changed them before. Instead threads share a copy of such
//! a page, and compare a number that is changed with the page.
//!
//! Invariant 43: a frame's number of changes is another one before a change of an inner page in it can be seen, and before
//! the page can be in another frame. Whoever has latched a child, and after that finds the copies on the way to it
//! current, is where latches taken from the root on would have led: who splits a page or gives one back has it and its
//! parent latched together.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_logfmt::store::PageId;

/// Copies that a thread has at hand, each where its page's number says.
const AT_HAND: usize = 32;

/// A page as it was when its frame had seen so many changes.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The number of the cache.
    pub(super) pool: u64,
    pub(super) id: PageId,
    /// Its place in the cache, and the number of changes there.
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

/// Something done with what the thread keeps for a page; nothing in a thread that ends.
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

/// The number of another cache.
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
