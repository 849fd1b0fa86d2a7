//! Duralite as the default VFS of a SQLite.
//!
//! Whether it is so is asked of SQLite itself at each open: after `sqlite3_shutdown` its own VFS is the default again.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use duralite_sqlite_ffi::{self as ffi, ApiRoutines, Connection};

use crate::library::{self, STAYS, library};
use crate::sqlite::{OpenV2, Sqlite};

const NAME: &CStr = c"duralite";
/// The default VFS of a SQLite that nobody has changed.
const STOCK: &CStr = c"unix";
/// `SQLITE_VERSION_NUMBER` of the oldest SQLite whose table of routines is as long as what is copied of it.
const OLDEST: c_int = 3_031_000;

/// The SQLite that is being entered: an automatic extension is told of nothing.
static ENTERING: Mutex<Option<OpenV2>> = Mutex::new(None);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Makes Duralite the default VFS, unless the program has given SQLite a default of its own over it.
///
/// # Errors
/// Why it cannot be: the library cannot be loaded, SQLite is too old, or refuses.
pub fn register(sqlite: &Sqlite) -> Result<(), String> {
    // SAFETY: texts that live for good, or null for the default; what is registered stays.
    let (ours, default) = unsafe { ((sqlite.vfs_find)(NAME.as_ptr()), (sqlite.vfs_find)(ptr::null())) };
    if ours.is_null() {
        return enter(sqlite);
    }
    // SAFETY: null or registered.
    let name = unsafe { default.as_ref().map(|vfs| CStr::from_ptr(vfs.name)) };
    if default != ours && name == Some(STOCK) {
        // SAFETY: found a moment ago.
        let code = unsafe { (sqlite.vfs_register)(ours, 1) };
        if code != ffi::OK {
            return Err(format!("SQLite refused the VFS (code {code})"));
        }
    }
    Ok(())
}

/// Lets SQLite call the library's entry point with its table of routines, which it gives to extensions only.
fn enter(sqlite: &Sqlite) -> Result<(), String> {
    let library = library().map_err(str::to_owned)?;
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    *ENTERING.lock().unwrap_or_else(PoisonError::into_inner) = Some(sqlite.open_v2);
    let mut db: *mut Connection = ptr::null_mut();
    // SAFETY: an entry point that is there as long as this library is; a database in memory, closed at once.
    let code = unsafe {
        (sqlite.auto_extension)(entered);
        let code = (sqlite.open_v2)(c":memory:".as_ptr(), &raw mut db, ffi::OPEN_READWRITE, ptr::null());
        (sqlite.close)(db);
        (sqlite.cancel_auto_extension)(entered);
        code
    };
    *ENTERING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    if code == ffi::OK {
        return Ok(());
    }
    let why = library::said(library.last_error);
    Err(if why.is_empty() { format!("SQLite refused the library (code {code})") } else { why })
}

/// An automatic extension for one connection, opened by [`enter`].
unsafe extern "C" fn entered(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    let Ok(library) = library() else { return ffi::ERROR };
    let open_v2 = *ENTERING.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread's connection, meanwhile.
    let Some(open_v2) = open_v2 else { return ffi::OK };
    // SAFETY: SQLite's table; this entry is in every version's.
    let version = unsafe { (*routines).libversion_number.map_or(0, |version| version()) };
    if version < OLDEST {
        // SAFETY: SQLite's own arguments; the library refuses, and says why.
        return as_auto_extension(unsafe { (library.enter)(db, message, routines) });
    }
    // SAFETY: so new a SQLite has all of the table; it holds words only.
    let mut own = unsafe { ptr::read(routines) };
    // In SQLite's table this function is the one of this library that stands before it.
    own.open_v2 = Some(open_v2);
    // SAFETY: SQLite's own arguments; the library copies what it needs of the table.
    as_auto_extension(unsafe { (library.enter)(db, message, &raw const own) })
}

fn as_auto_extension(code: c_int) -> c_int {
    if code == STAYS { ffi::OK } else { code }
}
