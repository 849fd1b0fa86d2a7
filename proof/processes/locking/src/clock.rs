//! The clock of a process in a schedule. Time passes only while the process sleeps, so no schedule depends on the
//! machine's speed. Each sleep is a step.
//!
//! The functions here replace functions of the C library in this program, because the linker prefers them.
#![allow(unsafe_code)] // functions of the C library

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use libc::{clockid_t, timespec};

use crate::board::board;
use crate::call::{Call, Kind};
use crate::grain;
use crate::me::process;
use crate::watch;

/// The shortest sleep in nanoseconds: any shorter sleep also takes this long. So a loop that polls at short intervals
/// reaches its time limit after few steps.
const SHORTEST_NS: u64 = 250_000;
/// The longest total time in nanoseconds for which an operation may wait. Normally the connection's busy handler gives
/// up far sooner. But if another process was stopped while it recovered the wal-index, SQLite itself waits for ten
/// seconds, and then returns `SQLITE_PROTOCOL`.
const LONGEST_NS: u64 = 15_000_000_000;
const START_NS: u64 = 1_000_000_000_000;

/// Checks that all code of this program calls the functions below, and not those of the C library.
pub fn check() {
    let pairs = [
        (libc::nanosleep as *const (), nanosleep as *const ()),
        (libc::clock_nanosleep as *const (), clock_nanosleep as *const ()),
        (libc::clock_gettime as *const (), clock_gettime as *const ()),
        (libc::unlink as *const (), unlink as *const ()),
    ];
    assert!(
        pairs.iter().all(|(library, ours)| library == ours),
        "the linker has not taken the functions of this program"
    );
}

/// Sleeps for `ns` nanoseconds of the process's own clock. If the present operation has now waited longer in total than
/// is allowed, records a finding and ends the process.
pub fn sleep(process: usize, ns: u64) {
    let state = &board().processes[process];
    let now = state.clock_ns.fetch_add(ns.max(SHORTEST_NS), SeqCst) + ns.max(SHORTEST_NS);
    if now - state.began_ns.load(SeqCst) > LONGEST_NS {
        board().finding(
            process,
            format_args!("an operation waits for more than {} s", LONGEST_NS / 1_000_000_000),
        );
        board().done(process);
        // SAFETY: the call ends this process, and touches no memory.
        unsafe { libc::_exit(0) }
    }
    board().pause(process, Call::Sleep, i32::try_from(ns / 1000).unwrap_or(i32::MAX));
}

/// Records the time at which an operation begins.
pub fn operation_begins(process: usize) {
    let state = &board().processes[process];
    state.began_ns.store(state.clock_ns.load(SeqCst), SeqCst);
}

/// Returns the time for which the process has slept since its operation began.
pub fn has_waited(process: usize) -> Duration {
    let state = &board().processes[process];
    Duration::from_nanos(state.clock_ns.load(SeqCst) - state.began_ns.load(SeqCst))
}

/// Waits in real time. The leader calls this after it has killed a process. A process that wants a lock in memory asks
/// the kernel whether the holder is alive, but only once in 2 ms, by a clock that this module does not replace. Without
/// this wait, the speed of the machine would decide whether a process notices the death when it next checks the lock.
pub fn let_death_be_noticed() {
    std::thread::sleep(Duration::from_micros(2200));
}

fn sleep_as_asked(asked: *const timespec) -> c_int {
    // SAFETY: the caller passes a valid duration.
    let asked = unsafe { &*asked };
    let ns = (asked.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(asked.tv_nsec as u64);
    match process() {
        Some(process) => {
            sleep(process, ns);
            0
        }
        // SAFETY: this is the kernel's own call, with the caller's argument.
        None => unsafe {
            libc::syscall(libc::SYS_nanosleep, std::ptr::from_ref(asked), std::ptr::null_mut::<timespec>())
                as c_int
        },
    }
}

/// Replaces the C library's function.
///
/// # Safety
/// The same as that of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(asked: *const timespec, _left: *mut timespec) -> c_int {
    sleep_as_asked(asked)
}

/// Replaces the C library's function. No caller in this program sleeps until an absolute time.
///
/// # Safety
/// The same as that of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    _clock: clockid_t,
    _flags: c_int,
    asked: *const timespec,
    _left: *mut timespec,
) -> c_int {
    sleep_as_asked(asked)
}

/// Replaces the C library's function.
///
/// # Safety
/// The same as that of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    let Some(process) = process().filter(|_| clock == libc::CLOCK_MONOTONIC) else {
        // SAFETY: this is the kernel's own call, with the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, to) as c_int };
    };
    let ns = START_NS + board().processes[process].clock_ns.load(SeqCst);
    // SAFETY: the caller passes a pointer to memory for the time.
    unsafe {
        (*to).tv_sec = (ns / 1_000_000_000) as i64;
        (*to).tv_nsec = (ns % 1_000_000_000) as i64;
    }
    0
}

/// Replaces the C library's function. SQLite's own VFS and the guard delete files with it.
///
/// # Safety
/// The same as that of the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let entry = process().map(|process| {
        // SAFETY: the caller passes a path, which is a string.
        let name = unsafe { std::ffi::CStr::from_ptr(path) };
        let kind = Kind::of_path(name.to_bytes());
        let entry = grain::stops_at_files().then(|| board().step(process, Call::Delete, kind, 0));
        watch::deletes(process, kind, name);
        entry
    });
    let entry = entry.flatten();
    // SAFETY: this is the kernel's own call, with the caller's argument.
    let code = unsafe { libc::syscall(libc::SYS_unlink, path) as c_int };
    if let Some(entry) = entry {
        entry.code.store(
            if code == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) },
            SeqCst,
        );
    }
    code
}
