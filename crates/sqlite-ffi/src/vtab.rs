//! `sqlite3_module` and its types: virtual tables, their cursors, and what the query planner asks.

use std::ffi::{c_char, c_int, c_uchar, c_void};

use crate::types::{Connection, Context, SqlFunction, Value};

/// `sqlite3_vtab`: the beginning of every virtual table.
#[repr(C)]
pub struct VTab {
    pub module: *const Module,
    pub references: c_int,
    /// The error message, in SQLite's memory. SQLite frees it.
    pub message: *mut c_char,
}

/// `sqlite3_vtab_cursor`: the beginning of every cursor.
#[repr(C)]
pub struct VTabCursor {
    pub table: *mut VTab,
}

/// `struct sqlite3_index_constraint`.
#[repr(C)]
pub struct IndexConstraint {
    pub column: c_int,
    pub op: c_uchar,
    pub usable: c_uchar,
    pub term_offset: c_int,
}

/// `struct sqlite3_index_constraint_usage`.
#[repr(C)]
pub struct IndexConstraintUsage {
    pub argv_index: c_int,
    pub omit: c_uchar,
}

/// `sqlite3_index_info`, up to the cost. The fields after the cost are newer than SQLite 3.8.
#[repr(C)]
pub struct IndexInfo {
    pub constraints: c_int,
    pub constraint: *mut IndexConstraint,
    pub order_bys: c_int,
    pub order_by: *mut c_void,
    pub usage: *mut IndexConstraintUsage,
    pub number: c_int,
    pub text: *mut c_char,
    pub text_is_sqlites: c_int,
    pub order_by_consumed: c_int,
    pub cost: f64,
}

type OfTable = unsafe extern "C" fn(*mut VTab) -> c_int;
type OfCursor = unsafe extern "C" fn(*mut VTabCursor) -> c_int;
/// `xCreate` and `xConnect`.
pub type Connect = unsafe extern "C" fn(
    *mut Connection,
    *mut c_void,
    c_int,
    *const *const c_char,
    *mut *mut VTab,
    *mut *mut c_char,
) -> c_int;
/// `xFilter`.
pub type Filter =
    unsafe extern "C" fn(*mut VTabCursor, c_int, *const c_char, c_int, *mut *mut Value) -> c_int;
/// `xFindFunction`.
pub type FindFunction = unsafe extern "C" fn(
    *mut VTab,
    c_int,
    *const c_char,
    *mut Option<SqlFunction>,
    *mut *mut c_void,
) -> c_int;

/// `sqlite3_module`, version 1. SQLite reads the fields after these only if `version` is higher.
#[repr(C)]
pub struct Module {
    pub version: c_int,
    pub create: Option<Connect>,
    pub connect: Option<Connect>,
    pub best_index: Option<unsafe extern "C" fn(*mut VTab, *mut IndexInfo) -> c_int>,
    pub disconnect: Option<OfTable>,
    pub destroy: Option<OfTable>,
    pub open: Option<unsafe extern "C" fn(*mut VTab, *mut *mut VTabCursor) -> c_int>,
    pub close: Option<OfCursor>,
    pub filter: Option<Filter>,
    pub next: Option<OfCursor>,
    pub eof: Option<OfCursor>,
    pub column: Option<unsafe extern "C" fn(*mut VTabCursor, *mut Context, c_int) -> c_int>,
    pub rowid: Option<unsafe extern "C" fn(*mut VTabCursor, *mut i64) -> c_int>,
    pub update: Option<unsafe extern "C" fn(*mut VTab, c_int, *mut *mut Value, *mut i64) -> c_int>,
    pub begin: Option<OfTable>,
    pub sync: Option<OfTable>,
    pub commit: Option<OfTable>,
    pub rollback: Option<OfTable>,
    pub find_function: Option<FindFunction>,
    pub rename: Option<unsafe extern "C" fn(*mut VTab, *const c_char) -> c_int>,
}
