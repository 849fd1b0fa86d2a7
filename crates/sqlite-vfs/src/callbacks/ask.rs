//! A file control that only this library knows. The library uses it to find the [`Db`] for a schema of a
//! connection. The pointer to the connection's file is not enough, because the file may belong to another VFS
//! above this one. Such a VFS passes on file controls that it does not know.
#![allow(unsafe_code)] // calls SQLite, and is called back through it

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use duralite_sqlite_ffi::{self as ffi, Connection};

use crate::database::Db;
use crate::errors::Failure;
use crate::refusals;
use crate::sqlite::{Sqlite, plain};

/// The number of the file control, which spells "Dura". SQLite's own numbers are below 100.
pub const OPERATION: c_int = 0x4475_7261;

/// A question begins with the address of this value, which shows that this copy of the library asks. Another
/// copy's question may have another layout, so this copy does not answer it.
static MARK: u8 = 1;

#[repr(C)]
struct Question<'a> {
    mark: *const u8,
    work: &'a mut dyn FnMut(&Db),
}

/// Answers [`OPERATION`]. Returns `false` if another copy of the library asks.
///
/// # Safety
/// `argument` is the argument of a file control with this number, from which a pointer can be read.
pub unsafe fn answer(db: &Db, argument: *mut c_void) -> bool {
    // SAFETY: as promised by the caller.
    if argument.is_null() || unsafe { *argument.cast::<*const u8>() } != ptr::from_ref(&MARK) {
        return false;
    }
    // SAFETY: only `about` passes an argument that begins with this mark, and it is a question that lives as
    // long as the call.
    let question = unsafe { &mut *argument.cast::<Question<'_>>() };
    (question.work)(db);
    true
}

/// The database that a connection has open under the name of a schema.
pub enum Subject<'a> {
    /// A database of this VFS, which stays open while the work runs.
    Ours(&'a Db),
    /// Any other database. The text says why it is not one of this VFS, for example that it has no file.
    Plain(&'a str),
}

/// Calls `work` with the database that the connection has open as `schema`.
///
/// # Errors
/// `ERROR` when the connection has no such schema, `IOERR` in a child of the process that opened the
/// connection.
///
/// # Safety
/// `connection` is an open connection of this SQLite, and this thread may use it.
pub unsafe fn about<T>(
    sqlite: &Sqlite,
    connection: *mut Connection,
    schema: &CStr,
    work: impl FnOnce(Subject<'_>) -> T,
) -> Result<T, Failure> {
    // SAFETY: as promised by the caller. The text stays while the database is open.
    let file = unsafe { (sqlite.api.db_filename)(connection, schema.as_ptr()) };
    if file.is_null() {
        // The temporary database exists only once something is in it.
        return if schema.to_bytes().eq_ignore_ascii_case(b"temp") {
            Ok(work(Subject::Plain("it has no file")))
        } else {
            let text = format!("duralite: no such schema: {}", schema.to_string_lossy());
            Err(Failure::new(ffi::ERROR, text))
        };
    }
    let mut work = Some(work);
    let mut done = None;
    let mut once = |db: &Db| done = work.take().map(|work| work(Subject::Ours(db)));
    let mut question = Question { mark: ptr::from_ref(&MARK), work: &mut once };
    let at: *mut c_void = (&raw mut question).cast();
    // SAFETY: as promised by the caller. `at` is what `answer` expects, and no other VFS knows this number.
    let code = unsafe { (sqlite.api.file_control)(connection, schema.as_ptr(), OPERATION, at) };
    if let Some(done) = done {
        return Ok(done);
    }
    let Some(work) = work.filter(|_| matches!(code, ffi::OK | ffi::NOTFOUND)) else {
        let why = refusals::last_error().unwrap_or_else(|| format!("code {code}"));
        return Err(Failure::new(code, format!("duralite: {why}")));
    };
    // SAFETY: `file` is SQLite's own text, which stays valid while the database is open.
    if unsafe { CStr::from_ptr(file) }.is_empty() {
        return Ok(work(Subject::Plain("it has no file")));
    }
    // SAFETY: as promised by the caller.
    let vfs = unsafe { plain::vfs_of(&sqlite.api, connection, schema.as_ptr()) };
    Ok(work(Subject::Plain(&format!("opened through the VFS {vfs}, not through Duralite"))))
}
