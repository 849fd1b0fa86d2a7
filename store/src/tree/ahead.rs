//! Which leaves a scan reaches next, and when to read them ahead.

use smallvec::SmallVec;

use crate::buffer::{MOST_AHEAD, Pool};
use crate::format::PageId;

/// Leaves are read ahead from this leaf in a row on, not counting the first one: a program that reads a few rows may
/// reach two leaves.
const FROM_LEAF: u32 = 2;
/// How many leaves are read ahead at first; the number doubles each time.
const FIRST: usize = 2;

/// The next leaves, as far as the page above names them.
pub(super) type Coming = SmallVec<[PageId; 2 * MOST_AHEAD]>;

/// How far a scan in one direction has read ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The leaf that the scan has reached, 0 before the first one, and the leaf after it, if the page above has one
    /// more.
    leaf: PageId,
    next: Option<PageId>,
    in_order: u32,
    /// How many leaves were read ahead last, and how many of these the scan has not reached.
    window: usize,
    left: usize,
    /// How many leaves after these the system was told to fetch.
    fetched: usize,
}

impl Ahead {
    /// How many of the next leaves the caller has to pass to `come_to`.
    pub(crate) fn most(&self) -> usize {
        let window = larger(self.window);
        if self.in_order + 1 >= FROM_LEAF && self.left <= 1 { window + larger(window) } else { 1 }
    }

    /// The scan has reached a leaf, and holds no latch.
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
        // If there is no room the window starts small again. If the page above has no more leaves, the window stays for
        // the next page.
        self.window = if self.left < first.len() { self.left } else { window };
        self.fetched = then.len();
    }
}

/// The window after a window of this size.
fn larger(window: usize) -> usize {
    (window * 2).clamp(FIRST, MOST_AHEAD)
}
