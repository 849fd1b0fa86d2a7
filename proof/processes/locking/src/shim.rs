//! Two VFSs. The base VFS is directly above SQLite's own VFS, and stops the process before each call that
//! other processes can notice. The top VFS is above Duralite's VFS, and sees the answers that SQLite gets. In
//! both, the object of an open file begins with a header, and each call is passed on to the file object of
//! the next lower VFS.
#![allow(unsafe_code)] // VFSs

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::ffi::{
    SQLITE_ERROR, SQLITE_FCNTL_LOCKSTATE, SQLITE_OK, SQLITE_OPEN_MAIN_DB, SQLITE_OPEN_MAIN_JOURNAL,
    SQLITE_OPEN_WAL, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find,
    sqlite3_vfs_register,
};

use crate::board::board;
use crate::call::{Call, Kind};
use crate::clock;
use crate::grain;
use crate::me;
use crate::watch::{self, Layer, Seat};

/// The header of an open file. In memory, the file object of the next lower VFS follows the header.
#[repr(C)]
struct Head {
    methods: *const sqlite3_io_methods,
    seat: Seat,
}

const _: () = assert!(size_of::<Head>().is_multiple_of(8));

fn below(file: *mut sqlite3_file) -> *mut sqlite3_file {
    file.wrapping_byte_add(size_of::<Head>())
}

/// After a call that may have changed a lock, returns the lock that the base VFS holds.
///
/// # Safety
/// `file` must be an open file of the VFS that is below the VFS of `seat`.
unsafe fn held(seat: Seat, call: Call, file: *mut sqlite3_file) -> Option<c_int> {
    if seat.layer != Layer::Base || !matches!(call, Call::Lock | Call::Unlock) {
        return None;
    }
    let mut state: c_int = -1;
    // SAFETY: the caller promises an open file of the VFS below. The argument has the type that this
    // operation takes.
    let code = unsafe {
        (*(*file).pMethods)
            .xFileControl
            .map(|control| control(file, SQLITE_FCNTL_LOCKSTATE, (&raw mut state).cast()))
    };
    (code == Some(SQLITE_OK)).then_some(state)
}

/// Defines a function for each method. The function passes the call on to the file of the next lower VFS.
macro_rules! pass_on {
    ($($method:ident($($arg:ident: $type:ty),*), $call:expr, $argument:expr;)*) => {
        $(#[allow(non_snake_case)] // SQLite's name
        unsafe extern "C" fn $method(file: *mut sqlite3_file $(, $arg: $type)*) -> c_int {
            // SAFETY: SQLite passes an open file of this VFS.
            let seat = unsafe { (*file.cast::<Head>()).seat };
            let (call, argument) = ($call, i64::from($argument));
            let entry = watch::before(seat, call, argument);
            let file = below(file);
            // SAFETY: this is an open file of the VFS below.
            let code = match unsafe { (*(*file).pMethods).$method } {
                // SAFETY: as above. The other arguments are SQLite's own.
                Some(method) => unsafe { method(file $(, $arg)*) },
                None => SQLITE_ERROR,
            };
            // SAFETY: as above. If the call has closed the file, `held` does not use it.
            let held = unsafe { held(seat, call, file) };
            watch::after(seat, entry, call, argument, code, held);
            code
        })*
        const fn methods(version: c_int) -> sqlite3_io_methods {
            sqlite3_io_methods { iVersion: version, xShmBarrier: Some(barrier), $($method: Some($method)),* }
        }
    };
}

pass_on! {
    xClose(), Call::Close, 0;
    xRead(to: *mut c_void, bytes: c_int, at: sqlite3_int64), Call::Read, at;
    xWrite(from: *const c_void, bytes: c_int, at: sqlite3_int64), Call::Write, at;
    xTruncate(size: sqlite3_int64), Call::Truncate, size;
    xSync(flags: c_int), Call::Sync, flags;
    xFileSize(size: *mut sqlite3_int64), Call::Other, 0;
    xLock(level: c_int), Call::Lock, level;
    xUnlock(level: c_int), Call::Unlock, level;
    xCheckReservedLock(held: *mut c_int), Call::CheckReserved, 0;
    xFileControl(operation: c_int, argument: *mut c_void), Call::Control, operation;
    xSectorSize(), Call::Other, 0;
    xDeviceCharacteristics(), Call::Other, 0;
    xShmMap(region: c_int, bytes: c_int, extend: c_int, to: *mut *mut c_void), Call::ShmMap, region;
    xShmLock(offset: c_int, count: c_int, flags: c_int), Call::ShmLock, watch::shm_argument(offset, count, flags);
    xShmUnmap(delete: c_int), Call::ShmUnmap, delete;
    xFetch(at: sqlite3_int64, bytes: c_int, to: *mut *mut c_void), Call::Other, 0;
    xUnfetch(at: sqlite3_int64, page: *mut c_void), Call::Other, 0;
}

unsafe extern "C" fn barrier(file: *mut sqlite3_file) {
    let file = below(file);
    // SAFETY: this is an open file of the VFS below.
    if let Some(barrier) = unsafe { (*(*file).pMethods).xShmBarrier } {
        // SAFETY: as above.
        unsafe { barrier(file) };
    }
}

