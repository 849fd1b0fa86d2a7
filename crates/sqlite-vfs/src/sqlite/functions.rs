//! `duralite_last_error()` in SQL.
//!
//! A function that SQLite calls learns nothing about which SQLite calls it before it has called back, and
//! two copies of SQLite in a process share this library. So each registration has a function of its own.
#![allow(unsafe_code)] // registers and answers a function of SQLite's

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use duralite_sqlite_ffi::{self as ffi, Connection, Context, SqlFunction, Value};

use super::Sqlite;
use crate::refusals;
use crate::shield::shield;

const NAME: &CStr = c"duralite_last_error";
/// Copies of SQLite in one process that get the function; more still have the C symbol.
const COPIES: usize = 8;
/// Without locks, which a child that is forked meanwhile would find taken for ever.
static OWNERS: [AtomicPtr<Sqlite>; COPIES] = [const { AtomicPtr::new(ptr::null_mut()) }; COPIES];
const FUNCTIONS: [SqlFunction; COPIES] = [
    last_error::<0>,
    last_error::<1>,
    last_error::<2>,
    last_error::<3>,
    last_error::<4>,
    last_error::<5>,
    last_error::<6>,
    last_error::<7>,
];

/// Answers NULL when nothing was refused so far.
unsafe extern "C" fn last_error<const COPY: usize>(context: *mut Context, _: c_int, _: *mut *mut Value) {
    shield((), || {
        // SAFETY: null, or one that is never freed.
        let Some(sqlite) = (unsafe { OWNERS[COPY].load(Ordering::Acquire).as_ref() }) else { return };
        let Some(text) = refusals::last() else { return };
        // `SQLITE_TRANSIENT`: SQLite copies the text.
        let transient = ptr::without_provenance::<c_void>(usize::MAX);
        // SAFETY: the context of this call, in the SQLite that it belongs to, and a terminated text.
        unsafe { (sqlite.api.result_text)(context, text.as_ptr(), -1, transient) };
    });
}

/// Gives a connection the function. Where it cannot, the connection does without.
///
/// # Safety
/// `db` is an open connection of this SQLite.
pub unsafe fn add(sqlite: &'static Sqlite, db: *mut Connection) {
    let ours = ptr::from_ref(sqlite).cast_mut();
    let owned = |owner: &AtomicPtr<_>| {
        let taken = owner.compare_exchange(ptr::null_mut(), ours, Ordering::AcqRel, Ordering::Acquire);
        taken.unwrap_or_else(|owner| if owner == ours { ptr::null_mut() } else { owner }).is_null()
    };
    let Some(copy) = OWNERS.iter().position(owned) else { return };
    let flags = ffi::UTF8 | ffi::INNOCUOUS;
    // SAFETY: as promised by the caller; the function takes no arguments, and has no data to free.
    unsafe {
        (sqlite.api.create_function_v2)(
            db,
            NAME.as_ptr(),
            0,
            flags,
            ptr::null_mut(),
            Some(FUNCTIONS[copy]),
            None,
            None,
            None,
        )
    };
}
