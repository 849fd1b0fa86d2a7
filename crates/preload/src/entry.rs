//! The functions that programs call instead of SQLite's, and what this library does when it is loaded.
//!
//! Each function begins with instructions that pass its return address on as an additional argument. This
//! address is in the code of the caller, so the library learns which SQLite the caller is linked to.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;
use std::time::{Duration, Instant};

use duralite_sqlite_ffi::{self as ffi, Connection};

use crate::orders::orders;
use crate::register::register;
use crate::report;
use crate::sqlite::Sqlite;

/// Defines a function under SQLite's name that jumps to `$target`, with the caller's address as the last
/// argument.
macro_rules! entry {
    ($name:ident, $target:ident, $x86_64:literal, $aarch64:literal) => {
        /// Calls SQLite's function of this name, with the same arguments, result and errors, but with
        /// Duralite as the default VFS. If Duralite cannot be registered, the call opens no database: it
        /// returns `SQLITE_ERROR`, and the reason is on standard error.
        ///
        /// # Safety
        /// The same as for SQLite's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(concat!("mov ", $x86_64, ", [rsp]"), "jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(concat!("mov ", $aarch64, ", x30"), "b {}", sym $target);
        }
    };
}

/// The time for which this library tries to set WAL mode while another process or thread uses the database,
/// and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);
/// The name of a VFS that does not exist. An attempt to use it fails, and SQLite's error message ends with
/// this text.
const FAILED: &CStr = c"duralite (the reason is on standard error)";

entry!(sqlite3_open, open, "rdx", "x2");
entry!(sqlite3_open16, open16, "rdx", "x2");
entry!(sqlite3_open_v2, open_v2, "r8", "x4");

unsafe extern "C" fn open(name: *const c_char, db: *mut *mut Connection, caller: *const c_void) -> c_int {
    // SAFETY: SQLite's own arguments.
    through(caller, db, |sqlite| unsafe { (sqlite.open)(name, db) })
}

unsafe extern "C" fn open16(name: *const c_void, db: *mut *mut Connection, caller: *const c_void) -> c_int {
    // SAFETY: SQLite's own arguments.
    through(caller, db, |sqlite| unsafe { (sqlite.open16)(name, db) })
}

unsafe extern "C" fn open_v2(
    name: *const c_char,
    db: *mut *mut Connection,
    flags: c_int,
    vfs: *const c_char,
    caller: *const c_void,
) -> c_int {
    // SAFETY: SQLite's own arguments.
    through(caller, db, |sqlite| unsafe { (sqlite.open_v2)(name, db, flags, vfs) })
}

/// Makes Duralite the default VFS of the SQLite that the caller is linked to, then opens the database with
/// that SQLite.
fn through(caller: *const c_void, db: *mut *mut Connection, open: impl FnOnce(&Sqlite) -> c_int) -> c_int {
    let Ok(Some(sqlite)) = catch_unwind(|| Sqlite::of(caller)) else {
        report::say("no database is opened: the program's SQLite cannot be found");
        if !db.is_null() {
            // SAFETY: `db` is the caller's place for the connection. SQLite stores null there when it has
            // none.
            unsafe { *db = ptr::null_mut() };
        }
        return ffi::CANTOPEN;
    };
    // If `duralite run` has started neither this process nor an ancestor of it, let SQLite open the database
    // without Duralite.
    let registered = if orders().are_given {
        catch_unwind(|| register(&sqlite)).unwrap_or_else(|_| Err("an error in Duralite itself".to_owned()))
    } else {
        Ok(())
    };
    if let Err(why) = registered {
        report::say(&format!("no database is opened: {why}"));
        // SAFETY: `db` is the caller's place for the connection. The VFS does not exist, so SQLite returns a
        // connection on which the open has failed, with an error message that contains the VFS's name.
        return unsafe { (sqlite.open_v2)(c":memory:".as_ptr(), db, ffi::OPEN_READWRITE, FAILED.as_ptr()) };
    }
    let code = open(&sqlite);
    if code != ffi::OK {
        report::note_failure(code);
    }
    if code == ffi::OK && orders().wal && !db.is_null() {
        // SAFETY: SQLite has put an open connection there.
        set_wal(&sqlite, unsafe { *db });
    }
    code
}

/// Puts a database file into WAL mode. If that fails, the file keeps its mode. The function then only reports
/// the failure, and the program's call succeeds.
fn set_wal(sqlite: &Sqlite, db: *mut Connection) {
    let main = c"main".as_ptr();
    // SAFETY: `db` is an open connection, and the function returns null or the name of its database.
    let name = unsafe {
        if (sqlite.db_readonly)(db, main) != 0 {
            return;
        }
        (sqlite.db_filename)(db, main).as_ref().map(|name| CStr::from_ptr(name))
    };
    let Some(name) = name.filter(|name| !name.is_empty()) else { return };
    let exec = |sql: &CStr| {
        // SAFETY: `db` is an open connection, and `sql` a text. No rows and no error text are wanted.
        unsafe { (sqlite.exec)(db, sql.as_ptr(), ptr::null(), ptr::null_mut(), ptr::null_mut()) }
    };
    let begun = Instant::now();
    let mut code = exec(c"PRAGMA journal_mode=WAL");
    // Another thread or process may be setting the mode. The program has not yet set a busy handler on this
    // connection, so SQLite does not wait. This function tries again itself.
    while code == ffi::BUSY && begun.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
        code = exec(c"PRAGMA journal_mode=WAL");
    }
    if code != ffi::OK {
        let name = name.to_string_lossy();
        report::say(&format!("{name} stays in its journal mode: SQLite's error {code}"));
        // The program's open has succeeded, so the connection must not report the error of the pragma. An
        // empty statement clears that error.
        exec(c"");
    }
}

/// Runs when the library is loaded, before the program.
extern "C" fn begin() {
    let _ = catch_unwind(|| {
        if !orders().are_given {
            return;
        }
        // If the program contains a SQLite, the linker prefers that SQLite to this library. The program's
        // calls then do not come here, so register Duralite with that SQLite now.
        if let Some(Err(why)) = Sqlite::of_program().map(|sqlite| register(&sqlite)) {
            report::say(&format!("this program stays plain SQLite: {why}"));
        }
    });
}

/// Runs when the program calls `exit`, or returns from `main`.
extern "C" fn end() {
    let _ = catch_unwind(report::at_exit);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
