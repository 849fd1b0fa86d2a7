//! Registration with the SQLite that is linked into this process.
#![allow(unsafe_code)] // calls sqlite3_auto_extension

use std::ffi::{c_char, c_int};
use std::sync::Once;

use rusqlite::{Connection, ffi};

use crate::engine;

unsafe extern "C" fn entry(
    db: *mut ffi::sqlite3,
    message: *mut *mut c_char,
    routines: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: SQLite's own arguments; the types are two names for the same tables.
    unsafe { duralite::sqlite3_duralite_auto(db.cast(), message, routines.cast()) }
}

/// Registers the VFS `duralite`, not as the default, and the engines of the tests. Doing it again changes nothing.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        engine::register();
        // SAFETY: an entry point with the signature that SQLite documents, taken back below.
        let code = unsafe { ffi::sqlite3_auto_extension(Some(entry)) };
        assert_eq!(code, ffi::SQLITE_OK, "SQLite took no extension");
        Connection::open_in_memory().unwrap();
        // SAFETY: as above.
        unsafe { ffi::sqlite3_cancel_auto_extension(Some(entry)) };
    });
}
