//! What the thread that works in the background is asked to do, and when it may.
//!
//! It never outlasts those it works for. Whoever lets go of the log does so while the thread has no hold of it,
//! and who is about to take EXCLUSIVE, as the last close does, keeps it from opening the database until that is
//! over: what has been closed stays closed, and the guard is off when the last `sqlite3_close` returns.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Needed {
    checkpoint: bool,
    flush: bool,
    stop: bool,
    /// Whether somebody has the turn.
    turn: bool,
    /// Connections that have EXCLUSIVE, or try to get it.
    holding_off: u32,
}

thread_local! {
    /// Whether this thread is one of those: its own connections wait for nothing that it does.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread works in the background.
pub fn is_worker() -> bool {
    IS_WORKER.get()
}

/// This thread works in the background from now on.
pub fn become_worker() {
    IS_WORKER.set(true);
}

/// What the thread is asked to do.
#[derive(Default)]
pub struct Maintenance {
    needed: Mutex<Needed>,
    asked: Condvar,
    /// A turn has ended.
    freed: Condvar,
}

/// The log is nobody else's to let go of, or to open another connection to.
pub struct Turn(Arc<Maintenance>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.needed().turn = false;
        self.0.freed.notify_all();
    }
}

/// No checkpoint begins.
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

    /// Asks for everything to be made durable within the interval of Group Synch.
    pub fn flush(&self) {
        let mut needed = self.needed();
        if !needed.flush {
            needed.flush = true;
            self.asked.notify_one();
        }
    }

    /// Ends the thread, some time soon.
    pub fn stop(&self) {
        self.needed().stop = true;
        self.asked.notify_one();
        self.freed.notify_all();
    }

    /// Waits until what the thread has begun is done, and keeps it from more. `None` on the thread
    /// itself.
    pub fn turn(self: &Arc<Self>) -> Option<Turn> {
        if IS_WORKER.get() {
            return None;
        }
        let mut needed = self.wait_while(|needed| needed.turn);
        needed.turn = true;
        Some(Turn(Arc::clone(self)))
    }

    /// Waits until what the thread has begun is done, and keeps it from checkpoints only: Group Synch
    /// goes on in exclusive locking mode. `None` on the thread itself.
    pub fn hold_off(self: &Arc<Self>) -> Option<HoldOff> {
        if IS_WORKER.get() {
            return None;
        }
        self.wait_while(|needed| needed.turn).holding_off += 1;
        Some(HoldOff(Arc::clone(self)))
    }

    /// The thread's turn; `None` to stop, or when checkpoints are held off: the next commit asks again.
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

    /// The thread is about to flush: what is sealed from now on asks again.
    pub fn begin_flush(&self) {
        self.needed().flush = false;
    }

    /// Sleeps until a checkpoint or a flush is needed, and says which; `None` to stop.
    pub fn next(&self) -> Option<(bool, bool)> {
        let idle = |needed: &mut Needed| !needed.checkpoint && !needed.flush && !needed.stop;
        let mut needed = self.asked.wait_while(self.needed(), idle).unwrap_or_else(PoisonError::into_inner);
        if needed.stop {
            return None;
        }
        Some((std::mem::take(&mut needed.checkpoint), needed.flush))
    }
}
