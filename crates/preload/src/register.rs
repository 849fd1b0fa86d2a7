//! Makes Duralite the default VFS of a SQLite.
//!
//! This module asks SQLite at each open which VFS is the default, and remembers nothing, because after
//! `sqlite3_shutdown` SQLite's own VFS is the default again.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use duralite_sqlite_ffi::{self as ffi, ApiRoutines, Connection};

use crate::library::{self, STAYS, library};
use crate::sqlite::{OpenV2, Sqlite};

const NAME: &CStr = c"duralite";
/// The name of SQLite's own default VFS. If another VFS is the default, the program has set it.
const STOCK: &CStr = c"unix";
/// `SQLITE_VERSION_NUMBER` of the oldest SQLite that this library supports. From this version on, the table
/// of routines has all the entries in `ApiRoutines`.
const OLDEST: c_int = 3_031_000;

/// `sqlite3_open_v2` of the SQLite for which [`enter`] is running: SQLite's own function, not the preloaded
/// one. `enter` stores it here for [`entered`], because SQLite passes no such argument to an automatic
/// extension.
static ENTERING: Mutex<Option<OpenV2>> = Mutex::new(None);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Makes Duralite the default VFS, unless the program has set a default of its own.
///
/// # Errors
/// The library cannot be loaded, or SQLite is too old or refuses the VFS.
pub fn register(sqlite: &Sqlite) -> Result<(), String> {
    // SAFETY: the arguments are a text that lives for good, and null for the default. A registered VFS stays.
    let (ours, default) = unsafe { ((sqlite.vfs_find)(NAME.as_ptr()), (sqlite.vfs_find)(ptr::null())) };
    if ours.is_null() {
        return enter(sqlite);
    }
    // SAFETY: `default` is null or a registered VFS.
    let name = unsafe { default.as_ref().map(|vfs| CStr::from_ptr(vfs.name)) };
    if default != ours && name == Some(STOCK) {
        // SAFETY: `ours` was found a moment ago, and a registered VFS stays.
        let code = unsafe { (sqlite.vfs_register)(ours, 1) };
        if code != ffi::OK {
            return Err(format!("SQLite refused the VFS (code {code})"));
        }
    }
    Ok(())
}

/// Makes SQLite call the entry point of `libduralite.so` with SQLite's table of routines. SQLite gives this
/// table only to extensions.
fn enter(sqlite: &Sqlite) -> Result<(), String> {
    let library = library().map_err(str::to_owned)?;
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    *ENTERING.lock().unwrap_or_else(PoisonError::into_inner) = Some(sqlite.open_v2);
    let mut db: *mut Connection = ptr::null_mut();
    // SAFETY: the entry point exists as long as this library does. The database is in memory, and is closed
    // at once.
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

/// Passes SQLite's table on to the entry point of `libduralite.so`. [`enter`] makes this function an
/// automatic extension, and opens one connection, so that SQLite calls the function. Then `enter` removes the
/// extension.
unsafe extern "C" fn entered(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    let Ok(library) = library() else { return ffi::ERROR };
    let open_v2 = *ENTERING.lock().unwrap_or_else(PoisonError::into_inner);
    // If `ENTERING` is empty, this connection is not that of `enter`: another thread has opened it, and
    // `enter` has finished in the meantime.
    let Some(open_v2) = open_v2 else { return ffi::OK };
    // SAFETY: `routines` is SQLite's table, and every version's table has this entry.
    let version = unsafe { (*routines).libversion_number.map_or(0, |version| version()) };
    if version < OLDEST {
        // SAFETY: the arguments are SQLite's own. The library refuses, and says why.
        return as_auto_extension(unsafe { (library.enter)(db, message, routines) });
    }
    // SAFETY: `routines` is SQLite's table, of this version.
    let mut own = unsafe { Table::copy(routines, version) };
    // In SQLite's table, the entry for `sqlite3_open_v2` is this library's preloaded function, because the
    // linker finds it before SQLite's own. But `libduralite.so` must call SQLite's own function.
    own.front.open_v2 = Some(open_v2);
    // SAFETY: the arguments are SQLite's own, except the table, which is a copy. The library does not keep a
    // pointer to this copy, but copies the entries that it needs.
    as_auto_extension(unsafe { (library.enter)(db, message, (&raw const own).cast()) })
}

/// The size in words of the first part of SQLite's table (`ApiRoutines`). Every SQLite from `OLDEST` on has
/// this part.
const FRONT: usize = size_of::<ApiRoutines>() / size_of::<usize>();

/// A copy of SQLite's table up to the last entry that `libduralite.so` uses. An entry is 0 if this version of
/// SQLite does not have it yet.
#[repr(C)]
struct Table {
    front: ApiRoutines,
    behind: [usize; ffi::DB_NAME_WORD + 1 - FRONT],
}

impl Table {
    /// # Safety
    /// `routines` is the table of a SQLite of this version.
    unsafe fn copy(routines: *const ApiRoutines, version: c_int) -> Self {
        let known = match version {
            ffi::DB_NAME_SINCE.. => ffi::DB_NAME_WORD + 1,
            ffi::TXN_STATE_SINCE.. => ffi::TXN_STATE_WORD + 1,
            _ => FRONT,
        };
        // SAFETY: the table of every SQLite that this library accepts has the first part, which holds only
        // words.
        let front = unsafe { ptr::read(routines) };
        let mut own = Self { front, behind: [0; ffi::DB_NAME_WORD + 1 - FRONT] };
        for (word, to) in (FRONT..known).zip(&mut own.behind) {
            // SAFETY: a SQLite of this version has the word.
            *to = unsafe { routines.cast::<usize>().add(word).read() };
        }
        own
    }
}

fn as_auto_extension(code: c_int) -> c_int {
    if code == STAYS { ffi::OK } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_of_the_table_has_every_entry_that_the_library_reads() {
        let words: Vec<usize> = (1..=ffi::DB_NAME_WORD + 10).collect();
        for (version, known) in [
            (OLDEST, FRONT),
            (ffi::TXN_STATE_SINCE, ffi::TXN_STATE_WORD + 1),
            (ffi::DB_NAME_SINCE, ffi::DB_NAME_WORD + 1),
        ] {
            // SAFETY: `words` has more words than the table. Nobody calls the functions.
            let own = unsafe { Table::copy(words.as_ptr().cast(), version) };
            // SAFETY: the copy consists of words.
            let own: &[usize; ffi::DB_NAME_WORD + 1] = unsafe { &*(&raw const own).cast() };
            assert_eq!(own[..known], words[..known]);
            assert!(own[known..].iter().all(|word| *word == 0));
        }
    }
}
