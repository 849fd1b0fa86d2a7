//! Rows in order, one leaf at a time: nothing is held between leaves, each is found from the root.

use std::ops::Bound;

use duralite_logfmt::store::{PageKind, cell, cell_count, cell_key, child_for, level, search};

use super::{Tree, child_of, damaged, is_leaf};
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

impl<'a> Tree<'a> {
    /// Rows from the range's beginning on, of the leaf that has it.
    pub(crate) fn first_piece(&self, from: Edge<'_>, to: Edge<'_>, want: Want) -> Result<Piece, Error> {
        let mut page = self.pager.pool.read(self.root)?;
        let mut fence = None;
        let mut above = None;
        while !is_leaf(page.bytes(), page.id(), above)? {
            above = Some(level(page.bytes()));
            let place = match from {
                Bound::Included(key) | Bound::Excluded(key) => {
                    child_for(page.bytes(), key).map_err(damaged(page.id()))?
                }
                Bound::Unbounded => 0,
            };
            if place < cell_count(page.bytes()) {
                fence = Some(key_of(&page, PageKind::Inner, place)?.to_vec());
            }
            page = self.child(&page, place)?;
        }
        let first = match from {
            Bound::Included(key) => position(&page, key)?.0,
            Bound::Excluded(key) => position(&page, key)?.1,
            Bound::Unbounded => 0,
        };
        let end = end_of(&page, to)?.max(first);
        let stop = end.min(first.saturating_add(want.most()));
        let first = if want == Want::Rows { first } else { first.max(stop.saturating_sub(1)) };
        Ok(Piece { cells: cells(&page, first, stop)?, fence, is_cut: stop < end })
    }

    /// Rows before the range's end, of the leaf that has it.
    pub(crate) fn last_piece(&self, from: Edge<'_>, to: Edge<'_>, want: Want) -> Result<Piece, Error> {
        let mut page = self.pager.pool.read(self.root)?;
        let mut fence = None;
        let mut above = None;
        while !is_leaf(page.bytes(), page.id(), above)? {
            above = Some(level(page.bytes()));
            let place = match to {
                Bound::Included(key) => child_for(page.bytes(), key).map_err(damaged(page.id()))?,
                // The child with what is below the key.
                Bound::Excluded(key) => position(&page, key)?.0,
                Bound::Unbounded => cell_count(page.bytes()),
            };
            if let Some(index) = place.checked_sub(1) {
                fence = Some(key_of(&page, PageKind::Inner, index)?.to_vec());
            }
            page = self.child(&page, place)?;
        }
        let first = match from {
            Bound::Included(key) => position(&page, key)?.0,
            Bound::Excluded(key) => position(&page, key)?.1,
            Bound::Unbounded => 0,
        };
        let end = end_of(&page, to)?.max(first);
        let begin = first.max(end.saturating_sub(want.most()));
        let stop = if want == Want::Rows { end } else { end.min(begin + 1) };
        Ok(Piece { cells: cells(&page, begin, stop)?, fence, is_cut: begin > first })
    }

    fn child(&self, page: &Reading<'_>, place: usize) -> Result<Reading<'a>, Error> {
        self.pager.pool.read(child_of(page.bytes(), page.id(), place)?)
    }
}

fn key_of<'b>(page: &'b Reading<'_>, kind: PageKind, index: usize) -> Result<&'b [u8], Error> {
    let damaged = damaged(page.id());
    cell_key(kind, cell(page.bytes(), index).map_err(&damaged)?).map_err(&damaged)
}

/// The first cell that is not below a key, and the first above it.
fn position(page: &Reading<'_>, key: &[u8]) -> Result<(usize, usize), Error> {
    Ok(match search(page.bytes(), key).map_err(damaged(page.id()))? {
        Ok(index) => (index, index + 1),
        Err(index) => (index, index),
    })
}

/// The first cell behind a range.
fn end_of(page: &Reading<'_>, to: Edge<'_>) -> Result<usize, Error> {
    Ok(match to {
        Bound::Included(key) => position(page, key)?.1,
        Bound::Excluded(key) => position(page, key)?.0,
        Bound::Unbounded => cell_count(page.bytes()),
    })
}

fn cells(page: &Reading<'_>, first: usize, end: usize) -> Result<Vec<Vec<u8>>, Error> {
    let one = |index| Ok(cell(page.bytes(), index).map_err(damaged(page.id()))?.to_vec());
    (first..end).map(one).collect()
}
