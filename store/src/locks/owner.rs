//! Transactions as owners of locks. An owner waits for at most one lock at a time.

use crate::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Parker;

const WAITS: u64 = 0;
const GRANTED: u64 = 1;
const GRANTED_NEW: u64 = 2;
const GIVES_WAY: u64 = 3;

/// The owner of a transaction's locks.
#[derive(Debug)]
pub(crate) struct Owner {
    /// The age of the transaction; a younger one has a larger number.
    pub(crate) id: u64,
    state: AtomicU64,
    parker: Parker,
}

/// The state of an owner's wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Waits,
    Granted { is_new: bool },
    GivesWay,
}

impl Owner {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, state: AtomicU64::new(WAITS), parker: Parker::default() }
    }

    /// Begins a wait.
    pub(super) fn begin(&self) {
        self.state.store(WAITS, Ordering::SeqCst);
    }

    pub(super) fn granted(&self, is_new: bool) {
        self.state.store(if is_new { GRANTED_NEW } else { GRANTED }, Ordering::SeqCst);
        self.parker.wake();
    }

    /// Tells the owner to give up its wait, unless the lock has already been granted.
    pub(super) fn give_way(&self) {
        let _ = self.state.compare_exchange(WAITS, GIVES_WAY, Ordering::SeqCst, Ordering::SeqCst);
        self.parker.wake();
    }

    pub(super) fn state(&self) -> Wait {
        match self.state.load(Ordering::SeqCst) {
            GRANTED => Wait::Granted { is_new: false },
            GRANTED_NEW => Wait::Granted { is_new: true },
            GIVES_WAY => Wait::GivesWay,
            _ => Wait::Waits,
        }
    }

    pub(super) fn parker(&self) -> &Parker {
        &self.parker
    }
}
