//! The table of routines, `sqlite3_api_routines`, up to the last entry that SQLite 3.31 has.

use std::ffi::{c_char, c_int, c_uchar, c_void};

use crate::types::{Connection, Context, SqlFunction, Statement, Value};
use crate::vfs::Vfs;
use crate::vtab::Module;

/// The function that finishes an aggregate.
pub type SqlFinal = unsafe extern "C" fn(*mut Context);
/// Frees a value that was handed to SQLite.
pub type Destructor = unsafe extern "C" fn(*mut c_void);
/// `sqlite3_create_function_v2`.
pub type CreateFunction = unsafe extern "C" fn(
    *mut Connection,
    *const c_char,
    c_int,
    c_int,
    *mut c_void,
    Option<SqlFunction>,
    Option<SqlFunction>,
    Option<SqlFinal>,
    Option<Destructor>,
) -> c_int;
/// An entry point of an extension, as `sqlite3_auto_extension` calls it.
pub type EntryPoint = unsafe extern "C" fn(*mut Connection, *mut *mut c_char, *const ApiRoutines) -> c_int;

/// `sqlite3_create_module_v2`.
pub type CreateModule = unsafe extern "C" fn(
    *mut Connection,
    *const c_char,
    *const Module,
    *mut c_void,
    Option<Destructor>,
) -> c_int;

type Unused<const N: usize> = [*const c_void; N];

/// A function that SQLite calls when another connection holds a lock. The first argument is the pointer that
/// the application passed when it set this function. The second is how often SQLite has already called the
/// function for this lock. If the function returns 0, SQLite does not try again.
pub type BusyHandler = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

/// `sqlite3_api_routines` up to `filename_wal` (3.31). Entries that Duralite does not use are kept as unnamed
/// words.
#[repr(C)]
pub struct ApiRoutines {
    _0: Unused<13>,
    pub busy_handler:
        Option<unsafe extern "C" fn(*mut Connection, Option<BusyHandler>, *mut c_void) -> c_int>,
    _14: Unused<2>,
    pub close: Option<unsafe extern "C" fn(*mut Connection) -> c_int>,
    _17: Unused<11>,
    pub column_int: Option<unsafe extern "C" fn(*mut Statement, c_int) -> c_int>,
    _29: Unused<7>,
    pub column_text: Option<unsafe extern "C" fn(*mut Statement, c_int) -> *const c_uchar>,
    _37: Unused<13>,
    pub declare_vtab: Option<unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int>,
    _51: Unused<2>,
    pub errmsg: Option<unsafe extern "C" fn(*mut Connection) -> *const c_char>,
    _54: Unused<3>,
    pub finalize: Option<unsafe extern "C" fn(*mut Statement) -> c_int>,
    pub free: Option<unsafe extern "C" fn(*mut c_void)>,
    _59: Unused<1>,
    pub get_autocommit: Option<unsafe extern "C" fn(*mut Connection) -> c_int>,
    _61: Unused<6>,
    pub libversion_number: Option<unsafe extern "C" fn() -> c_int>,
    _68: Unused<1>,
    pub mprintf: Option<unsafe extern "C" fn(*const c_char, ...) -> *mut c_char>,
    _70: Unused<10>,
    pub result_error: Option<unsafe extern "C" fn(*mut Context, *const c_char, c_int)>,
    _81: Unused<2>,
    pub result_int64: Option<unsafe extern "C" fn(*mut Context, i64)>,
    _84: Unused<1>,
    /// The destructor may be `SQLITE_TRANSIENT`, which is not a function.
    pub result_text: Option<unsafe extern "C" fn(*mut Context, *const c_char, c_int, *const c_void)>,
    _86: Unused<8>,
    pub step: Option<unsafe extern "C" fn(*mut Statement) -> c_int>,
    _95: Unused<14>,
    pub value_text: Option<unsafe extern "C" fn(*mut Value) -> *const c_uchar>,
    _110: Unused<6>,
    pub prepare_v2: Option<
        unsafe extern "C" fn(
            *mut Connection,
            *const c_char,
            c_int,
            *mut *mut Statement,
            *mut *const c_char,
        ) -> c_int,
    >,
    _117: Unused<2>,
    pub create_module_v2: Option<CreateModule>,
    _120: Unused<7>,
    pub file_control:
        Option<unsafe extern "C" fn(*mut Connection, *const c_char, c_int, *mut c_void) -> c_int>,
    _128: Unused<7>,
    pub open_v2:
        Option<unsafe extern "C" fn(*const c_char, *mut *mut Connection, c_int, *const c_char) -> c_int>,
    _136: Unused<5>,
    pub vfs_find: Option<unsafe extern "C" fn(*const c_char) -> *mut Vfs>,
    pub vfs_register: Option<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>,
    _143: Unused<1>,
    pub threadsafe: Option<unsafe extern "C" fn() -> c_int>,
    _145: Unused<4>,
    pub context_db_handle: Option<unsafe extern "C" fn(*mut Context) -> *mut Connection>,
    _150: Unused<2>,
    pub next_stmt: Option<unsafe extern "C" fn(*mut Connection, *mut Statement) -> *mut Statement>,
    pub sql: Option<unsafe extern "C" fn(*mut Statement) -> *const c_char>,
    _154: Unused<8>,
    pub create_function_v2: Option<CreateFunction>,
    _163: Unused<4>,
    pub log: Option<unsafe extern "C" fn(c_int, *const c_char, ...)>,
    _168: Unused<9>,
    pub vtab_config: Option<unsafe extern "C" fn(*mut Connection, c_int, ...) -> c_int>,
    _178: Unused<2>,
    pub db_filename: Option<unsafe extern "C" fn(*mut Connection, *const c_char) -> *const c_char>,
    _181: Unused<3>,
    pub stmt_busy: Option<unsafe extern "C" fn(*mut Statement) -> c_int>,
    pub stmt_readonly: Option<unsafe extern "C" fn(*mut Statement) -> c_int>,
    _186: Unused<3>,
    pub uri_parameter: Option<unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char>,
    _190: Unused<2>,
    /// The header declares the argument as a function without arguments, but SQLite calls it as an
    /// [`EntryPoint`].
    pub auto_extension: Option<unsafe extern "C" fn(EntryPoint) -> c_int>,
    _193: Unused<52>,
    pub uri_key: Option<unsafe extern "C" fn(*const c_char, c_int) -> *const c_char>,
    _246: Unused<1>,
    pub filename_journal: Option<unsafe extern "C" fn(*const c_char) -> *const c_char>,
    pub filename_wal: Option<unsafe extern "C" fn(*const c_char) -> *const c_char>,
}

/// `sqlite3_db_name`, which SQLite has since 3.39.
pub type DbName = unsafe extern "C" fn(*mut Connection, c_int) -> *const c_char;
/// `SQLITE_VERSION_NUMBER` of the first SQLite that has `sqlite3_db_name`.
pub const DB_NAME_SINCE: c_int = 3_039_000;
/// The offset of `sqlite3_db_name` in `sqlite3_api_routines`, in words.
pub const DB_NAME_WORD: usize = 264;

/// `sqlite3_txn_state`, which SQLite has since 3.34.
pub type TxnState = unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int;
/// `SQLITE_VERSION_NUMBER` of the first SQLite that has `sqlite3_txn_state`.
pub const TXN_STATE_SINCE: c_int = 3_034_000;
/// The offset of `sqlite3_txn_state` in `sqlite3_api_routines`, in words.
pub const TXN_STATE_WORD: usize = 252;
