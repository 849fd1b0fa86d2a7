//! The poison: a record of the failure after which the store must not acknowledge anything (invariant 37).

use crate::error::Error;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The poison of a store, shared by all parts that write. Once set, it stays set.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    is_set: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Poison {
    /// Checks that the store is not poisoned.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_set.load(Ordering::Acquire) { Err(self.error()) } else { Ok(()) }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Poisons the store, and returns the error for the caller. If the store is already poisoned, the first failure
    /// remains the reported one.
    pub(crate) fn set(&self, why: &Error) -> Error {
        {
            let mut first = self.why.lock();
            if first.is_none() && !matches!(why, Error::Poisoned { .. }) {
                *first = Some(why.to_string());
            }
        }
        self.is_set.store(true, Ordering::Release);
        self.error()
    }

    fn error(&self) -> Error {
        Error::Poisoned { why: self.why.lock().clone().unwrap_or_else(|| "unknown".to_owned()) }
    }
}
