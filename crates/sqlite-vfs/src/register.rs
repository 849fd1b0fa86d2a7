//! The entry point that registers the VFS with a SQLite.
#![allow(unsafe_code)] // calls SQLite through its table of routines

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use duralite_medium::process::PerProcess;
use duralite_sqlite_ffi::{self as ffi, ApiRoutines, Connection};

use crate::account;
use crate::callbacks::vfs;
use crate::errors::Failure;
use crate::registration::Registration;
use crate::shield::shield;
use crate::sqlite::base::BaseVfs;
use crate::sqlite::{Api, RegisterError, Sqlite, VFS_NAME, connection, plain};
use crate::{refusals, settings, sql};

/// The lock that serialises registrations, so that two threads do not both find the name free.
static REGISTERING: PerProcess<Mutex<()>> = PerProcess::new();

/// The way in which a program or SQLite has entered the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Whether the VFS becomes the default one.
    pub make_default: bool,
    /// Whether a program has loaded the library through this connection. `false` if SQLite calls the entry
    /// point because it has opened a connection.
    pub loaded: bool,
}

/// Registers the VFS with the SQLite to which `routines` belongs, on top of that SQLite's default VFS. Gives
/// the functions and tables of [`sql`] to `db` and to every connection opened later. A second call changes
/// nothing, except that `make_default` makes the VFS the default one.
///
/// # Errors
/// When SQLite is too old or refuses the VFS, or when `db` has a file open without Duralite and the
/// environment says `strict`. If `message` is not null, this function also stores the error text there.
///
/// # Safety
/// `routines` is null or the table that SQLite passes to extensions, `db` is null or the connection that
/// SQLite passes, and `message` is null or the place for an error text that SQLite passes.
pub unsafe fn register(
    db: *mut Connection,
    routines: *const ApiRoutines,
    entry: Entry,
    message: *mut *mut c_char,
) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    let api = unsafe { Api::copy(routines) };
    // SAFETY: as promised by the caller.
    let result = api.and_then(|api| unsafe { register_through(db, api, entry) });
    result.inspect_err(|error| {
        refusals::record(&error.message);
        // SAFETY: as promised by the caller.
        unsafe { tell(routines, message, &error.message) };
    })
}

/// Stores the text of an error in the place that SQLite passed for it.
///
/// # Safety
/// `routines` is null or SQLite's table, and `message` is null or SQLite's place for the text.
unsafe fn tell(routines: *const ApiRoutines, message: *mut *mut c_char, text: &str) {
    // SAFETY: as promised by the caller. Every SQLite that loads extensions has this entry.
    let mprintf = unsafe { routines.as_ref() }.and_then(|table| table.mprintf);
    if let Some(mprintf) = mprintf.filter(|_| !message.is_null()) {
        let text = refusals::c_text(text);
        // SAFETY: the format takes one string. The caller promised that the text may go to `message`.
        unsafe { *message = mprintf(c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// # Safety
/// `db` is null or an open connection of the SQLite to which `api` belongs.
unsafe fn register_through(db: *mut Connection, api: Api, entry: Entry) -> Result<(), RegisterError> {
    let is_strict = settings::is_strict();
    let looked_at = !db.is_null() && (is_strict || entry.loaded || entry.make_default);
    // SAFETY: as promised by the caller.
    let plain = if looked_at { unsafe { plain::plain_database(&api, db) } } else { None };
    if let Some(plain) = plain.as_ref().filter(|plain| is_strict && !plain.on_purpose) {
        // Check this before registering anything. After an error SQLite unloads the library, and a registered
        // VFS would be left without its code.
        return Err(RegisterError::new(format!("duralite: {}", plain.refusal())));
    }
    let registration = register_with(api, entry.make_default)?;
    let Some(registration) = registration.filter(|_| !db.is_null()) else { return Ok(()) };
    // SAFETY: as promised by the caller.
    unsafe { sql::add(&registration.sqlite, db) };
    if let Some(plain) = plain.filter(|plain| !plain.on_purpose) {
        registration.sqlite.report(ffi::WARNING, &plain.warning());
    }
    Ok(())
}

/// Returns the registration of this SQLite. Makes the registration now if there is none. Returns `None` if
/// another copy of the library has registered the VFS.
fn register_with(api: Api, make_default: bool) -> Result<Option<&'static Registration>, RegisterError> {
    let _one_at_a_time = REGISTERING.get().lock().unwrap_or_else(PoisonError::into_inner);
    let (find, register) = (api.vfs_find, api.vfs_register);
    let refused = |code: c_int| RegisterError::new(format!("duralite: SQLite refused the VFS (code {code})"));
    // SAFETY: the name ends with a zero and is never freed.
    let existing = unsafe { find(VFS_NAME.as_ptr()) };
    if !existing.is_null() {
        if make_default {
            // SAFETY: `find` has just returned this VFS, and a registered VFS stays.
            let code = unsafe { register(existing, 1) };
            if code != ffi::OK {
                return Err(refused(code));
            }
        }
        // SAFETY: `find` has just returned this VFS.
        return Ok(unsafe { vfs::ours(existing) });
    }
    // SAFETY: a null pointer asks for the default VFS.
    let parent = unsafe { find(ptr::null()) };
    if parent.is_null() {
        return Err(RegisterError::new("duralite: this SQLite has no VFS to build on"));
    }
    // SAFETY: the VFS is registered, and nothing unregisters the default VFS of a running SQLite.
    let parent = unsafe { BaseVfs::new(parent) };
    let auto_extension = api.auto_extension;
    let registration = Box::leak(Box::new(Registration::new(Sqlite { api, parent })));
    let app_data: *mut c_void = ptr::from_ref::<Registration>(registration).cast_mut().cast();
    let table = Box::into_raw(Box::new(vfs::table(parent, app_data)));
    // SAFETY: the table is never freed, and SQLite may write `next` into it.
    let code = unsafe { register(table, c_int::from(make_default)) };
    if code != ffi::OK {
        return Err(refused(code));
    }
    // Ignore an error: if SQLite has no memory for the extension, later connections have to do without the
    // functions.
    // SAFETY: the entry point exists as long as the VFS.
    unsafe { auto_extension(opened) };
    Ok(Some(registration))
}

/// Gives a connection the functions and tables. SQLite calls this for every connection that it has opened.
unsafe extern "C" fn opened(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    shield(ffi::OK, || {
        // SAFETY: `routines` is null, or the table of the SQLite that makes this call.
        let find = unsafe { routines.as_ref() }.and_then(|routines| routines.vfs_find);
        // SAFETY: the name is never freed, and `find` returns null or the VFS that is registered under it.
        let registration = find.and_then(|find| unsafe { vfs::ours(find(VFS_NAME.as_ptr())) });
        let Some(registration) = registration else { return ffi::OK };
        // SAFETY: SQLite passes the connection that it has opened.
        unsafe { sql::add(&registration.sqlite, db) };
        let is_strict = settings::is_strict();
        if !(is_strict || account::is_on()) || connection::is_opening() {
            return ffi::OK;
        }
        // SAFETY: as above.
        let plain = unsafe { plain::plain_database(&registration.sqlite.api, db) };
        if let Some(plain) = &plain {
            account::plain(Path::new(&plain.file), &format!("opened through the VFS {}", plain.vfs));
        }
        let Some(plain) = plain.filter(|plain| is_strict && !plain.on_purpose) else { return ffi::OK };
        let failure = Failure::cannot_open(plain.refusal());
        // SAFETY: SQLite's own arguments.
        unsafe { tell(routines, message, &failure.message) };
        registration.sqlite.fail(&failure)
    })
}
