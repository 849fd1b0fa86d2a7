//! Functions of the SQLite that is linked into the program.
//!
//! All other code calls SQLite through the table that SQLite hands to an extension. Only a program that is
//! linked to a SQLite can call these functions.
#![allow(unsafe_code)] // declarations of what C has

use std::ffi::{c_char, c_int};

use crate::{Connection, EntryPoint, Vfs};

unsafe extern "C" {
    pub fn sqlite3_auto_extension(entry: EntryPoint) -> c_int;
    pub fn sqlite3_cancel_auto_extension(entry: EntryPoint) -> c_int;
    pub fn sqlite3_open_v2(
        name: *const c_char,
        db: *mut *mut Connection,
        flags: c_int,
        vfs: *const c_char,
    ) -> c_int;
    pub fn sqlite3_errmsg(db: *mut Connection) -> *const c_char;
    pub fn sqlite3_close(db: *mut Connection) -> c_int;
    pub fn sqlite3_vfs_find(name: *const c_char) -> *mut Vfs;
    pub fn sqlite3_vfs_register(vfs: *mut Vfs, make_default: c_int) -> c_int;
}
