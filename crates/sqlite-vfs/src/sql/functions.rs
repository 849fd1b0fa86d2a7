//! `duralite_last_error()` and `duralite_json()`.
//!
//! Two copies of SQLite in a process may share this library. A function must know which copy calls it,
//! because the function answers through that copy, but SQLite does not say which copy calls. So each copy of
//! SQLite gets functions of its own.
#![allow(unsafe_code)] // registers and answers functions of SQLite's

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use duralite_sqlite_ffi::{self as ffi, Connection, Context, SqlFunction, Value};

use super::values;
use super::views::{Cell, json_object, status_of};
use crate::callbacks::ask;
use crate::refusals;
use crate::shield::shield;
use crate::sqlite::Sqlite;

/// The largest number of copies of SQLite in one process that get the functions. For other copies the C
/// symbols still work.
const COPIES: usize = 8;
/// The SQLite to which each copy of the functions belongs. These are atomic pointers without a mutex, because
/// a child that is forked while a thread holds a mutex would find the mutex locked for good.
static OWNERS: [AtomicPtr<Sqlite>; COPIES] = [const { AtomicPtr::new(ptr::null_mut()) }; COPIES];

/// Lists one function for each copy of SQLite.
macro_rules! copies {
    ($function:ident) => {
        [
            $function::<0>,
            $function::<1>,
            $function::<2>,
            $function::<3>,
            $function::<4>,
            $function::<5>,
            $function::<6>,
            $function::<7>,
        ]
    };
}

/// A function of SQL.
struct Function {
    name: &'static CStr,
    arguments: c_int,
    /// The flag that says whether views and triggers may call the function.
    risk: c_int,
    copies: [SqlFunction; COPIES],
}

/// A database may come from another person, with views and triggers that this person wrote. Such views and
/// triggers must not call a function that tells where files of this machine are (`SQLITE_DIRECTONLY`).
const FUNCTIONS: [Function; 3] = [
    Function {
        name: c"duralite_last_error",
        arguments: 0,
        risk: ffi::INNOCUOUS,
        copies: copies!(last_error),
    },
    Function { name: c"duralite_json", arguments: 0, risk: ffi::DIRECTONLY, copies: copies!(status) },
    Function { name: c"duralite_json", arguments: 1, risk: ffi::DIRECTONLY, copies: copies!(status) },
];

/// Returns the SQLite to which the functions with this number belong.
fn owner(copy: usize) -> Option<&'static Sqlite> {
    // SAFETY: the pointer is null, or leads to a `Sqlite` that is never freed.
    OWNERS.get(copy).and_then(|owner| unsafe { owner.load(Ordering::Acquire).as_ref() })
}

/// Answers `duralite_last_error()` with the reason of the last refusal, or with NULL if nothing was refused
/// so far.
unsafe extern "C" fn last_error<const COPY: usize>(context: *mut Context, _: c_int, _: *mut *mut Value) {
    shield((), || {
        let (Some(sqlite), Some(text)) = (owner(COPY), refusals::last_error()) else { return };
        // SAFETY: the context belongs to this call, and the call comes from this SQLite.
        unsafe { values::answer(&sqlite.api, context, &Cell::Text(text)) };
    });
}

/// Answers `duralite_json()` with the rows of the table `duralite` as one JSON object.
unsafe extern "C" fn status<const COPY: usize>(
    context: *mut Context,
    count: c_int,
    arguments: *mut *mut Value,
) {
    shield((), || {
        let Some(sqlite) = owner(COPY) else { return };
        // SAFETY: these are SQLite's own arguments, in a call by the SQLite to which they belong, on the
        // connection's thread.
        unsafe {
            let given = if count > 0 { *arguments } else { ptr::null_mut() };
            let schema = values::schema(&sqlite.api, given);
            let connection = (sqlite.api.context_db_handle)(context);
            let status = ask::about(sqlite, connection, &schema, |subject| status_of(&subject));
            match status {
                Ok(status) => values::answer(&sqlite.api, context, &Cell::Text(json_object(&status))),
                Err(failure) => values::error(&sqlite.api, context, &failure.message),
            }
        }
    });
}

/// Gives a connection the functions. Ignores a failure, after which the connection has to do without the
/// functions.
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
    for Function { name, arguments, risk, copies } in FUNCTIONS {
        // SAFETY: as promised by the caller. The function has no data to free.
        unsafe {
            (sqlite.api.create_function_v2)(
                db,
                name.as_ptr(),
                arguments,
                ffi::UTF8 | risk,
                ptr::null_mut(),
                Some(copies[copy]),
                None,
                None,
                None,
            )
        };
    }
}
