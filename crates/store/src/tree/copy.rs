//! A leaf as it was at one moment: its latch is held for as long as copying a page takes.

use duralite_logfmt::store::{PageId, cell, cell_count};

use super::cursor::{Edge, first_child, last_child};
use super::{Tree, damaged};
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
