//! Which leaves a scan comes to next, and when they are read.

use duralite_logfmt::store::PageId;
use smallvec::SmallVec;

use crate::buffer::{MOST_AHEAD, Pool};

/// From this leaf in a row on, the first one not counted in, leaves are read ahead: whoever looks at a few rows may see two.
const FROM_LEAF: u32 = 2;
/// Leaves that are read ahead at first; then twice as many each time.
const FIRST: usize = 2;

/// Leaves that come next, as far as the page above says.
pub(super) type Coming = SmallVec<[PageId; 2 * MOST_AHEAD]>;

/// How far a scan in one direction has read ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Where it is, 0 before it has begun, and the leaf that comes next, if the page above has one more.
    leaf: PageId,
    next: Option<PageId>,
    in_order: u32,
    /// Leaves that were read at a time, and those that are still to come of them.
    window: usize,
    left: usize,
    /// Leaves behind those that the system was told to fetch.
    fetched: usize,
}

impl Ahead {
    /// How many of the leaves that come next it has to know.
    pub(crate) fn most(&self) -> usize {
        let window = larger(self.window);
        if self.in_order + 1 >= FROM_LEAF && self.left <= 1 { window + larger(window) } else { 1 }
    }

    /// The scan has come to a leaf, and has no latch.
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
        // Where there is no room it begins anew; where the page above has no more it goes on so with the next one.
        self.window = if self.left < first.len() { self.left } else { window };
        self.fetched = then.len();
    }
}

/// How many leaves are read after so many.
fn larger(window: usize) -> usize {
    (window * 2).clamp(FIRST, MOST_AHEAD)
}
