//! What transactions change is noted for snapshots: by themselves while one is open, and by the first one for those that are in
//! progress when it is opened.

use duralite_logfmt::store::Undo;

use crate::locks::TableId;
use crate::steps::Undoable;
use crate::sync::MutexGuard;
use crate::versions::Versions;

/// So many steps are noted at once; their transaction may have to wait for that.
const AT_ONCE: usize = 64;

/// Called right before a transaction changes a row, with its leaf latched, with what the row is. What comes back is kept until the
/// step is listed: a snapshot that is being opened meanwhile waits for that.
pub(crate) fn before_change<'u>(
    versions: &Versions,
    undoable: &'u Undoable,
    row: (TableId, &[u8]),
    old: Option<&[u8]>,
) -> MutexGuard<'u, ()> {
    let noting = undoable.noting.lock();
    if versions.is_on() && undoable.fate.is_noted() {
        let step = undoable.list.lock().steps.len();
        versions.note(&undoable.fate, row, step, old);
    }
    noting
}

/// Ends a transaction for snapshots: invariant 55. Whether its rows have to be looked at then.
pub(crate) fn end(versions: &Versions, undoable: &Undoable) -> bool {
    // Nobody is in the middle of noting what it has changed.
    let _list = undoable.list.lock();
    versions.end(&undoable.fate)
}

/// Notes what a transaction has changed, unless it is over.
pub(crate) fn note_all(versions: &Versions, undoable: &Undoable) {
    let mut at = 0;
    let mut end = None;
    loop {
        let _noting = undoable.noting.lock();
        let list = undoable.list.lock();
        // What it changes from now on it notes itself.
        if !undoable.fate.is_noted() {
            return;
        }
        let end = (*end.get_or_insert(list.steps.len())).min(list.steps.len());
        let next = (at + AT_ONCE).min(end);
        for (step, done) in list.steps.iter().enumerate().take(next).skip(at) {
            // What cannot be read here cannot be taken back either, and stops the store then.
            if let Ok(Undo::Row { root, key, old }) = Undo::decode(&done.undo) {
                versions.note(&undoable.fate, (root, key), step, old);
            }
        }
        if next >= end {
            return;
        }
        at = next;
    }
}
