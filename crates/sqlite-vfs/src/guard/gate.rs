//! Turns to open the log of a database, among the threads of this process. Each thread needs the database
//! alone for a moment, and without turns all of them would be in each other's way.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use duralite_medium::process::PerProcess;

use crate::database::Db;
use crate::errors::Failure;

/// Lets one thread at a time open the log of a database.
#[derive(Default)]
pub struct Gate {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// The databases whose logs this process is opening, by inode and birth time.
type Gates = HashMap<(u64, u64), Weak<Gate>>;
static GATES: PerProcess<Mutex<Gates>> = PerProcess::new();

impl Gate {
    /// The gate of a database file.
    pub fn of(db: &Db) -> Result<Arc<Self>, Failure> {
        let identity = db.identity()?;
        let mut gates = GATES.get().lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|_, gate| gate.strong_count() > 0);
        let place = gates.entry((identity.inode, identity.birth_ns)).or_default();
        Ok(place.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *place = Arc::downgrade(&new);
            new
        }))
    }

    fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn, if no other thread has it.
    pub fn enter(self: &Arc<Self>) -> Option<Turn> {
        let was_taken = std::mem::replace(&mut *self.taken(), true);
        (!was_taken).then(|| Turn(Arc::clone(self)))
    }

    /// Waits until no thread has the turn, for at most `limit`.
    pub fn wait(&self, limit: Duration) {
        drop(self.freed.wait_timeout_while(self.taken(), limit, |taken| *taken));
    }
}

/// The turn, until it is dropped.
pub struct Turn(Arc<Gate>);

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.taken() = false;
        self.0.freed.notify_all();
    }
}
