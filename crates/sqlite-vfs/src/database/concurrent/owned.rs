//! Values that belong to one connection alone.
#![allow(unsafe_code)] // shared between threads that SQLite keeps apart

use std::cell::{RefCell, RefMut};

/// A value that only SQLite's calls on one connection use. SQLite makes these calls one at a time, under the
/// connection's mutex, from any thread. A transaction uses the value a dozen times, so a mutex around it
/// would take a measurable part of the transaction's time.
#[derive(Default)]
pub struct Owned<T>(RefCell<T>);

// SAFETY: as the type says, no two threads use the value at the same time, and SQLite's mutex orders their
// uses.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// Returns the value. If the value is already in use, this crate has a bug, and this function panics. The
    /// panic ends the current call by SQLite.
    #[inline]
    pub fn get(&self) -> RefMut<'_, T> {
        self.0.borrow_mut()
    }
}
