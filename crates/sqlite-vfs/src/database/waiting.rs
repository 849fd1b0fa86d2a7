//! SQLite's sleeps between two tries for the WRITE lock, as places in the queue for it.
//!
//! When `xShmLock` says busy, SQLite drops its snapshot and calls the busy handler. The default one sleeps
//! through `xSleep` on the same thread, for a time that it chooses, and counts that time against the busy
//! timeout. So this VFS queues in that sleep. The sleep ends when the lock is reserved for the connection,
//! and SQLite, when it tries again, finds the lock free under a fresh snapshot. (A wait in `xShmLock` itself
//! would end with a stale snapshot, which SQLite has to give up.)
//!
//! A thread that ends may still use connections in its last destructors. There it sleeps as with stock
//! SQLite.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::time::Duration;

use duralite_locks::Holder;
use duralite_medium::process::ProcessId;

use crate::sqlite::connection::BusyWait;

/// A connection, and the process that it belongs to. A child of that process does not have the lock's memory.
type Refused = Option<(ProcessId, Weak<Holder>)>;

thread_local! {
    /// The connection to which this thread was last refused the WRITE lock.
    static REFUSED: RefCell<Refused> = const { RefCell::new(None) };
}

/// What a thread does that had WRITE and was told that it is busy, so that the log starts over first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Unwanted,
    /// It was told so just now.
    Wanted,
    /// It goes on without a sleep, to begin again. The value is how long it was to sleep.
    Awaited(Duration),
}

thread_local! {
    static ROOM: Cell<Room> = const { Cell::new(Room::Unwanted) };
}

/// Notes that this thread is to begin its transaction again, when the log has started over.
pub fn for_room() {
    let _ = ROOM.try_with(|room| room.set(Room::Wanted));
}

/// Whether this thread begins a transaction again for that reason, and how long it may wait. Answers so only
/// once.
pub fn for_room_until() -> Option<Duration> {
    match ROOM.try_with(|room| room.replace(Room::Unwanted)) {
        Ok(Room::Awaited(limit)) => Some(limit),
        _ => None,
    }
}

/// Notes that this thread was refused the WRITE lock.
pub fn refused(holder: &Arc<Holder>) {
    let refused = (ProcessId::current(), Arc::downgrade(holder));
    let _ = REFUSED.try_with(|before| before.replace(Some(refused)));
}

/// Forgets the refusal: the thread goes on with something else.
pub fn forget() {
    let _ = REFUSED.try_with(RefCell::take);
}

/// Sleeps in the queue, if this thread was refused the WRITE lock. Otherwise returns `false` at once. A
/// thread that is to begin its transaction again does not sleep here: it waits when it begins.
pub fn sleep(limit: Duration) -> bool {
    if ROOM.try_with(|room| room.replace(Room::Unwanted) == Room::Wanted).unwrap_or(false) {
        let _ = ROOM.try_with(|room| room.set(Room::Awaited(limit)));
        return true;
    }
    let refused = REFUSED.try_with(RefCell::take).ok().flatten().filter(|(process, _)| process.is_current());
    match refused.and_then(|(_, holder)| holder.upgrade()) {
        // Within a transaction SQLite does not try again. An error is left to the next try.
        Some(holder) if !holder.is_reading() => holder.wait_for_write(limit).is_ok(),
        _ => false,
    }
}

/// How a connection of the VFS's own waits: as any writer does, in the queue for WRITE, if that lock is in the
/// way. If readers are in the way, the waiting connection has WRITE itself.
pub fn in_queue(polling: Duration, queued: Duration) -> BusyWait {
    BusyWait { polling, queued, queue: sleep }
}
