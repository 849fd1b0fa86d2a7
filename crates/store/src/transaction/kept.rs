//! What a transaction has kept: room for taking back what it has done, for its commit, and for what comes after that.

use std::sync::Arc;

use duralite_logfmt::store::PageId;
use rustc_hash::FxHashMap;

use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::table::TreeOfTable;
use crate::tree::Before;

/// Pages that may be needed above the leaves, whatever is taken back.
const INNER_PAGES: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// In the log.
    pub(super) room: Room,
    /// In the page file, for putting back what is longer than what is there.
    pages: u64,
    /// The leaves of such rows.
    leaves: FxHashMap<PageId, Leaf>,
}

/// A leaf in which others may fill what a transaction has made free.
#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    freed: u64,
    pages: u64,
}

/// How many times a leaf is split at most so that so many bytes can come back: a page that is split has room for a quarter
/// in either half.
fn splits(page_bytes: u64, freed: u64) -> u64 {
    if freed == 0 { 0 } else { 1 + freed / (page_bytes / 4) }
}

/// A change of the table of tables that handles have to be told of.
#[derive(Debug)]
pub(super) struct Renamed {
    /// The steps before it.
    pub(super) steps: usize,
    /// The table that it has made or dropped, and whether it is gone if the transaction commits.
    pub(super) tree: Option<(Arc<TreeOfTable>, bool)>,
}

impl Kept {
    /// Keeps the pages that the change of a cell wants. Called with the leaf latched.
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

    /// Gives up the room in the log for what came after so many steps, which has been taken back; of pages only where there are
    /// none before.
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

    /// Gives up everything: nothing is to be taken back any more.
    pub(super) fn give_up(&mut self, engine: &Engine) {
        // Who has changed nothing changes no word that others count in.
        if self.room != Room::default() {
            engine.admission.give_back(std::mem::take(&mut self.room));
        }
        self.give_up_pages(engine);
    }
}