/// The method tables, one for each version of the lower file's methods. SQLite checks the version before it
/// calls a method.
static METHODS: [sqlite3_io_methods; 4] = [methods(0), methods(1), methods(2), methods(3)];

fn kind_of(flags: c_int) -> Kind {
    match flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL) {
        SQLITE_OPEN_MAIN_DB => Kind::Database,
        SQLITE_OPEN_WAL => Kind::Wal,
        SQLITE_OPEN_MAIN_JOURNAL => Kind::Journal,
        _ => Kind::Elsewhere,
    }
}

/// Opens a file through the VFS below.
///
/// # Safety
/// The arguments must be SQLite's own, and the VFS must be registered.
unsafe fn open_by(
    vfs: *mut sqlite3_vfs,
    layer: Layer,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let kind = kind_of(flags);
    // SAFETY: SQLite has allocated room for the head and the file below.
    unsafe {
        let seat = watch::opening(layer, kind);
        ptr::write(file.cast::<Head>(), Head { methods: ptr::null(), seat });
        let process = me::process()
            .filter(|_| layer == Layer::Base && kind != Kind::Elsewhere && grain::stops_at_files());
        let entry = process.map(|process| board().step(process, Call::Open, kind, flags & 7));
        let code = (*vfs).xOpen.map_or(SQLITE_ERROR, |open| open(vfs, name, below(file), flags, out));
        if let Some(entry) = entry {
            entry.code.store(code, SeqCst);
        }
        if let Some(methods) = (*below(file)).pMethods.as_ref() {
            (*file.cast::<Head>()).methods = &raw const METHODS[methods.iVersion as usize];
            if !name.is_null() {
                watch::opened(seat, CStr::from_ptr(name));
            }
        }
        if layer == Layer::Top {
            watch::returned(code);
        }
        code
    }
}

unsafe extern "C" fn open<const IS_TOP: bool>(
    _vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let (below, layer) = if IS_TOP { (c"duralite", Layer::Top) } else { (c"unix", Layer::Base) };
    // SAFETY: the arguments are SQLite's own, and the VFS below stays registered.
    unsafe { open_by(sqlite3_vfs_find(below.as_ptr()), layer, name, file, flags, out) }
}

unsafe extern "C" fn access(
    _vfs: *mut sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    found: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes a name.
    let kind = Kind::of_path(unsafe { CStr::from_ptr(name) }.to_bytes());
    let process = me::process().filter(|_| kind != Kind::Elsewhere && grain::stops_at_files());
    let entry = process.map(|process| board().step(process, Call::Access, kind, flags));
    // SAFETY: SQLite's own VFS `unix` stays registered, and the arguments are SQLite's own.
    let code = unsafe {
        let vfs = sqlite3_vfs_find(c"unix".as_ptr());
        (*vfs).xAccess.map_or(SQLITE_ERROR, |access| access(vfs, name, flags, found))
    };
    if let Some(entry) = entry {
        // SAFETY: `found` points to SQLite's variable for the answer.
        entry.code.store(if code == SQLITE_OK { unsafe { *found } } else { code }, SeqCst);
    }
    code
}

unsafe extern "C" fn sleep(_vfs: *mut sqlite3_vfs, microseconds: c_int) -> c_int {
    if let Some(process) = me::process() {
        clock::sleep(process, u64::try_from(microseconds).unwrap_or(0).saturating_mul(1000));
    }
    microseconds
}

/// Returns the same bytes each time, so that schedules are reproducible.
unsafe extern "C" fn randomness(_vfs: *mut sqlite3_vfs, bytes: c_int, to: *mut c_char) -> c_int {
    let process = me::process().map_or(99, |process| process as u8);
    for at in 0..bytes {
        // SAFETY: SQLite passes a buffer of `bytes` bytes.
        unsafe { *to.add(at as usize) = (at as u8).wrapping_mul(37).wrapping_add(process) as c_char };
    }
    bytes
}

/// Registers three VFSs: `shim` as the default, Duralite's VFS above it, and `top` above that. The program
/// must call this exactly once.
pub fn register() {
    // SAFETY: these are copies of registered VFSs, and they are never freed. The methods that are not
    // replaced belong to the original VFSs, and do not depend on the table through which they are called.
    unsafe {
        let mut base = *sqlite3_vfs_find(c"unix".as_ptr());
        base.szOsFile += size_of::<Head>() as c_int;
        (base.zName, base.pNext) = (c"shim".as_ptr(), ptr::null_mut());
        base.xOpen = Some(open::<false>);
        base.xAccess = Some(access);
        base.xSleep = Some(sleep);
        base.xRandomness = Some(randomness);
        assert_eq!(sqlite3_vfs_register(Box::into_raw(Box::new(base)), 1), SQLITE_OK);
        duralite::register().unwrap();
        let mut top = *sqlite3_vfs_find(c"duralite".as_ptr());
        top.szOsFile += size_of::<Head>() as c_int;
        (top.zName, top.pNext) = (c"top".as_ptr(), ptr::null_mut());
        top.xOpen = Some(open::<true>);
        // Duralite's queue for the WRITE lock has no effect here, because each sleep is a step.
        // `proof/processes/schedules` explores the queue.
        top.xSleep = Some(sleep);
        assert_eq!(sqlite3_vfs_register(Box::into_raw(Box::new(top)), 0), SQLITE_OK);
    }
}
