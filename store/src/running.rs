//! An open store with its background threads. Dropping the last reference closes the store.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;

/// The signal that tells the background threads to end, and wakes them.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps for `limit`, or until the store stops. Returns whether the store is stopping.
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
    /// The lock on the store's directory, which is released last.
    pub(crate) held: Option<Box<dyn std::any::Any + Send + Sync>>,
}

#[cfg(test)]
impl Running {
    /// Returns a store without background threads; a test does their work itself.
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
            // A background thread may wake a task that holds the last reference to the store. Then this code may run on
            // that thread, which cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                // If the thread panicked, that no longer matters.
                let _ = thread.join();
            }
        }
        if !self.engine.poison.is_set() {
            // If this checkpoint fails, the next opening of the store recovers from the log.
            if self.engine.checkpoint(&|| false).is_ok() {
                // After this write, both superblocks record which changes the page file has. So the closed store can be
                // opened even if one of them is damaged. If this write fails, only the superblock that the checkpoint
                // wrote has that record.
                let _ = self.engine.pager.pool.file().write_head(|_| ());
            }
        }
        drop(self.held.take());
    }
}
