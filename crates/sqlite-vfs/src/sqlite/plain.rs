//! Finds out whether a connection uses this VFS. A connection that was opened before the library was loaded,
//! or without `vfs=duralite`, uses plain SQLite, and the program may not notice.
#![allow(unsafe_code)] // asks SQLite about a connection

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use duralite_sqlite_ffi::{self as ffi, Connection, Statement};

use super::{Api, VFS_NAME};
use crate::settings;

/// A database file that a connection has open without Duralite.
pub struct PlainDatabase {
    pub file: String,
    pub vfs: String,
    /// Whether the URI of the database says `strict=off`.
    pub on_purpose: bool,
}

impl PlainDatabase {
    pub fn refusal(&self) -> String {
        format!(
            "{} is open through the VFS {}, not through Duralite, and DURALITE_STRICT is on: first load \
             the library through a connection to :memory:, then open the database with vfs=duralite; if the \
             database is meant to be plain, open it with strict=off",
            self.file, self.vfs
        )
    }

    pub fn warning(&self) -> String {
        format!(
            "{} was opened before the library was loaded, and stays plain SQLite on the VFS {}; open it \
             again",
            self.file, self.vfs
        )
    }
}

/// Returns the first database file that the connection has open without Duralite, if there is one.
///
/// # Safety
/// `db` is an open connection of the SQLite to which `api` belongs.
pub unsafe fn plain_database(api: &Api, db: *mut Connection) -> Option<PlainDatabase> {
    let mut statement: *mut Statement = ptr::null_mut();
    // SAFETY: the connection is open, and the text ends with a zero. The null pointer says that no tail is
    // wanted.
    let code = unsafe {
        (api.prepare_v2)(db, c"PRAGMA database_list".as_ptr(), -1, &raw mut statement, ptr::null_mut())
    };
    if code != ffi::OK {
        return None;
    }
    let mut found = None;
    // SAFETY: the statement was prepared above.
    while found.is_none() && unsafe { (api.step)(statement) } == ffi::ROW {
        // SAFETY: the statement has a row of three columns; the texts stay until the next step.
        found = unsafe {
            let name: *const c_char = (api.column_text)(statement, 1).cast();
            let file: *const c_char = (api.column_text)(statement, 2).cast();
            look_at(api, db, name, file)
        };
    }
    // SAFETY: the statement is finalised only here.
    unsafe { (api.finalize)(statement) };
    found
}

/// # Safety
/// As for [`plain_database`]. The texts are null or end with a zero.
unsafe fn look_at(
    api: &Api,
    db: *mut Connection,
    name: *const c_char,
    file: *const c_char,
) -> Option<PlainDatabase> {
    if name.is_null() || file.is_null() {
        return None;
    }
    // SAFETY: as promised by the caller.
    let path = unsafe { CStr::from_ptr(file) }.to_string_lossy().into_owned();
    // SAFETY: as promised by the caller.
    let vfs = unsafe { vfs_of(api, db, name) };
    let is_memory = path.is_empty() || vfs.starts_with("memdb");
    let is_ours = vfs.split('/').any(|layer| layer.as_bytes() == VFS_NAME.to_bytes());
    if is_memory || is_ours {
        return None;
    }
    // SAFETY: this is the name of a database of this connection, and SQLite keeps the database's parameters
    // after it.
    let strict = unsafe {
        let file = (api.db_filename)(db, name);
        if file.is_null() { ptr::null() } else { (api.uri_parameter)(file, c"strict".as_ptr()) }
    };
    // SAFETY: the pointer is null, or leads to a text that ends with a zero.
    let strict = unsafe { strict.as_ref().map(|strict| CStr::from_ptr(strict)) };
    let on_purpose = strict.is_some_and(|strict| settings::is_off(&strict.to_string_lossy()));
    Some(PlainDatabase { file: path, vfs, on_purpose })
}

/// Returns the names of the VFSs through which a database is open, from the top of the stack.
///
/// # Safety
/// As for [`plain_database`]. `name` is not null, and ends with a zero.
pub unsafe fn vfs_of(api: &Api, db: *mut Connection, name: *const c_char) -> String {
    let mut text: *mut c_char = ptr::null_mut();
    let at: *mut c_void = (&raw mut text).cast();
    // SAFETY: as promised by the caller. This operation stores a text there, which the caller frees.
    unsafe { (api.file_control)(db, name, ffi::FCNTL_VFSNAME, at) };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: the text is SQLite's, and is freed once.
    unsafe {
        let name = CStr::from_ptr(text).to_string_lossy().into_owned();
        (api.free)(text.cast());
        name
    }
}
