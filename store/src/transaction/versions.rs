//! Does what snapshots need when a transaction ends: records the end, drops versions that no snapshot needs, and copies
//! long values.

use std::sync::Arc;

use super::Transaction;
use crate::format::{PageId, Undo, Value, leaf_value};
use crate::noting;
use crate::steps::Undoable;
use crate::tree::read_chain;
use crate::versions::{Image, Place};

/// A noted version of a row, whose long value is in pages that are about to be freed. The fields are the table, the
/// key, and the version's cell.
type Gone = (PageId, Vec<u8>, Vec<u8>);

impl Transaction {
    /// Records for snapshots that the transaction has ended. This happens before the transaction's first lock is
    /// released. Returns the rows that the caller then has to [check](Self::look_at).
    pub(super) fn end_for_snapshots(&self) -> Vec<Arc<Place>> {
        let end = |undoable: &Arc<Undoable>| noting::end(&self.engine().versions, undoable);
        self.undoable.as_ref().map(end).unwrap_or_default()
    }

    /// Drops old versions of these rows, except those that a snapshot needs.
    pub(super) fn look_at(&self, rows: &[Arc<Place>]) {
        rows.iter().for_each(|row| self.engine().versions.look_at(row));
    }

    /// Copies the long values that snapshots still need, because their pages are about to be freed.
    pub(super) fn copy_long_values(&self) {
        let Some(undoable) = &self.undoable else { return };
        let mut gone: Vec<Gone> = Vec::new();
        for step in &undoable.list.lock().steps {
            if let Ok(Undo::Row { root, key, old: Some(old) }) = Undo::decode(&step.undo)
                && matches!(leaf_value(old), Ok(Value::Long { .. }))
                && self.engine().versions.has(root, key, old)
            {
                gone.push((root, key.to_vec(), old.to_vec()));
            }
        }
        gone.iter().for_each(|row| self.copy_long(row));
    }

    fn copy_long(&self, (root, key, cell): &Gone) {
        let engine = self.engine();
        let Ok(Value::Long { bytes, first }) = leaf_value(cell) else { return };
        if engine.versions.make_room(bytes) {
            engine.tables.snapshot_has_ended();
        }
        // The snapshots that needed the value may have been ended since the first check.
        if engine.versions.has(*root, key, cell) {
            let value = read_chain(&engine.pager, first, bytes);
            let image = value.map_or(Image::Damaged, |value| Image::Copied(value.into()));
            engine.versions.replace(*root, key, cell, &image);
        }
    }
}
