//! Lets processes kill themselves at a chosen step.
#![allow(unsafe_code)] // replaces functions that SQLite calls

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::ffi;

/// The number of steps until the process dies: 1 means that it dies before the next step, and 0 that it never
/// dies.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Counts a step, which is a change to a file, before it happens. Kills the process if the step is the chosen
/// one.
pub fn step() {
    let left = LEFT.load(Ordering::Relaxed);
    if left == 0 {
        return;
    }
    LEFT.store(left - 1, Ordering::Relaxed);
    if left == 1 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Kills this process at its `number`-th step from now on. A step is a write, a truncation or a deletion by
/// SQLite's own VFS, or an operation of a test engine on its files. Returns how many steps the previous call
/// had left.
pub fn die_at_step(number: u64) -> u64 {
    static ONCE: Once = Once::new();
    ONCE.call_once(replace_calls);
    LEFT.swap(number, Ordering::Relaxed)
}

unsafe extern "C" {
    fn write(file: c_int, data: *const c_void, bytes: usize) -> isize;
    fn pwrite64(file: c_int, data: *const c_void, bytes: usize, at: i64) -> isize;
    fn ftruncate64(file: c_int, bytes: i64) -> c_int;
    fn unlink(name: *const c_char) -> c_int;
}

unsafe extern "C" fn step_write(file: c_int, data: *const c_void, bytes: usize) -> isize {
    step();
    // SAFETY: the arguments are SQLite's own.
    unsafe { write(file, data, bytes) }
}

unsafe extern "C" fn step_pwrite(file: c_int, data: *const c_void, bytes: usize, at: i64) -> isize {
    step();
    // SAFETY: the arguments are SQLite's own.
    unsafe { pwrite64(file, data, bytes, at) }
}

unsafe extern "C" fn step_ftruncate(file: c_int, bytes: i64) -> c_int {
    step();
    // SAFETY: the arguments are SQLite's own.
    unsafe { ftruncate64(file, bytes) }
}

unsafe extern "C" fn step_unlink(name: *const c_char) -> c_int {
    step();
    // SAFETY: the argument is SQLite's own.
    unsafe { unlink(name) }
}

type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type PlacedWrite = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;
type Cut = unsafe extern "C" fn(c_int, i64) -> c_int;
type Unlink = unsafe extern "C" fn(*const c_char) -> c_int;

/// Replaces the functions that write, truncate and delete. There are three that write, and each build of
/// SQLite uses one of them.
fn replace_calls() {
    // SAFETY: the functions have the signatures of the calls that they replace (`off_t` has 64 bits), and
    // SQLite's default VFS stays registered.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(ptr::null());
        let write = std::mem::transmute::<Write, unsafe extern "C" fn()>(step_write);
        let placed = std::mem::transmute::<PlacedWrite, unsafe extern "C" fn()>(step_pwrite);
        let cut = std::mem::transmute::<Cut, unsafe extern "C" fn()>(step_ftruncate);
        let unlink = std::mem::transmute::<Unlink, unsafe extern "C" fn()>(step_unlink);
        let calls = [
            (c"write", write),
            (c"pwrite", placed),
            (c"pwrite64", placed),
            (c"ftruncate", cut),
            (c"unlink", unlink),
        ];
        for (name, call) in calls {
            let code = (*vfs).xSetSystemCall.map(|set| set(vfs, name.as_ptr(), Some(call)));
            assert_eq!(code, Some(ffi::SQLITE_OK), "SQLite took no other {name:?}");
        }
    }
}
