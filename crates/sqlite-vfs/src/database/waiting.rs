//! How a connection waits: for the WRITE lock in a queue, and with [`Patience`] while a log opens or closes.
//!
//! A connection queues for WRITE while SQLite sleeps. When `xShmLock` returns busy, SQLite drops its snapshot
//! and calls the busy handler. The default handler sleeps through `xSleep` on the same thread, for a time
//! that it chooses, and counts that time against the busy timeout. This VFS queues during that sleep. The
//! sleep ends when the lock is reserved for the connection, so SQLite finds the lock free at its next try,
//! under a fresh snapshot. (A wait in `xShmLock` itself would end with a stale snapshot, which SQLite would
//! have to give up.)
//!
//! While a thread ends, its last destructors may still use connections. Such connections sleep as with stock
//! SQLite, because the thread's variables are gone by then.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use duralite_locks::Holder;
use duralite_medium::process::ProcessId;

use crate::sqlite::connection::BusyWait;

/// A connection that was refused WRITE.
struct Refused {
    /// The process that the connection belongs to. In a child of that process the lock's memory is not
    /// mapped.
    process: ProcessId,
    holder: Weak<Holder>,
    /// Whether this VFS tries again, and not SQLite, while the connection stays in its read transaction.
    in_transaction: bool,
}

thread_local! {
    /// The connection of this thread that was refused WRITE last.
    static REFUSED: RefCell<Option<Refused>> = const { RefCell::new(None) };
}

/// What a thread does after it got WRITE while the log was short of room. Such a thread gets *busy*, so that
/// the log can start over before the transaction begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Unwanted,
    /// `xShmLock` has just returned busy because the log is short of room.
    Wanted,
    /// The busy handler's sleep was skipped, and the transaction begins again. The value is the time that the
    /// sleep would have lasted. The thread may wait for room for that time.
    Awaited(Duration),
}

thread_local! {
    static ROOM: Cell<Room> = const { Cell::new(Room::Unwanted) };
}

/// Notes that this thread must begin its transaction again, after the log has started over.
pub fn for_room() {
    let _ = ROOM.try_with(|room| room.set(Room::Wanted));
}

/// Returns how long this thread may wait for the log to start over, if the thread begins its transaction
/// again for that reason. Returns `None` otherwise. Only the first call after the busy handler's sleep
/// returns a time.
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

/// Notes that this thread was refused the WRITE lock within a transaction. This VFS itself, and not SQLite,
/// will try again.
pub fn refused_in_transaction(holder: &Arc<Holder>) {
    note_refused(holder, true);
}

fn note_refused(holder: &Arc<Holder>, in_transaction: bool) {
    let refused = Refused { process: ProcessId::current(), holder: Arc::downgrade(holder), in_transaction };
    let _ = REFUSED.try_with(|before| before.replace(Some(refused)));
}

/// Forgets the refusal, because the thread continues with something else.
pub fn forget() {
    let _ = REFUSED.try_with(RefCell::take);
}

/// Waits in the queue for at most `limit` if this thread was refused the WRITE lock, and returns whether it
/// waited. Otherwise returns `false` at once. A thread that must begin its transaction again for lack of room
/// does not sleep here, because it waits for room when the transaction begins. For such a thread the answer
/// is `true` at once.
pub fn sleep(limit: Duration) -> bool {
    if ROOM.try_with(|room| room.replace(Room::Unwanted) == Room::Wanted).unwrap_or(false) {
        let _ = ROOM.try_with(|room| room.set(Room::Awaited(limit)));
        return true;
    }
    let refused =
        REFUSED.try_with(RefCell::take).ok().flatten().filter(|refused| refused.process.is_current());
    let Some(Refused { holder, in_transaction, .. }) = refused else { return false };
    match holder.upgrade() {
        // A connection that SQLite left in a read transaction will not try again, so it must not queue. If
        // the wait fails, the next attempt shows the error.
        Some(holder) if in_transaction || !holder.is_reading() => holder.wait_for_write(limit).is_ok(),
        _ => false,
    }
}

/// Returns how one of the VFS's own connections waits. For the WRITE lock the connection queues like any
/// writer, for at most `queued`. For readers the connection polls, for at most `polling`. The second limit is
/// separate because the connection holds WRITE, and so keeps writers out, while it polls.
pub fn in_queue(polling: Duration, queued: Duration) -> BusyWait {
    BusyWait { polling, queued, queue: sleep }
}

/// The longest time for which a connection waits in total, over all its attempts until one succeeds.
const LIMIT: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);
/// A sleep that lasts too long counts as at most this many times its intended length.
const OVERSLEPT: u32 = 4;

/// The patience of one connection: how long this VFS waits in addition to the application's busy handler.
///
/// A connection that opens or closes a log holds the database exclusively for some milliseconds, which stock
/// SQLite does not do. Other connections wait about that long, as for a mutex, and no longer, so a busy
/// timeout keeps its meaning. The patience adds up the waits over all attempts of a connection until one
/// succeeds. Time in which this process does not run (because it is stopped, or has no processor) does not
/// count, because its other connections cannot finish during that time.
#[derive(Default)]
pub struct Patience {
    waited_us: AtomicU64,
}

impl Patience {
    /// Sleeps before attempt number `tries`, counted from 0. Returns `false` without sleeping when no
    /// patience is left.
    pub fn pause(&self, tries: u32) -> bool {
        self.sleep(FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST))
    }

    /// Sleeps for `pause`, or for the patience that is left if that is less. Returns `false` without sleeping
    /// when no patience is left.
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

    /// Returns the patience that is left.
    pub fn left(&self) -> Duration {
        LIMIT.saturating_sub(Duration::from_micros(self.waited_us.load(Ordering::Relaxed)))
    }

    /// Counts time that the caller has waited in another way.
    pub fn spend(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Counts from 0 again, because an attempt has succeeded.
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
