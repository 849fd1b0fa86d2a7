//! The prefix of `sqlite3_api_routines` that SQLite 3.31 has.

use std::ffi::{c_char, c_int, c_void};

use crate::Vfs;

/// `sqlite3`, opaque.
pub enum Connection {}
/// `sqlite3_stmt`, opaque.
pub enum Statement {}

type Unused<const N: usize> = [*const c_void; N];

/// `sqlite3_api_routines` up to `filename_wal` (3.31). Entries that Duralite does not use are
/// kept as unnamed words.
#[repr(C)]
pub struct ApiRoutines {
    _0: Unused<14>,
    pub busy_timeout: Option<unsafe extern "C" fn(*mut Connection, c_int) -> c_int>,
    _15: Unused<1>,
    pub close: Option<unsafe extern "C" fn(*mut Connection) -> c_int>,
    _17: Unused<11>,
    pub column_int: Option<unsafe extern "C" fn(*mut Statement, c_int) -> c_int>,
    _29: Unused<24>,
    pub errmsg: Option<unsafe extern "C" fn(*mut Connection) -> *const c_char>,
    _54: Unused<3>,
    pub finalize: Option<unsafe extern "C" fn(*mut Statement) -> c_int>,
    pub free: Option<unsafe extern "C" fn(*mut c_void)>,
    _59: Unused<8>,
    pub libversion_number: Option<unsafe extern "C" fn() -> c_int>,
    _68: Unused<1>,
    pub mprintf: Option<unsafe extern "C" fn(*const c_char, ...) -> *mut c_char>,
    _70: Unused<24>,
    pub step: Option<unsafe extern "C" fn(*mut Statement) -> c_int>,
    _95: Unused<21>,
    pub prepare_v2: Option<
        unsafe extern "C" fn(
            *mut Connection,
            *const c_char,
            c_int,
            *mut *mut Statement,
            *mut *const c_char,
        ) -> c_int,
    >,
    _117: Unused<18>,
    pub open_v2:
        Option<unsafe extern "C" fn(*const c_char, *mut *mut Connection, c_int, *const c_char) -> c_int>,
    _136: Unused<5>,
    pub vfs_find: Option<unsafe extern "C" fn(*const c_char) -> *mut Vfs>,
    pub vfs_register: Option<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>,
    _143: Unused<1>,
    pub threadsafe: Option<unsafe extern "C" fn() -> c_int>,
    _145: Unused<22>,
    pub log: Option<unsafe extern "C" fn(c_int, *const c_char, ...)>,
    _168: Unused<21>,
    pub uri_parameter: Option<unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char>,
    _190: Unused<55>,
    pub uri_key: Option<unsafe extern "C" fn(*const c_char, c_int) -> *const c_char>,
    _246: Unused<2>,
    pub filename_wal: Option<unsafe extern "C" fn(*const c_char) -> *const c_char>,
}
