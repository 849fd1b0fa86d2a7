//! A VFS above Duralite's. It stands in for a VFS that encrypts or traces, and passes every call on. In
//! memory it puts a header of its own before each file object of Duralite.
#![allow(unsafe_code)] // a VFS

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

use rusqlite::ffi::{
    SQLITE_ERROR, SQLITE_OK, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find,
    sqlite3_vfs_register,
};

/// The name of the VFS in URIs.
pub const ABOVE: &str = "above";

/// The header of an open file. The file object of the VFS below follows it in memory.
#[repr(C)]
struct Head {
    methods: *const sqlite3_io_methods,
}

fn below(file: *mut sqlite3_file) -> *mut sqlite3_file {
    file.wrapping_byte_add(size_of::<Head>())
}

/// Defines a function for each method, which passes the call on.
macro_rules! pass_on {
    ($($method:ident($($arg:ident: $type:ty),*) $(-> $result:ty, $missing:expr)?;)*) => {
        $(#[allow(non_snake_case)] // SQLite's name
        unsafe extern "C" fn $method(file: *mut sqlite3_file $(, $arg: $type)*) $(-> $result)? {
            let file = below(file);
            // SAFETY: `file` is an open file of the VFS below, and the other arguments are SQLite's own.
            match unsafe { (*(*file).pMethods).$method } {
                // SAFETY: as above.
                Some(method) => unsafe { method(file $(, $arg)*) },
                None => { $($missing)? }
            }
        })*
        const fn methods(version: c_int) -> sqlite3_io_methods {
            sqlite3_io_methods { iVersion: version, $($method: Some($method)),* }
        }
    };
}

pass_on! {
    xClose() -> c_int, SQLITE_ERROR;
    xRead(to: *mut c_void, bytes: c_int, at: sqlite3_int64) -> c_int, SQLITE_ERROR;
    xWrite(from: *const c_void, bytes: c_int, at: sqlite3_int64) -> c_int, SQLITE_ERROR;
    xTruncate(size: sqlite3_int64) -> c_int, SQLITE_ERROR;
    xSync(flags: c_int) -> c_int, SQLITE_ERROR;
    xFileSize(size: *mut sqlite3_int64) -> c_int, SQLITE_ERROR;
    xLock(level: c_int) -> c_int, SQLITE_ERROR;
    xUnlock(level: c_int) -> c_int, SQLITE_ERROR;
    xCheckReservedLock(held: *mut c_int) -> c_int, SQLITE_ERROR;
    xFileControl(operation: c_int, argument: *mut c_void) -> c_int, SQLITE_ERROR;
    xSectorSize() -> c_int, 0;
    xDeviceCharacteristics() -> c_int, 0;
    xShmMap(region: c_int, bytes: c_int, extend: c_int, to: *mut *mut c_void) -> c_int, SQLITE_ERROR;
    xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int, SQLITE_ERROR;
    xShmBarrier();
    xShmUnmap(delete: c_int) -> c_int, SQLITE_ERROR;
    xFetch(at: sqlite3_int64, bytes: c_int, to: *mut *mut c_void) -> c_int, SQLITE_ERROR;
    xUnfetch(at: sqlite3_int64, page: *mut c_void) -> c_int, SQLITE_ERROR;
}

/// The method tables, one for each version that a file of the VFS below may have. SQLite looks at the version
/// before it calls a method.
static METHODS: [sqlite3_io_methods; 4] = [methods(0), methods(1), methods(2), methods(3)];

unsafe extern "C" fn open(
    _above: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite has allocated `szOsFile` bytes, which have room for the header and the file below. The
    // VFS below stays registered.
    unsafe {
        (*file.cast::<Head>()).methods = ptr::null();
        let vfs = sqlite3_vfs_find(c"duralite".as_ptr());
        let code = (*vfs).xOpen.map_or(SQLITE_ERROR, |open| open(vfs, name, below(file), flags, out));
        if let Some(methods) = (*below(file)).pMethods.as_ref() {
            (*file.cast::<Head>()).methods = &raw const METHODS[methods.iVersion as usize];
        }
        code
    }
}

/// Registers the VFS [`ABOVE`], and Duralite's below it. Further calls change nothing.
pub fn register_above() {
    static ONCE: Once = Once::new();
    crate::register();
    ONCE.call_once(|| {
        // SAFETY: this is a copy of a registered VFS, and is never freed. `xOpen` is replaced. The copy
        // shares the other methods with the original VFS. These methods take no open file.
        unsafe {
            let mut vfs = *sqlite3_vfs_find(c"duralite".as_ptr());
            vfs.szOsFile += size_of::<Head>() as c_int;
            (vfs.zName, vfs.pNext) = (c"above".as_ptr(), ptr::null_mut());
            vfs.xOpen = Some(open);
            let code = sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0);
            assert_eq!(code, SQLITE_OK, "SQLite took no VFS");
        }
    });
}
