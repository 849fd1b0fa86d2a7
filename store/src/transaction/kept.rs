//! The reservations of a transaction: room for its undo, for its commit, and for freeing chains after the commit.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::format::PageId;
use crate::table::TreeOfTable;
use crate::tree::Before;

/// The number of additional inner pages that undo may need when it splits leaves.
const INNER_PAGES: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The reserved room in the log.
    pub(super) room: Room,
    /// The reserved pages in the page file. Undo may need them to put back rows that are longer than the present ones.
    pages: u64,
    /// The leaves in which the transaction has freed space.
    leaves: FxHashMap<PageId, Leaf>,
}

/// The space that this transaction has freed in a leaf. Other transactions may use that space. Undo may then have to
/// split the leaf, so pages are reserved for the splits.
#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    freed: u64,
    pages: u64,
}

/// Returns how often a leaf may have to be split until `freed` more bytes fit into it. After a split, each half has a
/// quarter of a page free.
fn splits(page_bytes: u64, freed: u64) -> u64 {
    if freed == 0 { 0 } else { 1 + freed / (page_bytes / 4) }
}

/// A change of the catalog. When the transaction commits or is rolled back, the table's handles have to be updated.
#[derive(Debug)]
pub(super) struct Renamed {
    /// The number of steps that the transaction had made before this change.
    pub(super) steps: usize,
    /// The table, and whether it was dropped. `None` if the change neither made nor dropped a table.
    pub(super) tree: Option<(Arc<TreeOfTable>, bool)>,
}

impl Kept {
    /// Reserves pages for the undo of a change that makes a cell shorter by `shorter` bytes. The caller has the leaf
    /// latched.
    pub(super) fn keep_pages(
        &mut self,
        engine: &Engine,
        before: &Before<'_>,
        shorter: u64,
    ) -> Result<(), Error> {
        let page_bytes = engine.pager.pool.page_bytes() as u64;
        let leaf = self.leaves.entry(before.leaf).or_default();
        let wanted = splits(page_bytes, leaf.freed + shorter).saturating_sub(leaf.pages);
        if wanted > 0 {
            let inner = if self.pages == 0 { INNER_PAGES } else { 0 };
            engine.space.keep(&engine.pager, wanted + inner)?;
            leaf.pages += wanted;
            self.pages += wanted + inner;
        }
        leaf.freed += shorter;
        Ok(())
    }

    /// Gives back the log space for all steps after the first `steps`. The caller has undone these steps. `room` is
    /// what the transaction had reserved before them. Also gives back the reserved pages if no step is left.
    pub(super) fn back_to(&mut self, engine: &Engine, steps: usize, room: Room) {
        engine.admission.give_back(Room {
            bytes: self.room.bytes - room.bytes,
            objects: self.room.objects - room.objects,
        });
        self.room = room;
        if steps == 0 {
            self.give_up_pages(engine);
        }
    }

    fn give_up_pages(&mut self, engine: &Engine) {
        if self.pages > 0 {
            engine.space.give_up(std::mem::take(&mut self.pages));
        }
        self.leaves.clear();
    }

    /// Gives back everything, because the transaction can no longer be undone.
    pub(super) fn give_up(&mut self, engine: &Engine) {
        // A transaction that has reserved nothing skips this, because writing to counters that all threads share is
        // slow.
        if self.room != Room::default() {
            engine.admission.give_back(std::mem::take(&mut self.room));
        }
        self.give_up_pages(engine);
    }
}
