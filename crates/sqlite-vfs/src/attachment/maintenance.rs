//! Requests to the background thread, and the rules for when it may work.
//!
//! The thread uses a log only while connections use it. A connection detaches the log only while the thread
//! does not use it. A connection that is about to take EXCLUSIVE, as the last close does, keeps the thread
//! from opening the database until EXCLUSIVE is released. So the thread never opens a database that was just
//! closed, and the guard is already off the database file when the last `sqlite3_close` returns.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Needed {
    checkpoint: bool,
    flush: bool,
    stop: bool,
    /// Whether a thread has the turn (see [`Turn`]).
    turn: bool,
    /// The number of connections that hold EXCLUSIVE or try to get it.
    holding_off: u32,
}

thread_local! {
    /// Whether this is a background thread. A background thread's own connections must not wait for its work.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this is a background thread.
pub fn is_worker() -> bool {
    IS_WORKER.get()
}

/// Notes that this is a background thread.
pub fn become_worker() {
    IS_WORKER.set(true);
}

/// The requests to the background thread.
#[derive(Default)]
pub struct Maintenance {
    needed: Mutex<Needed>,
    asked: Condvar,
    /// The condition variable on which threads wait for the end of a turn.
    freed: Condvar,
}

/// The turn to use the log. While this value exists, no other thread may detach the log or open another
/// connection to it.
pub struct Turn(Arc<Maintenance>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.needed().turn = false;
        self.0.freed.notify_all();
    }
}

/// A value that keeps the background thread from beginning a checkpoint while the value exists.
pub struct HoldOff(Arc<Maintenance>);

impl Drop for HoldOff {
    fn drop(&mut self) {
        self.0.needed().holding_off -= 1;
    }
}

impl Maintenance {
    fn needed(&self) -> MutexGuard<'_, Needed> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a checkpoint.
    pub fn checkpoint(&self) {
        let mut needed = self.needed();
        if !needed.checkpoint {
            needed.checkpoint = true;
            self.asked.notify_one();
        }
    }

    /// Asks the thread to make all acknowledged commits durable within the interval of Group Synch.
    pub fn flush(&self) {
        let mut needed = self.needed();
        if !needed.flush {
            needed.flush = true;
            self.asked.notify_one();
        }
    }

    /// Asks the thread to end. The thread ends some time after this call returns.
    pub fn stop(&self) {
        self.needed().stop = true;
        self.asked.notify_one();
        self.freed.notify_all();
    }

    /// Waits until the background thread has finished what it is doing, and keeps it from beginning anything
    /// else while the result exists. Returns `None` when called on the background thread itself.
    pub fn turn(self: &Arc<Self>) -> Option<Turn> {
        if IS_WORKER.get() {
            return None;
        }
        let mut needed = self.wait_while(|needed| needed.turn);
        needed.turn = true;
        Some(Turn(Arc::clone(self)))
    }

    /// Waits until the background thread has finished what it is doing, and keeps it from beginning a
    /// checkpoint while the result exists. The thread continues to flush, because Group Synch needs flushes
    /// in exclusive locking mode too. Returns `None` when called on the background thread itself.
    pub fn hold_off(self: &Arc<Self>) -> Option<HoldOff> {
        if IS_WORKER.get() {
            return None;
        }
        self.wait_while(|needed| needed.turn).holding_off += 1;
        Some(HoldOff(Arc::clone(self)))
    }

    /// Takes the turn. Only the background thread calls this. Returns `None` when the thread must stop. Also
    /// returns `None` when the thread wants to checkpoint (`checkpoint`) and a connection prevents that
    /// (`hold_off`). The next commit then asks for a checkpoint again.
    pub fn own_turn(self: &Arc<Self>, checkpoint: bool) -> Option<Turn> {
        let mut needed = self.wait_while(|needed| needed.turn && !needed.stop);
        if needed.stop || checkpoint && needed.holding_off > 0 {
            return None;
        }
        needed.turn = true;
        Some(Turn(Arc::clone(self)))
    }

    fn wait_while(&self, condition: impl FnMut(&mut Needed) -> bool) -> MutexGuard<'_, Needed> {
        self.freed.wait_while(self.needed(), condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the background thread is about to flush. A transaction that is sealed from now on asks for
    /// another flush.
    pub fn begin_flush(&self) {
        self.needed().flush = false;
    }

    /// Sleeps until there is work. Returns whether a checkpoint is needed and whether a flush is needed, or
    /// `None` when the thread must stop.
    pub fn next(&self) -> Option<(bool, bool)> {
        let idle = |needed: &mut Needed| !needed.checkpoint && !needed.flush && !needed.stop;
        let mut needed = self.asked.wait_while(self.needed(), idle).unwrap_or_else(PoisonError::into_inner);
        if needed.stop {
            return None;
        }
        Some((std::mem::take(&mut needed.checkpoint), needed.flush))
    }
}
