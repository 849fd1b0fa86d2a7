//! Moves the undo of old transactions forward in the log, so that the older part of the log can be discarded.
//!
//! Invariant 49: a transaction that stays open and idle does not fill up the log, so other transactions can continue to
//! write. The keeper logs the undo of all steps of an old transaction a second time, without the steps' changes. These
//! objects are called moved steps. One more object records their number. After that object, recovery uses the moved
//! steps in place of the transaction's earlier objects. So wherever a crash happens, recovery undoes each step exactly
//! once. After the move, the log still has enough room to undo everything.

use std::time::Duration;

use crate::active::{Active, Entry};
use crate::admission::{Admission, Room};
use crate::error::Error;
use crate::format::{Lsn, OBJECT_HEADER_BYTES, ObjectKind};
use crate::pager::{Author, Pager};

/// The time to wait for a transaction that is in the middle of a step.
const PATIENCE: Duration = Duration::from_millis(10);
/// The keeper moves transactions only if the log space that this frees is at least this many times the log space that
/// the moved steps take.
const GAIN: u64 = 2;
/// The keeper moves transactions only if this frees at least a quarter of the used part of the log.
const PART: u64 = 4;

/// Moves the undo of the oldest transactions forward in the log, if that frees a good part of the log. Does so only if
/// less than half of the log is free, or if a thread waits for room. Keeps objects from `limit` on in any case, because
/// a backup or a dirty page may need them.
///
/// # Errors
/// Any error has poisoned the store.
pub(crate) fn move_oldest(
    pager: &Pager,
    active: &Active,
    admission: &Admission,
    limit: Lsn,
) -> Result<(), Error> {
    let (head, next, space) = (pager.log.head(), pager.log.next(), pager.log.space());
    let used = space.all_bytes.saturating_sub(space.free_bytes);
    let is_half_free = used < space.all_bytes / 2 && space.free_objects > space.all_objects / 2;
    if is_half_free && !admission.is_short() {
        return Ok(());
    }
    // Estimates how much log would become free if `first` were the oldest object that a transaction needs. The estimate
    // takes all objects to be equally long.
    let gain = |first: Lsn| {
        let objects = first.min(limit).saturating_sub(head);
        (u128::from(used) * u128::from(objects) / u128::from((next - head).max(1))) as u64
    };
    let all = active.by_age();
    let mut bytes = 0;
    let mut count = 0;
    for (nth, entry) in all.iter().enumerate() {
        bytes += needs(entry).bytes;
        let freed = gain(all.get(nth + 1).map_or(next, |entry| entry.first));
        if freed >= used / PART && freed >= bytes * GAIN {
            count = nth + 1;
            break;
        }
    }
    all.iter().take(count).try_for_each(|entry| move_one(pager, active, admission, entry))
}

/// Returns how much room in the log is needed to move a transaction.
fn needs(entry: &Entry) -> Room {
    let list = entry.undoable.list.lock();
    let header = OBJECT_HEADER_BYTES as u64;
    let bytes = list.steps.iter().map(|step| step.undo.len() as u64 + header).sum::<u64>();
    Room { bytes: bytes + header, objects: list.steps.len() as u64 + 1 }
}

/// Moves the undo of a transaction. Does nothing if the transaction is in the middle of a step or has ended, or if the
/// log lacks room.
fn move_one(pager: &Pager, active: &Active, admission: &Admission, entry: &Entry) -> Result<(), Error> {
    let Some(_busy) = entry.undoable.busy.try_lock_for(PATIENCE) else { return Ok(()) };
    if !admission.may_spend(needs(entry)) {
        return Ok(());
    }
    let mut list = entry.undoable.list.lock();
    if list.is_over {
        return Ok(());
    }
    let first = pager.log.next();
    let author = |kind, previous| Author { kind, tx: entry.tx, previous };
    let mut moved: Vec<Lsn> = Vec::with_capacity(list.steps.len());
    for step in &list.steps {
        let previous = moved.last().copied().unwrap_or(0);
        match pager.say(author(ObjectKind::Moved, previous), &step.undo) {
            Ok(logged) => moved.push(logged.lsn),
            // Stopping here does no harm. Without the final `MovedAll`, recovery ignores the moved steps.
            Err(Error::Full { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    match pager.say(author(ObjectKind::MovedAll, moved.len() as u64), &[]) {
        Ok(_) => {}
        Err(Error::Full { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    for (step, lsn) in list.steps.iter_mut().zip(moved) {
        step.lsn = lsn;
    }
    active.moved(entry.tx, first);
    Ok(())
}
