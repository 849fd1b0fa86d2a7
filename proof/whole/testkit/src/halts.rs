//! Lets a process stop itself before a chosen file lock.
#![allow(unsafe_code)] // replaces a function that SQLite calls

use std::ffi::{c_int, c_void};
use std::io::Write as _;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::ffi;
use rustix::process::{Signal, getpid, kill_process};

/// The number of file locks until the process stops: 1 means that it stops before the next lock, and 0 that
/// it never stops.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Counts a lock that SQLite is about to take or release. Stops the process if it is the chosen lock.
fn lock() {
    let left = LEFT.load(Ordering::SeqCst);
    if left == 0 {
        return;
    }
    LEFT.store(left - 1, Ordering::SeqCst);
    if left == 1 {
        let mut out = std::io::stdout();
        let _ = writeln!(out, "halted").and_then(|()| out.flush());
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Makes this process print `halted` and stop at the `number`-th file lock from now on, before SQLite's own
/// VFS takes or releases that lock.
pub fn halt_before_lock(number: u64) {
    static ONCE: Once = Once::new();
    ONCE.call_once(replace_call);
    LEFT.store(number, Ordering::SeqCst);
}

unsafe extern "C" fn lock_and_fcntl(file: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if command == libc::F_SETLK {
        lock();
    }
    // SAFETY: the arguments are SQLite's own.
    unsafe { libc::fcntl(file, command, argument) }
}

type Fcntl = unsafe extern "C" fn(c_int, c_int, *mut c_void) -> c_int;

fn replace_call() {
    // SAFETY: SQLite passes two or three arguments. Linux passes them in the same registers, whether or not
    // the function is variadic. If the third argument is missing, the content of its register is passed on
    // and ignored. SQLite's default VFS stays registered.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(ptr::null());
        let call = std::mem::transmute::<Fcntl, unsafe extern "C" fn()>(lock_and_fcntl);
        let code = (*vfs).xSetSystemCall.map(|set| set(vfs, c"fcntl".as_ptr(), Some(call)));
        assert_eq!(code, Some(ffi::SQLITE_OK), "SQLite took no other fcntl");
    }
}
