//! Speculative lock inheritance: when a transaction ends, it can leave its intention locks on tables to the next
//! transaction on the same thread. That transaction then uses them without requesting them from the lock table.
//!
//! The first transaction that requests a conflicting lock takes away inherited locks that are not in use.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::mode::Mode;

/// The state of an inherited lock that no transaction is using.
const IDLE: u64 = 0;
/// The state of an inherited lock that another transaction has taken away.
const GONE: u64 = u64::MAX;

/// The transaction that uses an inherited lock, if one does.
#[derive(Debug, Default)]
pub(super) struct Use(AtomicU64);

impl Use {
    /// Marks the lock as used by `owner`. Returns `false` if another transaction has taken the lock away.
    pub(super) fn begin(&self, owner: u64) -> bool {
        self.0.compare_exchange(IDLE, owner, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn end(&self) {
        self.0.store(IDLE, Ordering::SeqCst);
    }

    /// Takes the lock away, unless a transaction uses it. Returns that transaction as the error.
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

/// A lock that a transaction has left to the next transaction on its thread.
#[derive(Clone, Debug)]
pub(super) struct Left {
    /// The number of the table.
    pub(super) table: u64,
    pub(super) mode: Mode,
    pub(super) by: Arc<Use>,
}
