//! SQLite's sleeps between two tries for the WRITE lock, as places in the queue for it.
//!
//! When `xShmLock` says busy, SQLite drops its snapshot and calls the busy handler. The default
//! one sleeps through `xSleep` on the same thread, for a time it chooses, and counts that time
//! against the busy timeout. So that sleep is where this VFS queues: it ends when the lock is
//! reserved for the connection, and SQLite, trying again, finds it free under a fresh snapshot.
//! (Waiting in `xShmLock` itself would end with a stale snapshot, which SQLite has to give up.)
//!
//! A thread that ends may still use connections, in its last destructors: it sleeps as with stock SQLite.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::Duration;

use duralite_locks::Holder;
use duralite_medium::process::ProcessId;

/// A connection, and the process that it belongs to: a child of that has the lock's memory no more.
type Refused = Option<(ProcessId, Weak<Holder>)>;

thread_local! {
    /// The connection to which this thread was last refused the WRITE lock.
    static REFUSED: RefCell<Refused> = const { RefCell::new(None) };
}

/// Notes that this thread was refused the WRITE lock.
pub fn refused(holder: &Arc<Holder>) {
    let refused = (ProcessId::current(), Arc::downgrade(holder));
    let _ = REFUSED.try_with(|before| before.replace(Some(refused)));
}

/// Forgets it: the thread goes on with something else.
pub fn forget() {
    let _ = REFUSED.try_with(RefCell::take);
}

/// Sleeps in the queue, if this thread was refused the WRITE lock; otherwise `false` at once.
pub fn sleep(limit: Duration) -> bool {
    let refused = REFUSED.try_with(RefCell::take).ok().flatten().filter(|(process, _)| process.is_current());
    match refused.and_then(|(_, holder)| holder.upgrade()) {
        // Within a transaction SQLite does not try again. An error is left to the next try.
        Some(holder) if !holder.is_reading() => holder.wait_for_write(limit).is_ok(),
        _ => false,
    }
}
