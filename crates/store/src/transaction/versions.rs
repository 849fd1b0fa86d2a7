//! What snapshots see of a transaction's end.

use duralite_logfmt::store::{PageId, Undo, Value, leaf_value};

use super::Transaction;
use crate::noting;
use crate::tree::read_chain;
use crate::versions::Image;

/// A row of which a long value goes: the table, the key, and the cell.
type Gone = (PageId, Vec<u8>, Vec<u8>);

impl Transaction {
    /// Ends for snapshots, before its first lock is released; whether its versions have to be looked at then.
    pub(super) fn end_for_snapshots(&self) -> bool {
        self.undoable.as_ref().is_some_and(|undoable| noting::end(&self.engine().versions, undoable))
    }

    /// Gives up the versions that no snapshot needs of rows that it has changed. If it has committed, what others need is
    /// copied of long values, whose pages go next.
    pub(super) fn look_at_versions(&self, has_committed: bool) {
        let Some(undoable) = &self.undoable else { return };
        let versions = &self.engine().versions;
        let mut gone: Vec<Gone> = Vec::new();
        for step in &undoable.list.lock().steps {
            let Ok(Undo::Row { root, key, old }) = Undo::decode(&step.undo) else { continue };
            versions.look_at(root, key);
            if let Some(old) = old.filter(|old| has_committed && versions.has(root, key, old))
                && matches!(leaf_value(old), Ok(Value::Long { .. }))
            {
                gone.push((root, key.to_vec(), old.to_vec()));
            }
        }
        gone.iter().for_each(|row| self.copy_long(row));
    }

    fn copy_long(&self, (root, key, cell): &Gone) {
        let engine = self.engine();
        let Ok(Value::Long { bytes, first }) = leaf_value(cell) else { return };
        engine.versions.make_room(bytes);
        // The snapshots that need it may have been ended.
        if engine.versions.has(*root, key, cell) {
            let value = read_chain(&engine.pager, first, bytes);
            let image = value.map_or(Image::Damaged, |value| Image::Copied(value.into()));
            engine.versions.replace(*root, key, cell, &image);
        }
    }
}
