//! What a transaction has kept: room for taking back what it has done, for its commit, and for what comes after that.

use duralite_logfmt::store::{PageId, Value, leaf_value};
use rustc_hash::FxHashMap;

use super::Transaction;
use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::pager::Author;
use crate::tree::{Before, MayChange, Outcome, Tree, chain_pages};

/// Bytes of a log object besides what it is about.
pub(super) const OBJECT_OVERHEAD: u64 = 128;
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

/// A change that a transaction is about to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intent {
    pub(super) author: Author,
    /// Bytes of its object, splits not counted in.
    pub(super) bytes: u64,
    /// The tree.
    pub(super) root: PageId,
    /// Bytes of the cell that will be there.
    pub(super) new: u64,
}

/// How many times a leaf is split at most so that so many bytes can come back: a page that is split has room for a quarter
/// in either half.
fn splits(page_bytes: u64, freed: u64) -> u64 {
    if freed == 0 { 0 } else { 1 + freed / (page_bytes / 4) }
}

impl Kept {
    /// Keeps the pages that the change of a cell wants. Called with the leaf latched.
    fn keep_pages(&mut self, engine: &Engine, before: &Before<'_>, shorter: u64) -> Result<(), Error> {
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

    /// Gives up everything: nothing is to be taken back any more.
    pub(super) fn give_up(&mut self, engine: &Engine) {
        engine.admission.give_back(std::mem::take(&mut self.room));
        engine.space.give_up(std::mem::take(&mut self.pages));
        self.leaves.clear();
    }
}

impl Transaction {
    /// Keeps room in the log to the end of the transaction, waiting for a checkpoint to make some.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(super) fn keep(&mut self, room: Room) -> Result<(), Error> {
        let engine = &self.running.engine;
        engine.admission.keep(room, self.kept.room, engine.tuning.lock_timeout)?;
        self.kept.room.bytes += room.bytes;
        self.kept.room.objects += room.objects;
        Ok(())
    }

    /// Changes a row, once there is room for the change, for taking it back, and for giving back the chain of a long value
    /// after the commit; whether there was a row to be changed.
    pub(super) fn change_row(
        &mut self,
        intent: Intent,
        change: impl Fn(Tree<'_>, &mut MayChange<'_>) -> Result<Outcome, Error>,
    ) -> Result<bool, Error> {
        let admitted = self.admit(intent.bytes)?;
        let mut chain = 0;
        let outcome = loop {
            let mut wanted = 0;
            let Self { running, kept, .. } = self;
            let engine = &running.engine;
            let mut may = |before: &Before<'_>| {
                wanted = chain_of(engine, before);
                if wanted > chain {
                    // Room may have to be waited for: not with a latch.
                    return Ok(false);
                }
                let old = before.old.map_or(0, <[u8]>::len) as u64;
                if old > intent.new {
                    kept.keep_pages(engine, before, old - intent.new)?;
                }
                Ok(true)
            };
            let outcome = change(engine.tree(intent.root), &mut may);
            if !matches!(outcome, Ok(Outcome::Refused)) {
                break outcome;
            }
            let more = wanted - chain;
            if let Err(error) = self.keep(Room { bytes: more * OBJECT_OVERHEAD, objects: more }) {
                break Err(error);
            }
            chain = wanted;
        };
        self.admitted(admitted);
        match outcome? {
            Outcome::Changed(changed) => self.add_step(changed.logged, changed.undo),
            Outcome::NoRow | Outcome::Refused => return Ok(false),
        }
        Ok(true)
    }
}

/// How many pages the long value has that a cell stands for.
fn chain_of(engine: &Engine, before: &Before<'_>) -> u64 {
    match before.old.map(leaf_value) {
        Some(Ok(Value::Long { bytes, .. })) => chain_pages(engine.pager.pool.page_bytes(), bytes),
        _ => 0,
    }
}
