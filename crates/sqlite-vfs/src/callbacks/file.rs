//! Code that all files of this VFS share: access to SQLite's buffers, and the methods that a WAL and a
//! journal must have although these methods have nothing to do.
#![allow(unsafe_code)] // the functions that SQLite calls

use std::ffi::{c_int, c_void};
use std::ptr;

use duralite_sqlite_ffi::{self as ffi, File, IoMethods};

use crate::shield::shield;

/// The methods that all files beside a database have in common. SQLite calls no method of a later version on
/// such a file, so the table has version 1. SQLite locks the database and not these files, so the methods for
/// locks do nothing.
pub const BESIDE_DATABASE: IoMethods = IoMethods {
    version: 1,
    close: None,
    read: None,
    write: None,
    truncate: None,
    sync: None,
    file_size: None,
    lock: Some(lock),
    unlock: Some(lock),
    check_reserved_lock: Some(check_reserved_lock),
    file_control: Some(file_control),
    sector_size: None,
    device_characteristics: None,
    shm_map: None,
    shm_lock: None,
    shm_barrier: None,
    shm_unmap: None,
    fetch: None,
    unfetch: None,
};

unsafe extern "C" fn lock(_file: *mut File, _level: c_int) -> c_int {
    ffi::OK
}

unsafe extern "C" fn check_reserved_lock(_file: *mut File, held: *mut c_int) -> c_int {
    shield(ffi::IOERR_CHECKRESERVEDLOCK, || {
        // SAFETY: SQLite passes a place for the answer.
        unsafe { *held = 0 };
        ffi::OK
    })
}

unsafe extern "C" fn file_control(_file: *mut File, _op: c_int, _arg: *mut c_void) -> c_int {
    ffi::NOTFOUND
}

/// Returns SQLite's buffer to fill, which this function zeroes, and the position to read at. Returns `None`
/// if the position or the length is negative.
///
/// # Safety
/// `buf` has room for `len` bytes, which no other code reads or writes as long as the result is used.
pub unsafe fn to_fill<'a>(buf: *mut c_void, len: c_int, offset: i64) -> Option<(&'a mut [u8], u64)> {
    let (offset, len) = (u64::try_from(offset).ok()?, usize::try_from(len).ok()?);
    // SAFETY: as promised by the caller. The memory is zeroed first, so it is initialised.
    let buf = unsafe {
        ptr::write_bytes(buf.cast::<u8>(), 0, len);
        std::slice::from_raw_parts_mut(buf.cast::<u8>(), len)
    };
    Some((buf, offset))
}

/// Returns the bytes that SQLite wants written, and the position to write at. Returns `None` if the position
/// or the length is negative.
///
/// # Safety
/// `data` points to `len` bytes that do not change as long as the result is used.
pub unsafe fn to_write<'a>(data: *const c_void, len: c_int, offset: i64) -> Option<(&'a [u8], u64)> {
    let (offset, len) = (u64::try_from(offset).ok()?, usize::try_from(len).ok()?);
    // SAFETY: as promised by the caller.
    Some((unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }, offset))
}
