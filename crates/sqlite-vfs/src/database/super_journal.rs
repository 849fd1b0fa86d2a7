//! Tells whether this thread is committing to several files at once, with a super-journal.
//!
//! SQLite deletes the super-journal between the two phases of such a commit. That deletion is the commit, and
//! SQLite ignores failures in the second phase. So a transaction with a super-journal must be durable when it
//! is sealed, in the first phase (invariant 4).
//!
//! SQLite opens a super-journal through the VFS of the connection's main database. If that is another VFS,
//! this VFS does not see the super-journal, and marks the database accordingly
//! ([`super::Db::set_main_elsewhere`]).
//!
//! While a thread ends, its last destructors may close connections when the value kept here is already gone.
//! Then [`is_open`] answers `true`, because a super-journal may be open.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

thread_local! {
    static OPEN: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Notes that SQLite opens a super-journal of this name.
///
/// # Safety
/// `name` is null or a string that ends with a zero.
#[allow(unsafe_code, reason = "a name of SQLite's")]
pub unsafe fn opened(name: *const c_char) {
    if !name.is_null() {
        // SAFETY: as promised by the caller. The name is copied.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        let _ = OPEN.try_with(|open| open.replace(Some(name)));
    }
}

/// Notes that SQLite deletes a file of this name.
///
/// # Safety
/// As for [`opened`].
#[allow(unsafe_code, reason = "a name of SQLite's")]
pub unsafe fn deleted(name: *const c_char) {
    // SAFETY: as promised by the caller.
    let is_it = |open: &CString| !name.is_null() && unsafe { CStr::from_ptr(name) } == open.as_c_str();
    let _ = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        if open.as_ref().is_some_and(is_it) {
            *open = None;
        }
    });
}

/// Forgets the super-journal. A transaction begins, so every earlier commit of this thread is over.
pub fn forget() {
    if is_open() {
        let _ = OPEN.try_with(RefCell::take);
    }
}

/// Returns whether this thread has a super-journal open. Returns `true` also if that is not known.
pub fn is_open() -> bool {
    OPEN.try_with(|open| open.borrow().is_some()).unwrap_or(true)
}
