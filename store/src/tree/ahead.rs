//! Decides when a scan reads leaves ahead, and which ones.

use smallvec::SmallVec;

use crate::buffer::{MOST_AHEAD, Pool};
use crate::format::PageId;

/// The number of leaves that a scan must reach in order before it reads ahead, not counting its first leaf. A program
/// that reads only a few rows may reach two leaves, and nothing should be read ahead for it.
const FROM_LEAF: u32 = 2;
/// The number of leaves that are read ahead the first time. The number then doubles each time.
const FIRST: usize = 2;

/// The next leaves in the order of the scan, as far as they have the same parent page.
pub(super) type Coming = SmallVec<[PageId; 2 * MOST_AHEAD]>;

/// The state of reading ahead, for a scan in one direction.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The leaf that the scan has reached (0 before the first one), and the leaf after it, if both have the same parent
    /// page.
    leaf: PageId,
    next: Option<PageId>,
    in_order: u32,
    /// How many leaves were read ahead the last time (`window`), and how many of them the scan has not reached yet
    /// (`left`).
    window: usize,
    left: usize,
    /// The number of leaves after the window that the system was told to fetch.
    fetched: usize,
}

impl Ahead {
    /// Returns how many of the next leaves the caller has to pass to [`come_to`](Self::come_to).
    pub(crate) fn most(&self) -> usize {
        let window = larger(self.window);
        if self.in_order + 1 >= FROM_LEAF && self.left <= 1 { window + larger(window) } else { 1 }
    }

    /// Notes that the scan has reached a leaf, and reads leaves ahead if it is time to. The caller holds no latch.
    pub(crate) fn come_to(&mut self, pool: &Pool, leaf: PageId, coming: &[PageId]) {
        if leaf == self.leaf {
            return;
        }
        let is_in_order = self.leaf != 0 && self.next.is_none_or(|next| next == leaf);
        self.leaf = leaf;
        self.next = coming.first().copied();
        if !is_in_order {
            *self = Self { leaf, next: self.next, ..Self::default() };
            return;
        }
        self.in_order = self.in_order.saturating_add(1);
        self.left = self.left.saturating_sub(1);
        if self.in_order < FROM_LEAF || self.left > 0 {
            return;
        }
        let window = larger(self.window);
        let (first, then) = coming.split_at(window.min(coming.len()));
        let is_fetched = self.fetched >= first.len();
        self.left = pool.read_ahead(first, then, is_fetched);
        // If the cache had room for only some of these leaves, the window shrinks to that number. If only the parent
        // page pointed to fewer leaves, the window keeps its size.
        self.window = if self.left < first.len() { self.left } else { window };
        self.fetched = then.len();
    }
}

/// Returns the size of the window that follows one of this size.
fn larger(window: usize) -> usize {
    (window * 2).clamp(FIRST, MOST_AHEAD)
}
