//! Speculative lock inheritance: a transaction leaves its intention locks of tables to the next one on the same thread, which
//! then has them without asking.
//!
//! What is left and not in use is taken away by the first who wants something else.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::mode::Mode;

/// Nobody uses the lock.
const IDLE: u64 = 0;
/// It was taken away.
const GONE: u64 = u64::MAX;

/// Who uses a lock that is left from one transaction to the next.
#[derive(Debug, Default)]
pub(super) struct Use(AtomicU64);

impl Use {
    /// Takes it for an owner; `false` if it is gone.
    pub(super) fn begin(&self, owner: u64) -> bool {
        self.0.compare_exchange(IDLE, owner, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn end(&self) {
        self.0.store(IDLE, Ordering::SeqCst);
    }

    /// Takes it away, unless somebody uses it: who.
    pub(super) fn take_away(&self) -> Result<(), u64> {
        match self.0.compare_exchange(IDLE, GONE, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) | Err(GONE) => Ok(()),
            Err(user) => Err(user),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.load(Ordering::SeqCst) == GONE
    }
}

/// A lock that is left from one transaction to the next.
#[derive(Clone, Debug)]
pub(super) struct Left {
    /// The table's number.
    pub(super) table: u64,
    pub(super) mode: Mode,
    pub(super) by: Arc<Use>,
}
