//! Registering with the SQLite that the program is linked to, without loading anything.
#![allow(unsafe_code)] // calls that SQLite

use std::ffi::{CStr, c_int};
use std::ptr;

use duralite_sqlite_ffi::{self as ffi, Connection, Vfs, linked as sqlite};
use duralite_sqlite_vfs::{RegisterError, VFS_NAME, last_error, last_refusal, set_defaults};

use crate::entry::sqlite3_duralite_auto;

/// Registers the VFS `duralite` with the SQLite that is linked into this program. From then on Duralite
/// serves databases whose URI says `vfs=duralite`, such as one made by [`uri`](crate::uri). Plain SQLite
/// serves all others. A second call is harmless. The call opens no file.
///
/// # Errors
/// When SQLite is older than 3.31, was built with `SQLITE_OMIT_LOAD_EXTENSION`, or opens no database in
/// memory.
pub fn register() -> Result<(), RegisterError> {
    registered().map(|_| ())
}

/// Registers the VFS as [`register`] does, and makes Duralite the default. Duralite then also serves
/// databases that are opened by plain name, if they are in WAL mode.
///
/// `settings` are for all databases of this process. They override environment variables, and the parameters
/// of a database's URI override both. `strict` is `on` unless `settings` say otherwise. With `strict`, a
/// database that is not in WAL mode can be read, but a write is refused until `PRAGMA journal_mode=WAL`.
/// Opening a file through another VFS is refused too. The settings of the first call are those of the whole
/// process. The call does not change a database that is open already.
///
/// # Errors
/// As [`register`]. Also when a setting is unknown or has a value that it does not take, or when an earlier
/// call gave other settings.
pub fn register_default(settings: &[(&str, &str)]) -> Result<(), RegisterError> {
    let vfs = registered()?;
    let mut given = vec![("strict", "on")];
    given.extend_from_slice(settings);
    set_defaults(&given).map_err(|reason| RegisterError::new(format!("duralite: {reason}")))?;
    // SAFETY: `registered` has just found this VFS in SQLite's list, and a registered VFS stays.
    match unsafe { sqlite::sqlite3_vfs_register(vfs, 1) } {
        ffi::OK => Ok(()),
        code => Err(RegisterError::new(format!("duralite: SQLite refused the VFS as default (code {code})"))),
    }
}

/// Registers the VFS and finds it in SQLite's list. SQLite hands its table of routines only to extensions. So
/// this function makes the entry point an automatic extension, and opens a database in memory. SQLite then
/// calls the entry point.
fn registered() -> Result<*mut Vfs, RegisterError> {
    let before = last_refusal();
    // SAFETY: the entry point exists as long as the program. If another thread opens a connection at this
    // time, that connection registers the VFS too, which is harmless.
    let opened = unsafe {
        match sqlite::sqlite3_auto_extension(sqlite3_duralite_auto) {
            ffi::OK => {
                let opened = open_in_memory();
                sqlite::sqlite3_cancel_auto_extension(sqlite3_duralite_auto);
                opened
            }
            code => Err(format!("SQLite takes no automatic extension (code {code})")),
        }
    };
    // SAFETY: the argument is a name that is never freed.
    let vfs = unsafe { sqlite::sqlite3_vfs_find(VFS_NAME.as_ptr()) };
    match opened {
        Ok(()) if !vfs.is_null() => Ok(vfs),
        _ if last_refusal() > before => Err(RegisterError::new(last_error().unwrap_or_default())),
        Ok(()) => Err(RegisterError::new("duralite: this SQLite calls no automatic extensions")),
        Err(reason) => Err(RegisterError::new(format!("duralite: {reason}"))),
    }
}

/// Opens a database in memory and closes it.
///
/// # Errors
/// SQLite's message.
fn open_in_memory() -> Result<(), String> {
    let mut db: *mut Connection = ptr::null_mut();
    let flags: c_int = ffi::OPEN_READWRITE | ffi::OPEN_CREATE;
    // SAFETY: these are SQLite's own functions, used as documented. `db` is null or a connection, which is
    // closed in any case. The error message is copied before that.
    unsafe {
        let code = sqlite::sqlite3_open_v2(c":memory:".as_ptr(), &raw mut db, flags, ptr::null());
        let result = if code == ffi::OK {
            Ok(())
        } else {
            let text = CStr::from_ptr(sqlite::sqlite3_errmsg(db)).to_string_lossy();
            Err(format!("SQLite opens no database in memory: {text} (code {code})"))
        };
        sqlite::sqlite3_close(db);
        result
    }
}
