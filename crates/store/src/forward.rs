//! What is needed to take old transactions back moves forward in the log, so that the log before it can be given up.
//!
//! Invariant 49: an open transaction keeps nobody from writing, however long it does nothing. Its steps are logged anew, without
//! what they changed, and an object that says how many they are makes them count in place of those before: so a crash
//! anywhere takes back each step once. Afterwards there is as much room in the log as taking everything back needs.

use std::time::Duration;

use duralite_logfmt::store::{Lsn, OBJECT_HEADER_BYTES, ObjectKind};

use crate::active::{Active, Entry};
use crate::admission::{Admission, Room};
use crate::error::Error;
use crate::pager::{Author, Pager};

/// For so long a transaction in the middle of a step is waited for.
const PATIENCE: Duration = Duration::from_millis(10);
/// Moving transactions has to free so many times what it writes.
const GAIN: u64 = 2;
/// And such a part of what is used of the log.
const PART: u64 = 4;

/// Moves the oldest transactions forward if less than half of the log is free, or somebody waits for room in it, and that
/// frees a good part of it. `limit` is the oldest object that anything but transactions needs.
///
/// # Errors
/// The store is poisoned.
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
    // What the log would have free if it began at an object, if all objects were equally long.
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

/// What moving a transaction takes of the log.
fn needs(entry: &Entry) -> Room {
    let list = entry.undoable.list.lock();
    let header = OBJECT_HEADER_BYTES as u64;
    let bytes = list.steps.iter().map(|step| step.undo.len() as u64 + header).sum::<u64>();
    Room { bytes: bytes + header, objects: list.steps.len() as u64 + 1 }
}

/// Moves a transaction, unless it is in the middle of a step, or over, or there is no room.
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
            // Without the last object those before do not count.
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
