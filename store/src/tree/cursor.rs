//! Reads rows in order, one leaf at a time. Between leaves, a scan holds no latch, so it goes down from the root again
//! for each leaf.

use std::ops::{Bound, Range};

use super::ahead::{Ahead, Coming};
use super::{Tree, child_of, damaged, place_for};
use crate::error::Error;
use crate::format::{PageId, PageKind, cell, cell_count, cell_key, level, lsn, search};
use crate::range::{Edges, edge, is_above, is_below, is_later};

/// A copy of a leaf. The leaf is latched only while it is copied.
#[derive(Debug)]
pub(crate) struct LeafCopy {
    id: PageId,
    bytes: Box<[u8]>,
    /// For a forward scan, the key at which the next leaf begins; for a backward scan, the key at which this leaf
    /// begins. `None` if no further leaf follows in the scan's direction.
    pub(crate) fence: Option<Vec<u8>>,
}

/// Some rows of one leaf. They can be taken from either end.
#[derive(Debug, Default)]
pub(crate) struct Rows(Option<LeafCopy>, Range<usize>);

/// What the inner pages above a leaf show: the leaf's fence (see `LeafCopy`), and the next leaves in the order of the
/// scan.
#[derive(Debug, Default)]
struct Beside {
    fence: Option<Vec<u8>>,
    coming: Coming,
}

impl Beside {
    /// Finds the child that covers the beginning of a range, and returns the child's index.
    fn first(&mut self, page: &[u8], id: PageId, (from, to): Edges<'_>, most: usize) -> Result<usize, Error> {
        let place = match from {
            Bound::Included(key) | Bound::Excluded(key) => place_for(page, id, key)?,
            Bound::Unbounded => 0,
        };
        let count = cell_count(page);
        if place < count {
            self.fence = Some(key_of(page, id, place)?.to_vec());
        }
        if level(page) == 1 {
            for index in (place..count).take(most) {
                if !is_below(key_of(page, id, index)?, to) {
                    break;
                }
                self.coming.push(child_of(page, id, index + 1)?);
            }
        }
        Ok(place)
    }

    /// Finds the child that covers the end of a range, and returns the child's index.
    fn last(&mut self, page: &[u8], id: PageId, (from, to): Edges<'_>, most: usize) -> Result<usize, Error> {
        let place = match to {
            Bound::Included(key) => place_for(page, id, key)?,
            // The end is excluded, so this is the child with the keys below `key`.
            Bound::Excluded(key) => position(page, id, key)?.0,
            Bound::Unbounded => cell_count(page),
        };
        if let Some(index) = place.checked_sub(1) {
            self.fence = Some(key_of(page, id, index)?.to_vec());
        }
        if level(page) == 1 {
            for index in (0..place).rev().take(most) {
                if !is_above(key_of(page, id, index)?, from) {
                    break;
                }
                self.coming.push(child_of(page, id, index)?);
            }
        }
        Ok(place)
    }
}

impl Tree<'_> {
    /// Copies the leaf that covers the beginning of a range.
    pub(crate) fn first_leaf(&self, range: Edges<'_>, ahead: &mut Ahead) -> Result<LeafCopy, Error> {
        let most = ahead.most();
        self.copied(ahead, |page, id, beside: &mut Beside| beside.first(page, id, range, most))
    }

    /// Copies the leaf that covers the end of a range.
    pub(crate) fn last_leaf(&self, range: Edges<'_>, ahead: &mut Ahead) -> Result<LeafCopy, Error> {
        let most = ahead.most();
        self.copied(ahead, |page, id, beside: &mut Beside| beside.last(page, id, range, most))
    }

    fn copied(
        &self,
        ahead: &mut Ahead,
        choose: impl Fn(&[u8], PageId, &mut Beside) -> Result<usize, Error>,
    ) -> Result<LeafCopy, Error> {
        let (page, Beside { fence, coming }) = self.down(|id| self.pager.pool.read(id), choose)?;
        let leaf = LeafCopy { id: page.id(), bytes: page.bytes().into(), fence };
        drop(page);
        ahead.come_to(&self.pager.pool, leaf.id, &coming);
        Ok(leaf)
    }

    /// Returns true only if the leaf has certainly not changed since it was copied, so that it still has all rows of
    /// the copied range. That is certain if the copy has rows, and the leaf still has the same LSN (see
    /// [`Found`](super::Found)). The leaf's range may have grown, because a leaf takes over the range of a neighbour
    /// that is freed.
    pub(crate) fn is_current(&self, leaf: &LeafCopy) -> bool {
        // If the page cannot be read, this returns false, and the scan's next descent from the root reports the error.
        let now = self.pager.pool.read(leaf.id).ok();
        cell_count(&leaf.bytes) > 0 && now.is_some_and(|now| lsn(now.bytes()) == lsn(&leaf.bytes))
    }
}

