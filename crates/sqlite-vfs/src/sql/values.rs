//! Reads the arguments of functions and tables, and returns the results of functions and columns.
#![allow(unsafe_code)] // takes values from SQLite, and hands values to it

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use duralite_sqlite_ffi::{Context, Value};

use super::views::Cell;
use crate::refusals;
use crate::sqlite::Api;

/// Returns the name of the schema that a value gives, or `main` if the value is null.
///
/// # Safety
/// `value` is null, or an argument of a call that has not returned. The call comes from the SQLite to which
/// `api` belongs.
pub unsafe fn schema(api: &Api, value: *mut Value) -> CString {
    let text = if value.is_null() {
        ptr::null()
    } else {
        // SAFETY: as promised by the caller.
        unsafe { (api.value_text)(value) }
    };
    if text.is_null() {
        return c"main".to_owned();
    }
    // SAFETY: the text is SQLite's, and ends with a zero.
    unsafe { CStr::from_ptr(text.cast()) }.to_owned()
}

/// Returns a value to SQLite.
///
/// # Safety
/// `context` belongs to a call that has not returned. The call comes from the SQLite to which `api` belongs.
pub unsafe fn answer(api: &Api, context: *mut Context, value: &Cell) {
    match value {
        // Set no result, because SQLite then takes NULL.
        Cell::Null => {}
        // SAFETY: as promised by the caller.
        Cell::Integer(number) => unsafe { (api.result_int64)(context, *number) },
        // SAFETY: as promised by the caller.
        Cell::Text(text) => unsafe { text_of(api, context, text) },
    }
}

/// Returns a text to SQLite, which copies it.
///
/// # Safety
/// As for [`answer`].
unsafe fn text_of(api: &Api, context: *mut Context, text: &str) {
    let Ok(bytes) = c_int::try_from(text.len()) else {
        // SAFETY: as promised by the caller.
        return unsafe { error(api, context, "duralite: a text of more than 2 GiB") };
    };
    // `SQLITE_TRANSIENT`: SQLite copies the text.
    let transient = ptr::without_provenance::<c_void>(usize::MAX);
    // SAFETY: as promised by the caller. The text has this length.
    unsafe { (api.result_text)(context, text.as_ptr().cast(), bytes, transient) };
}

/// Returns an error to SQLite.
///
/// # Safety
/// As for [`answer`].
pub unsafe fn error(api: &Api, context: *mut Context, text: &str) {
    let text = refusals::c_text(text);
    // SAFETY: as promised by the caller. SQLite copies the text, which ends with a zero.
    unsafe { (api.result_error)(context, text.as_ptr(), -1) };
}
