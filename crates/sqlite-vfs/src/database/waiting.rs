//! How a connection waits: for WRITE in the queue for it, and with [`Patience`] while a log opens or closes.
//!
//! SQLite's sleeps between two tries for WRITE are places in the queue for it. When `xShmLock` says busy,
//! SQLite drops its snapshot and calls the busy handler. The default one sleeps through `xSleep` on the same
//! thread, for a time that it chooses, and counts that time against the busy timeout. So this VFS queues in
//! that sleep. The sleep ends when the lock is reserved for the connection, and SQLite, when it tries again,
//! finds the lock free under a fresh snapshot. (A wait in `xShmLock` itself would end with a stale snapshot,
//! which SQLite has to give up.)
//!
//! A thread that ends may still use connections in its last destructors. There it sleeps as with stock
//! SQLite.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use duralite_locks::Holder;
use duralite_medium::process::ProcessId;

use crate::sqlite::connection::BusyWait;

/// A connection that was refused WRITE.
struct Refused {
    /// The process that it belongs to. A child of that process does not have the lock's memory.
    process: ProcessId,
    holder: Weak<Holder>,
    /// Whether the connection tries again although it is in a read transaction.
    in_transaction: bool,
}

thread_local! {
    /// The connection to which this thread was last refused the WRITE lock.
    static REFUSED: RefCell<Option<Refused>> = const { RefCell::new(None) };
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
    note_refused(holder, false);
}

/// Notes that this thread was refused the WRITE lock, and that this VFS itself will try again, in the
/// transaction that has begun.
pub fn refused_in_transaction(holder: &Arc<Holder>) {
    note_refused(holder, true);
}

fn note_refused(holder: &Arc<Holder>, in_transaction: bool) {
    let refused = Refused { process: ProcessId::current(), holder: Arc::downgrade(holder), in_transaction };
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
    let refused =
        REFUSED.try_with(RefCell::take).ok().flatten().filter(|refused| refused.process.is_current());
    let Some(Refused { holder, in_transaction, .. }) = refused else { return false };
    match holder.upgrade() {
        // Within a transaction SQLite does not try again. An error is left to the next try.
        Some(holder) if in_transaction || !holder.is_reading() => holder.wait_for_write(limit).is_ok(),
        _ => false,
    }
}

/// How a connection of the VFS's own waits: as any writer does, in the queue for WRITE, if that lock is in the
/// way. If readers are in the way, the waiting connection has WRITE itself.
pub fn in_queue(polling: Duration, queued: Duration) -> BusyWait {
    BusyWait { polling, queued, queue: sleep }
}

/// The longest wait in all, until something succeeds.
const LIMIT: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);
/// A sleep counts for at most this many times its intended length.
const OVERSLEPT: u32 = 4;

/// The patience of one connection: how long this VFS waits on its own, beyond what the application's busy
/// handler asks for.
///
/// Opening and closing a log takes the database alone for some milliseconds, where stock SQLite takes it for
/// none. Other connections wait that long, as for a mutex, and no longer, so a busy timeout keeps its
/// meaning. Waits are counted over all tries of a connection until one succeeds. Time in which this process
/// stands still (stopped, or without a processor) does not count as waiting: no other connection gained from
/// it.
#[derive(Default)]
pub struct Patience {
    waited_us: AtomicU64,
}

impl Patience {
    /// Sleeps before try number `tries`, counted from 0. `false` when there is no patience left.
    pub fn pause(&self, tries: u32) -> bool {
        self.sleep(FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST))
    }

    /// Sleeps for `pause`. `false` when there is no patience left.
    pub fn sleep(&self, pause: Duration) -> bool {
        let left = self.left();
        if left.is_zero() {
            return false;
        }
        let (start, pause) = (Instant::now(), pause.min(left));
        std::thread::sleep(pause);
        self.slept(pause, start.elapsed());
        true
    }

    fn slept(&self, pause: Duration, took: Duration) {
        self.spend(took.min(pause * OVERSLEPT));
    }

    /// The patience that is left.
    pub fn left(&self) -> Duration {
        LIMIT.saturating_sub(Duration::from_micros(self.waited_us.load(Ordering::Relaxed)))
    }

    /// Counts time that was waited in another way.
    pub fn spend(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    /// A try has succeeded: counts from 0 again.
    pub fn renew(&self) {
        self.waited_us.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_and_is_renewed() {
        let patience = Patience::default();
        patience.spend(LIMIT - FIRST);
        assert!(patience.pause(3));
        assert!(!patience.pause(0));
        patience.renew();
        assert!(patience.pause(0));
    }

    #[test]
    fn it_outlasts_a_process_that_is_stopped_in_it() {
        let patience = Patience::default();
        patience.slept(LONGEST, Duration::from_secs(60));
        assert_eq!(patience.left(), LIMIT - LONGEST * OVERSLEPT);
        patience.slept(LONGEST, LONGEST);
        assert_eq!(patience.left(), LIMIT - LONGEST * (OVERSLEPT + 1));
    }
}
