//! Changes a row, after reserving room for the change and for its undo.

use std::sync::Arc;

use super::Transaction;
use crate::admission::Room;
use crate::controls::Rule;
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{PageId, Value, leaf_value};
use crate::noting;
use crate::pager::{Author, Logged};
use crate::tree::{Before, Found, MayChange, Outcome, Tree, chain_pages};

/// The largest number of bytes that a log object has in addition to its content.
pub(super) const OBJECT_OVERHEAD: u64 = 128;

/// A change that a transaction is about to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intent<'k> {
    pub(super) author: Author,
    pub(super) key: &'k [u8],
    /// The size of the change's log object in bytes, without the objects of page splits.
    pub(super) bytes: u64,
    /// The root of the row's tree.
    pub(super) root: PageId,
    /// The size of the new cell in bytes.
    pub(super) new: u64,
    /// The leaf in which the row was last found.
    pub(super) found: Option<Found>,
}

impl Transaction {
    /// Reserves room in the log until the end of the transaction. If the log has no room, waits until a checkpoint
    /// frees some.
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

    /// Changes a row. First reserves room for the change, for its undo, and for freeing the old long value's chain
    /// after the commit. Returns whether there was a row to change.
    pub(super) fn change_row(
        &mut self,
        intent: Intent<'_>,
        change: impl Fn(Tree<'_>, &mut MayChange<'_>) -> Result<Outcome, Error>,
    ) -> Result<bool, Error> {
        let admitted = self.admit(intent.bytes)?;
        let mut chain = 0;
        let undoable = Arc::clone(self.undoable.get_or_insert_default());
        // Holds the mutex `busy` until the step is on the transaction's list, but not while it waits for room.
        let mut busy = undoable.busy.lock();
        let mut noting = None;
        let outcome = loop {
            let mut wanted = 0;
            let Self { running, kept, .. } = self;
            let engine = &running.engine;
            let mut may = |before: &Before<'_>| {
                wanted = chain_of(engine, before);
                if wanted > chain {
                    // More room is needed, and the thread may have to wait for it. It must not wait while it holds the
                    // leaf's latch. So it gives up this attempt, reserves the room without the latch, and tries again.
                    return Ok(false);
                }
                let old = before.old.map_or(0, <[u8]>::len) as u64;
                if old > intent.new {
                    kept.keep_pages(engine, before, old - intent.new)?;
                }
                if engine.controls.keep(Rule::NoteVersions) {
                    let row = (intent.root, intent.key);
                    noting = Some(noting::before_change(&engine.versions, &undoable, row, before.old));
                }
                Ok(true)
            };
            let tree = Tree { found: intent.found, ..engine.tree(intent.root) };
            let outcome = change(tree, &mut may);
            if !matches!(outcome, Ok(Outcome::Refused)) {
                break outcome;
            }
            drop(busy);
            let more = wanted - chain;
            let kept = self.keep(Room { bytes: more * OBJECT_OVERHEAD, objects: more });
            busy = undoable.busy.lock();
            if let Err(error) = kept {
                break Err(error);
            }
            chain = wanted;
        };
        let Ok(Outcome::Changed(changed)) = outcome else {
            self.admitted(admitted);
            return outcome.map(|_| false);
        };
        self.running.engine.admission.exchange(admitted, undo_room(changed.logged));
        self.remember(changed.logged, changed.undo);
        drop((noting, busy));
        if self.engine().versions.keep_to_limit() {
            self.engine().tables.snapshot_has_ended();
        }
        Ok(true)
    }
}

/// Returns the room to reserve for the undo of a step.
pub(super) fn undo_room(logged: Logged) -> Room {
    Room { bytes: logged.bytes + OBJECT_OVERHEAD, objects: 1 }
}

/// Returns how many pages a cell's long value has; 0 if the value is not long.
fn chain_of(engine: &Engine, before: &Before<'_>) -> u64 {
    match before.old.map(leaf_value) {
        Some(Ok(Value::Long { bytes, .. })) => chain_pages(engine.pager.pool.page_bytes(), bytes),
        _ => 0,
    }
}