impl LeafCopy {
    /// Returns the indexes of the rows that are in a range.
    pub(crate) fn places(&self, (from, to): Edges<'_>) -> Result<Range<usize>, Error> {
        let first = match from {
            Bound::Included(key) => position(&self.bytes, self.id, key)?.0,
            Bound::Excluded(key) => position(&self.bytes, self.id, key)?.1,
            Bound::Unbounded => 0,
        };
        let end = match to {
            Bound::Included(key) => position(&self.bytes, self.id, key)?.1,
            Bound::Excluded(key) => position(&self.bytes, self.id, key)?.0,
            Bound::Unbounded => cell_count(&self.bytes),
        };
        Ok(first..end.max(first))
    }

    /// Returns the cell at this index.
    pub(crate) fn cell(&self, place: usize) -> Result<&[u8], Error> {
        cell(&self.bytes, place).map_err(damaged(self.id))
    }

    /// Returns the key at this index.
    pub(crate) fn key(&self, place: usize) -> Result<&[u8], Error> {
        cell_key(PageKind::Leaf, self.cell(place)?).map_err(damaged(self.id))
    }

    /// Returns the rows at these indexes.
    pub(crate) fn rows(self, places: Range<usize>) -> Rows {
        Rows(Some(self), places)
    }
}

impl Rows {
    pub(crate) fn is_empty(&self) -> bool {
        self.1.is_empty()
    }

    /// Removes the first row, and returns its cell.
    pub(crate) fn pop_front(&mut self) -> Option<Result<&[u8], Error>> {
        let place = self.1.next()?;
        self.0.as_ref().map(|leaf| leaf.cell(place))
    }

    /// Removes the last row, and returns its cell.
    pub(crate) fn pop_back(&mut self) -> Option<Result<&[u8], Error>> {
        let place = self.1.next_back()?;
        self.0.as_ref().map(|leaf| leaf.cell(place))
    }

    /// Skips the rows with keys below `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        if let Some(leaf) = &self.0 {
            let from = leaf.places((Bound::Included(key), Bound::Unbounded))?.start;
            self.1.start = from.clamp(self.1.start, self.1.end);
        }
        Ok(())
    }
}

/// To estimate how many rows a tree has, the store follows this many paths down the tree.
const WAYS: usize = 16;

impl Tree<'_> {
    /// Returns about how many rows there are. Follows a few paths down the tree. For each path, computes how many rows
    /// the tree would have if the pages of each level had as many entries as the page on this path. Returns the mean.
    /// If there are no more leaves than paths, counts the rows exactly.
    pub(crate) fn approximate_len(&self) -> Result<u64, Error> {
        let mut rows = 0.0;
        let mut leaves = 0.0_f64;
        for nth in 0..WAYS {
            // The position of the path within the part of the tree below the current page: 0 is the left end of that
            // part, and 1 its right end.
            let part = std::cell::Cell::new((nth as f64 + 0.5) / WAYS as f64);
            let choose = |page: &[u8], _, children: &mut Vec<usize>| {
                let count = cell_count(page) + 1;
                let at = part.get() * count as f64;
                let place = (at as usize).min(count - 1);
                part.set(at - place as f64);
                children.push(count);
                Ok(place)
            };
            let (leaf, children) = self.down(|id| self.pager.pool.read(id), choose)?;
            let weight: f64 = children.iter().map(|count| *count as f64).product();
            rows += weight * cell_count(leaf.bytes()) as f64 / WAYS as f64;
            leaves = leaves.max(weight);
        }
        if leaves > WAYS as f64 { Ok(rows.round() as u64) } else { self.count() }
    }

    fn count(&self) -> Result<u64, Error> {
        let mut rows = 0;
        self.each_cell((Bound::Unbounded, Bound::Unbounded), |_, _| {
            rows += 1;
            Ok(())
        })?;
        Ok(rows)
    }

    /// Passes the key and the cell of each row in a range to `give`, leaf by leaf. Changes that other threads make
    /// meanwhile may or may not be included. Ends early if leaves are out of order.
    pub(crate) fn each_cell(
        &self,
        (from, to): Edges<'_>,
        mut give: impl FnMut(&[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut from = from.map(<[u8]>::to_vec);
        let mut ahead = Ahead::default();
        loop {
            let range = (edge(&from), to);
            let leaf = self.first_leaf(range, &mut ahead)?;
            for place in leaf.places(range)? {
                give(leaf.key(place)?, leaf.cell(place)?)?;
            }
            let next = leaf.fence.filter(|fence| is_below(fence, to)).map(Bound::Included);
            match next.filter(|next| is_later(range.0, edge(next))) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

/// Returns the key at this index of an inner page.
fn key_of(page: &[u8], id: PageId, index: usize) -> Result<&[u8], Error> {
    cell_key(PageKind::Inner, cell(page, index).map_err(damaged(id))?).map_err(damaged(id))
}

/// Returns the index of the first cell whose key is not below `key`, and of the first one whose key is above it.
fn position(page: &[u8], id: PageId, key: &[u8]) -> Result<(usize, usize), Error> {
    Ok(match search(page, key).map_err(damaged(id))? {
        Ok(index) => (index, index + 1),
        Err(index) => (index, index),
    })
}
