//! Rows in order, one leaf at a time: nothing is held between leaves, each is found from the root.

use std::ops::{Bound, RangeBounds as _};

use duralite_logfmt::store::{PageId, PageKind, cell, cell_count, cell_key, search};

use super::{Tree, damaged, place_for};
use crate::buffer::Reading;
use crate::error::Error;
use crate::range::{Edge, Edges, edge, is_below, is_later};

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

/// A leaf as it was at one moment: its latch is held for as long as copying a page takes.
#[derive(Debug)]
pub(crate) struct LeafCopy {
    id: PageId,
    bytes: Box<[u8]>,
    /// Where the next leaf begins, if it was read forward, or where this one does, if backward; `None` at the table's end.
    pub(crate) fence: Option<Vec<u8>>,
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

/// The place of the child that has a range's beginning, with where the next one begins.
fn first_child(page: &[u8], id: PageId, from: Edge<'_>, fence: &mut Option<Vec<u8>>) -> Result<usize, Error> {
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
fn last_child(page: &[u8], id: PageId, to: Edge<'_>, fence: &mut Option<Vec<u8>>) -> Result<usize, Error> {
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

impl Tree<'_> {
    /// The leaf that has a range's beginning.
    pub(crate) fn first_leaf(&self, from: Edge<'_>) -> Result<LeafCopy, Error> {
        self.copied(|page, id, fence| first_child(page, id, from, fence))
    }

    /// The leaf that has a range's end.
    pub(crate) fn last_leaf(&self, to: Edge<'_>) -> Result<LeafCopy, Error> {
        self.copied(|page, id, fence| last_child(page, id, to, fence))
    }

    fn copied(
        &self,
        choose: impl Fn(&[u8], PageId, &mut Option<Vec<u8>>) -> Result<usize, Error>,
    ) -> Result<LeafCopy, Error> {
        let (page, fence) = self.down(|id| self.pager.pool.read(id), choose)?;
        Ok(LeafCopy { id: page.id(), bytes: page.bytes().into(), fence })
    }
}

impl LeafCopy {
    /// Its cells, in ascending order.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Result<&[u8], Error>> {
        (0..cell_count(&self.bytes)).map(|index| cell(&self.bytes, index).map_err(damaged(self.id)))
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
        let mut rows = 0;
        self.each_cell((Bound::Unbounded, Bound::Unbounded), |_, _| {
            rows += 1;
            Ok(())
        })?;
        Ok(rows)
    }

    /// Gives the key and the cell of each row of a range, a leaf at a time: of what is changed meanwhile some or all. Ends early where
    /// leaves are out of order.
    pub(crate) fn each_cell(
        &self,
        (from, to): Edges<'_>,
        mut give: impl FnMut(&[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut from = from.map(<[u8]>::to_vec);
        loop {
            let range = (edge(&from), to);
            let leaf = self.first_leaf(range.0)?;
            for cell in leaf.cells() {
                let cell = cell?;
                let key = cell_key(PageKind::Leaf, cell).map_err(damaged(leaf.id))?;
                if range.contains(key) {
                    give(key, cell)?;
                }
            }
            let next = leaf.fence.filter(|fence| is_below(fence, to)).map(Bound::Included);
            match next.filter(|next| is_later(range.0, edge(next))) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

/// A key of an inner page.
fn key_of(page: &[u8], id: PageId, index: usize) -> Result<&[u8], Error> {
    cell_key(PageKind::Inner, cell(page, index).map_err(damaged(id))?).map_err(damaged(id))
}

/// The first cell that is not below a key, and the first above it.
fn position(page: &[u8], id: PageId, key: &[u8]) -> Result<(usize, usize), Error> {
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
