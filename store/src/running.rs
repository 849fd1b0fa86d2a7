//! An open store with its threads. Dropping the last reference closes it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;

/// Tells the background threads to end, and wakes them.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps for `limit`, or until the store stops. Returns whether it has stopped.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let mut is_over = self.is_over.lock();
        if !*is_over {
            self.changed.wait_for(&mut is_over, limit);
        }
        *is_over
    }

    fn stop(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }
}

/// The engine, its threads, and the lock that keeps other processes out.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) engine: Arc<Engine>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    /// The lock, released last.
    pub(crate) held: Option<Box<dyn std::any::Any + Send + Sync>>,
}

#[cfg(test)]
impl Running {
    /// A store without threads; tests do the threads' work when it is due.
    pub(crate) fn alone(engine: Engine) -> Arc<Self> {
        let (stop, threads) = (Arc::default(), Mutex::default());
        Arc::new(Self { engine: Arc::new(engine), stop, threads, held: None })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        self.engine.pager.pool.wake_keeper();
        self.engine.tables.wake_reaper();
        self.engine.waiters.close();
        for thread in self.threads.get_mut().drain(..) {
            // If a woken task held the last reference to the store, this runs on the background thread that woke it,
            // which cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                // A panic of the thread does not matter any more.
                let _ = thread.join();
            }
        }
        if !self.engine.poison.is_set() {
            // If the checkpoint fails, recovery does the rest.
            let _ = self.engine.checkpoint(&|| false);
        }
        drop(self.held.take());
    }
}
