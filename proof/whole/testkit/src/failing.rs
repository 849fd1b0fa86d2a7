//! Makes writes of the guard or of pages fail, or notes all writes, below SQLite's own VFS.
#![allow(unsafe_code)] // replaces functions that SQLite calls

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;

use rusqlite::ffi;

use crate::fixture::{GUARD, VERSIONS};

/// The size of the database's header in bytes. To lift the guard, Duralite writes the header without the
/// guard, and nothing else. This module makes the guard stay by refusing exactly such writes. Writes by
/// SQLite succeed, because SQLite writes whole pages. Duralite may also write only the header on SQLite's
/// behalf. That write succeeds too, because it contains the guard.
const HEADER_BYTES: usize = 100;

/// The size of the smallest page in bytes.
const PAGE_BYTES: usize = 512;

thread_local! {
    /// The number of refused writes of a header without the guard; `None` outside [`with_stuck_guard`].
    static REFUSED: Cell<Option<u32>> = const { Cell::new(None) };
    /// The number of refused writes of pages; `None` outside [`without_space_for_pages`].
    static PAGES_REFUSED: Cell<Option<u32>> = const { Cell::new(None) };
    /// The size in bytes of each write that was made; `None` outside [`noting_writes`].
    static NOTED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type PlacedWrite = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;

unsafe extern "C" {
    fn write(file: c_int, data: *const c_void, bytes: usize) -> isize;
    fn pwrite64(file: c_int, data: *const c_void, bytes: usize, at: i64) -> isize;
}

/// Notes a write, and returns whether it is refused.
///
/// # Safety
/// There are `bytes` bytes at `data`.
unsafe fn is_refused(data: *const c_void, bytes: usize) -> bool {
    NOTED.with_borrow_mut(|noted| noted.as_mut().map(|noted| noted.push(bytes)));
    if let Some(refused) = PAGES_REFUSED.get().filter(|_| bytes >= PAGE_BYTES) {
        PAGES_REFUSED.set(Some(refused + 1));
        return true;
    }
    let is_bare = || {
        // SAFETY: the caller promises that there are `bytes` bytes at `data`.
        let header = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
        header[VERSIONS] != GUARD
    };
    let refused = REFUSED.get().filter(|_| bytes == HEADER_BYTES && is_bare());
    refused.inspect(|refused| REFUSED.set(Some(refused + 1))).is_some()
}

/// Writes nothing, as on a full disk, if `is_refused` says so.
unsafe extern "C" fn write_unless_refused(file: c_int, data: *const c_void, bytes: usize) -> isize {
    // SAFETY: the arguments are SQLite's own.
    unsafe { if is_refused(data, bytes) { 0 } else { write(file, data, bytes) } }
}

/// Does the same as `write_unless_refused`, for a write at an offset.
unsafe extern "C" fn place_unless_refused(file: c_int, data: *const c_void, bytes: usize, at: i64) -> isize {
    // SAFETY: the arguments are SQLite's own.
    unsafe { if is_refused(data, bytes) { 0 } else { pwrite64(file, data, bytes, at) } }
}

/// Runs `body` while the disk has no space for pages of a database, so that SQLite on this thread can write
/// no page to any file.
///
/// # Panics
/// Panics unless `body` tried to write a page.
pub fn without_space_for_pages<T>(body: impl FnOnce() -> T) -> T {
    replace_writes_once();
    PAGES_REFUSED.set(Some(0));
    let result = body();
    assert_ne!(PAGES_REFUSED.replace(None), Some(0), "nobody tried to write a page");
    result
}

/// Runs `body`. Meanwhile, each write that would lift the guard fails as on a full disk. So the guard stays
/// on databases that this thread closes.
///
/// # Panics
/// Panics unless `body` tried to lift the guard.
pub fn with_stuck_guard<T>(body: impl FnOnce() -> T) -> T {
    replace_writes_once();
    REFUSED.set(Some(0));
    let result = body();
    assert_ne!(REFUSED.replace(None), Some(0), "nobody tried to write the guard");
    result
}

/// Runs `body`. Returns the size in bytes of each write that SQLite's own VFS made on this thread.
pub fn noting_writes(body: impl FnOnce()) -> Vec<usize> {
    replace_writes_once();
    NOTED.set(Some(Vec::new()));
    body();
    NOTED.take().unwrap_or_default()
}

fn replace_writes_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(replace_writes);
}

/// Replaces all three functions that write. Each build of SQLite uses one of the three.
fn replace_writes() {
    // SAFETY: the functions have the signatures of the calls that they replace (`off_t` has 64 bits), and
    // SQLite's default VFS stays registered.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(ptr::null());
        let write = std::mem::transmute::<Write, unsafe extern "C" fn()>(write_unless_refused);
        let placed = std::mem::transmute::<PlacedWrite, unsafe extern "C" fn()>(place_unless_refused);
        for (name, call) in [(c"write", write), (c"pwrite", placed), (c"pwrite64", placed)] {
            let code = (*vfs).xSetSystemCall.map(|set| set(vfs, name.as_ptr(), Some(call)));
            assert_eq!(code, Some(ffi::SQLITE_OK), "SQLite took no other {name:?}");
        }
    }
}
