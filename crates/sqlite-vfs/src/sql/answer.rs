//! Results of functions and columns.
#![allow(unsafe_code)] // hands values to SQLite

use std::ffi::{c_int, c_void};
use std::ptr;

use duralite_sqlite_ffi::Context;

use super::view::Cell;
use crate::refusals;
use crate::sqlite::Api;

/// Answers with a value.
///
/// # Safety
/// `context` is that of a call, not yet returned, of the SQLite that `api` is from.
pub unsafe fn value(api: &Api, context: *mut Context, value: &Cell) {
    match value {
        // SQLite takes NULL where nothing is answered.
        Cell::Null => {}
        // SAFETY: as promised by the caller.
        Cell::Integer(number) => unsafe { (api.result_int64)(context, *number) },
        // SAFETY: as promised by the caller.
        Cell::Text(text) => unsafe { text_of(api, context, text) },
    }
}

/// Answers with a text, which SQLite copies.
///
/// # Safety
/// As for [`value`].
unsafe fn text_of(api: &Api, context: *mut Context, text: &str) {
    let Ok(bytes) = c_int::try_from(text.len()) else {
        // SAFETY: as promised by the caller.
        return unsafe { error(api, context, "duralite: a text of more than 2 GiB") };
    };
    // `SQLITE_TRANSIENT`: SQLite copies the text.
    let transient = ptr::without_provenance::<c_void>(usize::MAX);
    // SAFETY: as promised by the caller; the text has this length.
    unsafe { (api.result_text)(context, text.as_ptr().cast(), bytes, transient) };
}

/// Answers with an error.
///
/// # Safety
/// As for [`value`].
pub unsafe fn error(api: &Api, context: *mut Context, text: &str) {
    let text = refusals::c_text(text);
    // SAFETY: as promised by the caller; SQLite copies the text, which ends with a zero.
    unsafe { (api.result_error)(context, text.as_ptr(), -1) };
}
