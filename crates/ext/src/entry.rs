//! The functions that SQLite and programs in other languages call by name.
#![allow(unsafe_code)] // entry points that SQLite calls by name

use std::ffi::{CString, c_char, c_int};
use std::panic::catch_unwind;
use std::sync::Mutex;

use duralite_sqlite_ffi::{self as ffi, ApiRoutines, Connection};
use duralite_sqlite_vfs::{COUNT, Entry, account, last_error_text, last_refusal, register, version_text};

/// If this environment variable is `1`, every entry point registers the VFS as the default one.
const MAKE_DEFAULT_VARIABLE: &str = "DURALITE_MAKE_DEFAULT";

fn is_default_by_environment() -> bool {
    std::env::var_os(MAKE_DEFAULT_VARIABLE).is_some_and(|value| value == "1")
}

/// Registers the VFS. Returns `success`, or `SQLITE_ERROR` with a text in `message`.
///
/// # Safety
/// As for `register`: each pointer is null, or the one that SQLite passes to an entry point.
unsafe fn enter(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
    make_default: bool,
    success: c_int,
) -> c_int {
    catch_unwind(|| {
        let make_default = make_default || is_default_by_environment();
        let entry = Entry { make_default, loaded: success == ffi::OK_LOAD_PERMANENTLY };
        // SAFETY: as promised by the caller.
        match unsafe { register(db, routines, entry, message) } {
            Ok(()) => success,
            Err(_) => ffi::ERROR,
        }
    })
    .unwrap_or(ffi::ERROR)
}

/// Registers the VFS `duralite`, not as the default. SQLite looks for this name first when it loads an
/// extension.
///
/// # Safety
/// Only SQLite may call this, as the entry point of an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    // SAFETY: SQLite passes its own table of routines, and a place for the error text.
    unsafe { enter(db, message, routines, false, ffi::OK_LOAD_PERMANENTLY) }
}

/// Does the same as [`sqlite3_extension_init`]. SQLite derives this name from the name of the library's file.
///
/// # Safety
/// Only SQLite may call this, as the entry point of an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_duralite_init(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    // SAFETY: SQLite passes its own table of routines, and a place for the error text.
    unsafe { enter(db, message, routines, false, ffi::OK_LOAD_PERMANENTLY) }
}

/// Registers the VFS `duralite` as the default one.
///
/// # Safety
/// Only SQLite may call this, as the entry point of an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_duralitedefault_init(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    // SAFETY: SQLite passes its own table of routines, and a place for the error text.
    unsafe { enter(db, message, routines, true, ffi::OK_LOAD_PERMANENTLY) }
}

/// Registers the VFS `duralite`, not as the default. This is the entry point for `sqlite3_auto_extension`,
/// which treats every result other than `SQLITE_OK` as an error.
///
/// # Safety
/// Only SQLite may call this, as an automatic extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_duralite_auto(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    // SAFETY: SQLite passes its own table of routines, and a place for the error text.
    unsafe { enter(db, message, routines, false, ffi::OK) }
}

/// Returns why Duralite last refused something on the calling thread. If it has refused nothing on this
/// thread, returns the reason of the last refusal on any thread of the process, or null if there was none.
/// The text stays valid until this thread's next refusal or its next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn duralite_last_error() -> *const c_char {
    catch_unwind(last_error_text).unwrap_or(std::ptr::null())
}

/// Returns the number of the last refusal on the calling thread, or 0 if nothing was refused on it. All
/// threads of a process share one sequence of numbers, which begins at 1. If this number is the same before
/// and after a call of SQLite, [`duralite_last_error`] is not about that call.
#[unsafe(no_mangle)]
pub extern "C" fn duralite_last_refusal() -> u64 {
    catch_unwind(last_refusal).unwrap_or(0)
}

/// Returns the address of a word that counts the refusals in this process. A caller can read this word before
/// every call of SQLite at little cost, and needs [`duralite_last_refusal`] only if that call fails.
#[unsafe(no_mangle)]
pub extern "C" fn duralite_refusal_count() -> *const u64 {
    COUNT.as_ptr()
}

/// From this call on, the library records what [`duralite_account`] returns.
#[unsafe(no_mangle)]
pub extern "C" fn duralite_account_begin() {
    account::begin();
}

/// Returns a line for each database that was opened since [`duralite_account_begin`]. The line names the
/// engine that served the database, the guarantee, and the number of commits. If plain SQLite served the
/// database, the line says why. Returns an empty text if no database was opened. Returns null if another
/// thread calls this function at the same time. The text stays valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn duralite_account() -> *const c_char {
    static TEXT: Mutex<Option<CString>> = Mutex::new(None);
    let text = catch_unwind(account::text).unwrap_or_default();
    let Ok(mut kept) = TEXT.try_lock() else { return std::ptr::null() };
    let text = kept.insert(CString::new(text.replace('\0', "?")).unwrap_or_default());
    text.as_ptr()
}

/// Returns the version, and the build id in brackets if the library was built with one: `0.1.0
/// (v0.1.0-3-gabcdef)`. The text stays valid while the library is loaded. `PRAGMA duralite` shows the same
/// text.
#[unsafe(no_mangle)]
pub extern "C" fn duralite_version() -> *const c_char {
    catch_unwind(version_text).unwrap_or(std::ptr::null())
}
