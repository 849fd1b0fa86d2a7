//! What transactions change is noted for snapshots: by themselves while one is open, and by the first one for those that are in
//! progress when it is opened.

use std::sync::Arc;

use duralite_logfmt::store::{Lsn, Undo};

use crate::locks::TableId;
use crate::steps::{Step, Steps, Undoable};
use crate::sync::MutexGuard;
use crate::versions::{Fate, Place, Versions};

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
        let mut list = undoable.list.lock();
        let noted = versions.note(&undoable.fate, row, list.steps.len(), old);
        list.noted.extend(noted);
    }
    noting
}

/// Takes the last step off the list, if there are more than so many, and the number of the one before; the caller has `noting`
/// until it is taken back. A transaction may have noted what a row was before a later step, since the earlier ones are noted by the
/// snapshot that is being opened, which does not find them any more.
pub(crate) fn take_last(versions: &Versions, undoable: &Undoable, until: usize) -> Option<(Step, Lsn)> {
    let mut list = undoable.list.lock();
    if list.steps.len() <= until {
        return None;
    }
    let taken = list.steps.pop()?;
    if versions.is_on() && undoable.fate.is_noted() {
        let at = list.steps.len();
        note_step(versions, &undoable.fate, (at, &taken), &mut list.noted);
    }
    Some((taken, list.steps.last().map_or(0, |step| step.lsn)))
}

/// Notes what a row was before a step, by its place in the list.
fn note_step(versions: &Versions, fate: &Arc<Fate>, (at, step): (usize, &Step), noted: &mut Vec<Arc<Place>>) {
    // What cannot be read here cannot be taken back either, and stops the store then.
    if let Ok(Undo::Row { root, key, old }) = Undo::decode(&step.undo) {
        noted.extend(versions.note(fate, (root, key), at, old));
    }
}

/// Ends a transaction for snapshots: invariant 55. The rows that are to be looked at then.
pub(crate) fn end(versions: &Versions, undoable: &Undoable) -> Vec<Arc<Place>> {
    // Nobody is in the middle of noting what it has changed, and nobody does later.
    let mut list = undoable.list.lock();
    if versions.end(&undoable.fate) { std::mem::take(&mut list.noted) } else { Vec::new() }
}

/// Notes what a transaction has changed, unless it is over.
pub(crate) fn note_all(versions: &Versions, undoable: &Undoable) {
    let mut at = 0;
    let mut end = None;
    loop {
        let _noting = undoable.noting.lock();
        let mut list = undoable.list.lock();
        // What it changes from now on it notes itself.
        if !undoable.fate.is_noted() {
            return;
        }
        let end = (*end.get_or_insert(list.steps.len())).min(list.steps.len());
        let next = (at + AT_ONCE).min(end);
        let Steps { steps, noted, .. } = &mut *list;
        for step in steps.iter().enumerate().take(next).skip(at) {
            note_step(versions, &undoable.fate, step, noted);
        }
        if next >= end {
            return;
        }
        at = next;
    }
}
