//! An open store with its threads; it is closed when the last one who has it lets go of it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;

/// Tells threads to end, and wakes them.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps; whether it is over.
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

/// Engine, threads, and what keeps others out.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) engine: Arc<Engine>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Released last.
    pub(crate) held: Option<Box<dyn std::any::Any + Send + Sync>>,
}

#[cfg(test)]
impl Running {
    /// Without threads: tests do their work where it is due.
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
            // A task that is dropped where it was to be woken may be the last one to let go of the store.
            if thread.thread().id() != std::thread::current().id() {
                // One that has panicked has nothing to say any more.
                let _ = thread.join();
            }
        }
        if !self.engine.poison.is_set() {
            // What this does not do recovery will.
            let _ = self.engine.checkpoint(&|| false);
        }
        drop(self.held.take());
    }
}
