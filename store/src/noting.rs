//! Notes old row versions for snapshots. While a snapshot is open, a transaction notes the old version of each row
//! before it changes the row. The thread that opens the first snapshot also notes the old versions of rows that
//! transactions in progress have already changed.

use std::sync::Arc;

use crate::format::{Lsn, Undo};
use crate::locks::TableId;
use crate::steps::{Step, Steps, Undoable};
use crate::sync::MutexGuard;
use crate::versions::{Fate, Place, Versions};

/// The number of steps that `note_all` notes before it releases its locks for a moment. The transaction that has made
/// the steps may be waiting for these locks.
const AT_ONCE: usize = 64;

/// Notes the version of a row that a transaction is about to change. The caller has latched the leaf, and passes the
/// row's present version as `old`. The caller keeps the returned guard until the change is on the transaction's list of
/// steps. Meanwhile, a thread that opens a snapshot waits.
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

/// Takes the last step off the transaction's list of steps, so that the caller can undo it. Returns the step, and the
/// LSN of the step before it. Returns `None` if the list has at most `until` steps. The caller holds `noting` until it
/// has undone the step.
///
/// While there are snapshots, also notes the row's version from before the step. A thread that is opening a snapshot
/// notes only the steps on the list, and this step is no longer there.
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

/// Notes the version that a row had before a step. `at` is the step's index in the list.
fn note_step(versions: &Versions, fate: &Arc<Fate>, (at, step): (usize, &Step), noted: &mut Vec<Arc<Place>>) {
    // If the undo cannot be decoded, nothing is noted. The step cannot be undone then, and that failure will poison the
    // store.
    if let Ok(Undo::Row { root, key, old }) = Undo::decode(&step.undo) {
        noted.extend(versions.note(fate, (root, key), at, old));
    }
}

/// Records for snapshots that a transaction has ended (invariant 55). Returns the rows whose versions the transaction
/// has noted. For each of them, the caller then has to call `look_at`, which drops versions that no snapshot needs.
pub(crate) fn end(versions: &Versions, undoable: &Undoable) -> Vec<Arc<Place>> {
    // While this thread holds the list's lock, no other thread notes the transaction's changes. After this function has
    // ended the transaction, no thread notes them any more.
    let mut list = undoable.list.lock();
    if versions.end(&undoable.fate) { std::mem::take(&mut list.noted) } else { Vec::new() }
}

/// Notes everything that a transaction has changed, unless the transaction has ended.
pub(crate) fn note_all(versions: &Versions, undoable: &Undoable) {
    let mut at = 0;
    let mut end = None;
    loop {
        let _noting = undoable.noting.lock();
        let mut list = undoable.list.lock();
        // Once `is_noted` has returned true, the transaction notes its later changes itself.
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
