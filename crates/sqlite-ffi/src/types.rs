//! SQLite's opaque types, and the type of a function of SQL.

use std::ffi::c_int;

/// `sqlite3`, opaque.
pub enum Connection {}
/// `sqlite3_stmt`, opaque.
pub enum Statement {}
/// `sqlite3_context`, opaque.
pub enum Context {}
/// `sqlite3_value`, opaque.
pub enum Value {}

/// A function of SQL, or one step of an aggregate.
pub type SqlFunction = unsafe extern "C" fn(*mut Context, c_int, *mut *mut Value);
