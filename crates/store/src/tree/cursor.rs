//! Rows in order, one leaf at a time: nothing is held between leaves, each is found from the root.

use std::ops::Bound;

use duralite_logfmt::store::{PageId, PageKind, cell, cell_count, cell_key, search};

use super::{Tree, damaged, place_for};
use crate::buffer::Reading;
use crate::error::Error;

/// What one leaf has of a range.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// The rows' cells in ascending order.
    pub(crate) cells: Vec<Vec<u8>>,
    /// Where the next leaf begins, if it was read forward, or where this one does, if backward; `None` at the
    /// table's end.
    pub(crate) fence: Option<Vec<u8>>,
    /// Whether there are more rows of the range in this leaf.
    pub(crate) is_cut: bool,
}

/// What is wanted of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Where a piece with so many rows ends: of its cells only the last one in the direction of reading.
    End(usize),
    /// All rows.
    Rows,
}

impl Want {
    fn most(self) -> usize {
        match self {
            Self::End(most) => most,
            Self::Rows => usize::MAX,
        }
    }
}

/// A bound of a range, as it is asked for.
pub(crate) type Edge<'a> = Bound<&'a [u8]>;

/// The place of the child that has a range's beginning, with where the next one begins.
pub(super) fn first_child(
    page: &[u8],
    id: PageId,
    from: Edge<'_>,
    fence: &mut Option<Vec<u8>>,
) -> Result<usize, Error> {
    let place = match from {
        Bound::Included(key) | Bound::Excluded(key) => place_for(page, id, key)?,
        Bound::Unbounded => 0,
    };
    if place < cell_count(page) {
        *fence = Some(key_of(page, id, place)?.to_vec());
    }
    Ok(place)
}

/// The place of the child that has a range's end, with where that one begins.
pub(super) fn last_child(
    page: &[u8],
    id: PageId,
    to: Edge<'_>,
    fence: &mut Option<Vec<u8>>,
) -> Result<usize, Error> {
    let place = match to {
        Bound::Included(key) => place_for(page, id, key)?,
        // The child with what is below the key.
        Bound::Excluded(key) => position(page, id, key)?.0,
        Bound::Unbounded => cell_count(page),
    };
    if let Some(index) = place.checked_sub(1) {
        *fence = Some(key_of(page, id, index)?.to_vec());
    }
    Ok(place)
}

impl<'a> Tree<'a> {
    /// Rows from the range's beginning on, of the leaf that has it.
    pub(crate) fn first_piece(&self, from: Edge<'_>, to: Edge<'_>, want: Want) -> Result<Piece, Error> {
        let (page, fence) =
            self.down(|id| self.pager.pool.read(id), |page, id, fence| first_child(page, id, from, fence))?;
        let first = match from {
            Bound::Included(key) => position(page.bytes(), page.id(), key)?.0,
            Bound::Excluded(key) => position(page.bytes(), page.id(), key)?.1,
            Bound::Unbounded => 0,
        };
        let end = end_of(&page, to)?.max(first);
        let stop = end.min(first.saturating_add(want.most()));
        let first = if want == Want::Rows { first } else { first.max(stop.saturating_sub(1)) };
        Ok(Piece { cells: cells(&page, first, stop)?, fence, is_cut: stop < end })
    }

    /// Rows before the range's end, of the leaf that has it.
    pub(crate) fn last_piece(&self, from: Edge<'_>, to: Edge<'_>, want: Want) -> Result<Piece, Error> {
        let (page, fence) =
            self.down(|id| self.pager.pool.read(id), |page, id, fence| last_child(page, id, to, fence))?;
        let first = match from {
            Bound::Included(key) => position(page.bytes(), page.id(), key)?.0,
            Bound::Excluded(key) => position(page.bytes(), page.id(), key)?.1,
            Bound::Unbounded => 0,
        };
        let end = end_of(&page, to)?.max(first);
        let begin = first.max(end.saturating_sub(want.most()));
        let stop = if want == Want::Rows { end } else { end.min(begin + 1) };
        Ok(Piece { cells: cells(&page, begin, stop)?, fence, is_cut: begin > first })
    }
}

/// Ways down a tree that its number of rows is told from.
const WAYS: usize = 16;

impl Tree<'_> {
    /// About how many rows there are: the mean, over a few ways down, of what the tree would have if all of it was like that. Exact
    /// if there are no more leaves than ways.
    pub(crate) fn approximate_len(&self) -> Result<u64, Error> {
        let mut rows = 0.0;
        let mut leaves = 0.0_f64;
        for nth in 0..WAYS {
            // Which part of what is below a page, from 0 to 1.
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
        let mut from = Bound::Unbounded;
        let mut rows = 0;
        loop {
            let edge = from.as_ref().map(Vec::as_slice);
            let piece = self.first_piece(edge, Bound::Unbounded, Want::Rows)?;
            rows += piece.cells.len() as u64;
            match piece.fence {
                Some(fence) if !matches!(&from, Bound::Included(before) if *before >= fence) => {
                    from = Bound::Included(fence);
                }
                _ => return Ok(rows),
            }
        }
    }
}

/// A key of an inner page.
pub(super) fn key_of(page: &[u8], id: PageId, index: usize) -> Result<&[u8], Error> {
    cell_key(PageKind::Inner, cell(page, index).map_err(damaged(id))?).map_err(damaged(id))
}

/// The first cell that is not below a key, and the first above it.
pub(super) fn position(page: &[u8], id: PageId, key: &[u8]) -> Result<(usize, usize), Error> {
    Ok(match search(page, key).map_err(damaged(id))? {
        Ok(index) => (index, index + 1),
        Err(index) => (index, index),
    })
}

/// The first cell behind a range.
fn end_of(page: &Reading<'_>, to: Edge<'_>) -> Result<usize, Error> {
    Ok(match to {
        Bound::Included(key) => position(page.bytes(), page.id(), key)?.1,
        Bound::Excluded(key) => position(page.bytes(), page.id(), key)?.0,
        Bound::Unbounded => cell_count(page.bytes()),
    })
}

fn cells(page: &Reading<'_>, first: usize, end: usize) -> Result<Vec<Vec<u8>>, Error> {
    let one = |index| Ok(cell(page.bytes(), index).map_err(damaged(page.id()))?.to_vec());
    (first..end).map(one).collect()
}
