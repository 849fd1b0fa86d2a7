//! A leaf as it was at one moment: its latch is held for as long as copying a page takes.

use std::ops::Bound;

use duralite_logfmt::store::{PageId, cell, cell_count};

use super::cursor::{Edge, key_of, position};
use super::{Tree, damaged, place_for};
use crate::error::Error;

/// A copy of a leaf.
#[derive(Debug)]
pub(crate) struct LeafCopy {
    id: PageId,
    bytes: Box<[u8]>,
    /// Where the next leaf begins, if it was read forward, or where this one does, if backward; `None` at the table's end.
    pub(crate) fence: Option<Vec<u8>>,
}

impl Tree<'_> {
    /// The leaf that has a range's beginning.
    pub(crate) fn first_leaf(&self, from: Edge<'_>) -> Result<LeafCopy, Error> {
        self.copied(|page, id, fence| {
            let place = match from {
                Bound::Included(key) | Bound::Excluded(key) => place_for(page, id, key)?,
                Bound::Unbounded => 0,
            };
            if place < cell_count(page) {
                *fence = Some(key_of(page, id, place)?.to_vec());
            }
            Ok(place)
        })
    }

    /// The leaf that has a range's end.
    pub(crate) fn last_leaf(&self, to: Edge<'_>) -> Result<LeafCopy, Error> {
        self.copied(|page, id, fence| {
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
        })
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
