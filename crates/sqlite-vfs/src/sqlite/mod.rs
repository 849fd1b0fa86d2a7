//! One copy of SQLite in the process: its functions, the VFS below this one, and the reports of failures to
//! this SQLite.
//!
//! Two copies of SQLite in one process may load the same library, and then share its globals. So the function
//! pointers are not global: each registration keeps its own.
#![allow(unsafe_code)] // calls SQLite through its table of routines

pub mod base;
pub mod connection;
pub mod plain;

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::ptr;
use std::sync::Mutex;

use duralite_sqlite_ffi::{
    self as ffi, ApiRoutines, BusyHandler, Connection, Context, CreateFunction, CreateModule, EntryPoint,
    Statement, Value, Vfs,
};

use crate::errors::Failure;
use crate::refusals;
use base::BaseVfs;

/// The name under which the VFS is registered. The name is a static, so that its address identifies a VFS of
/// this copy of the library. Another copy has the same name at another address.
pub static VFS_NAME: &CStr = c"duralite";
/// `SQLITE_VERSION_NUMBER` of the oldest SQLite that has all functions that this library calls.
pub const OLDEST_SQLITE: c_int = 3_031_000;

/// The reason why the VFS could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RegisterError {
    pub(crate) message: String,
}

impl RegisterError {
    /// Makes an error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// SQLite's functions, copied out of its table.
pub struct Api {
    pub auto_extension: unsafe extern "C" fn(EntryPoint) -> c_int,
    pub busy_handler: unsafe extern "C" fn(*mut Connection, Option<BusyHandler>, *mut c_void) -> c_int,
    pub close: unsafe extern "C" fn(*mut Connection) -> c_int,
    pub column_int: unsafe extern "C" fn(*mut Statement, c_int) -> c_int,
    pub column_text: unsafe extern "C" fn(*mut Statement, c_int) -> *const c_uchar,
    pub context_db_handle: unsafe extern "C" fn(*mut Context) -> *mut Connection,
    pub create_function_v2: CreateFunction,
    /// `sqlite3_db_name`; `None` in a SQLite before 3.39.
    pub db_name: Option<ffi::DbName>,
    pub db_filename: unsafe extern "C" fn(*mut Connection, *const c_char) -> *const c_char,
    pub errmsg: unsafe extern "C" fn(*mut Connection) -> *const c_char,
    pub file_control: unsafe extern "C" fn(*mut Connection, *const c_char, c_int, *mut c_void) -> c_int,
    pub finalize: unsafe extern "C" fn(*mut Statement) -> c_int,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub get_autocommit: unsafe extern "C" fn(*mut Connection) -> c_int,
    pub mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
    pub next_stmt: unsafe extern "C" fn(*mut Connection, *mut Statement) -> *mut Statement,
    pub sql: unsafe extern "C" fn(*mut Statement) -> *const c_char,
    pub stmt_busy: unsafe extern "C" fn(*mut Statement) -> c_int,
    pub stmt_readonly: unsafe extern "C" fn(*mut Statement) -> c_int,
    pub result_error: unsafe extern "C" fn(*mut Context, *const c_char, c_int),
    pub result_int64: unsafe extern "C" fn(*mut Context, i64),
    pub result_text: unsafe extern "C" fn(*mut Context, *const c_char, c_int, *const c_void),
    pub step: unsafe extern "C" fn(*mut Statement) -> c_int,
    pub prepare_v2: unsafe extern "C" fn(
        *mut Connection,
        *const c_char,
        c_int,
        *mut *mut Statement,
        *mut *const c_char,
    ) -> c_int,
    pub open_v2: unsafe extern "C" fn(*const c_char, *mut *mut Connection, c_int, *const c_char) -> c_int,
    pub vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    pub vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub log: unsafe extern "C" fn(c_int, *const c_char, ...),
    pub uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    pub uri_key: unsafe extern "C" fn(*const c_char, c_int) -> *const c_char,
    pub filename_journal: unsafe extern "C" fn(*const c_char) -> *const c_char,
    pub filename_wal: unsafe extern "C" fn(*const c_char) -> *const c_char,
    pub value_text: unsafe extern "C" fn(*mut Value) -> *const c_uchar,
    /// The functions for virtual tables; `None` in a SQLite that was built without virtual tables.
    pub tables: Option<TableApi>,
    /// `sqlite3_txn_state`; `None` in a SQLite before 3.34.
    pub txn_state: Option<ffi::TxnState>,
    threadsafe: unsafe extern "C" fn() -> c_int,
}

/// SQLite's functions for virtual tables.
#[derive(Clone, Copy)]
pub struct TableApi {
    pub create_module_v2: CreateModule,
    pub declare_vtab: unsafe extern "C" fn(*mut Connection, *const c_char) -> c_int,
    pub vtab_config: unsafe extern "C" fn(*mut Connection, c_int, ...) -> c_int,
}

impl TableApi {
    fn copy(routines: &ApiRoutines) -> Option<Self> {
        Some(Self {
            create_module_v2: routines.create_module_v2?,
            declare_vtab: routines.declare_vtab?,
            vtab_config: routines.vtab_config?,
        })
    }
}

impl Api {
    /// # Safety
    /// `routines` is null or the table that a SQLite passes to extensions.
    pub unsafe fn copy(routines: *const ApiRoutines) -> Result<Self, RegisterError> {
        if routines.is_null() {
            return Err(RegisterError::new(
                "duralite: this SQLite passes no table of routines to extensions",
            ));
        }
        // SAFETY: the table is SQLite's, and has had this entry since 3.3.
        let version = unsafe { (*routines).libversion_number };
        // SAFETY: the function takes nothing, and returns a number.
        let version = version.map_or(0, |version| unsafe { version() });
        if version < OLDEST_SQLITE {
            return Err(RegisterError::new(format!(
                "duralite needs SQLite 3.31 or newer; this one says {version}"
            )));
        }
        // SAFETY: this is the table of a SQLite of this version.
        let (db_name, txn_state) = unsafe { (db_name(routines, version), txn_state(routines, version)) };
        // SAFETY: a SQLite of this version has the whole table, which never changes.
        let routines = unsafe { &*routines };
        macro_rules! copy {
            ($($name:ident),*) => {
                Self { $($name: routines.$name.ok_or_else(|| {
                    RegisterError::new(concat!("duralite: this SQLite lacks sqlite3_", stringify!($name)))
                })?,)* db_name, txn_state, tables: TableApi::copy(routines) }
            };
        }
        Ok(copy!(
            auto_extension,
            busy_handler,
            close,
            column_int,
            column_text,
            context_db_handle,
            create_function_v2,
            db_filename,
            errmsg,
            file_control,
            finalize,
            free,
            get_autocommit,
            mprintf,
            next_stmt,
            sql,
            stmt_busy,
            stmt_readonly,
            result_error,
            result_int64,
            result_text,
            step,
            prepare_v2,
            open_v2,
            vfs_find,
            vfs_register,
            log,
            uri_parameter,
            uri_key,
            filename_journal,
            filename_wal,
            value_text,
            threadsafe
        ))
    }
}

/// Returns the entry for `sqlite3_db_name`, or `None` if this SQLite is too old to have it.
///
/// # Safety
/// `routines` is the table that a SQLite of this version passes to extensions.
unsafe fn db_name(routines: *const ApiRoutines, version: c_int) -> Option<ffi::DbName> {
    if version < ffi::DB_NAME_SINCE {
        return None;
    }
    // SAFETY: a SQLite of this version has the entry, and a null function pointer is `None`.
    unsafe { routines.cast::<Option<ffi::DbName>>().add(ffi::DB_NAME_WORD).read() }
}

/// Returns the entry for `sqlite3_txn_state`, or `None` if this SQLite is too old to have it.
///
/// # Safety
/// `routines` is the table that a SQLite of this version passes to extensions.
unsafe fn txn_state(routines: *const ApiRoutines, version: c_int) -> Option<ffi::TxnState> {
    if version < ffi::TXN_STATE_SINCE {
        return None;
    }
    // SAFETY: a SQLite of this version has the entry, and a null function pointer is `None`.
    unsafe { routines.cast::<Option<ffi::TxnState>>().add(ffi::TXN_STATE_WORD).read() }
}

impl Api {
    /// Returns whether several threads may call this SQLite.
    pub fn is_threadsafe(&self) -> bool {
        // SAFETY: the function takes nothing, and returns a number.
        unsafe { (self.threadsafe)() != 0 }
    }
}

/// The reason of the last message that was printed on standard error.
static LAST_SAID: Mutex<String> = Mutex::new(String::new());

/// One copy of SQLite, and the VFS that was its default when this library was registered. The library never
/// frees this value, because SQLite may call this library's VFS until the process ends.
pub struct Sqlite {
    pub api: Api,
    pub parent: BaseVfs,
}

impl Sqlite {
    /// Writes to SQLite's error log, and to standard error if `DURALITE_LOG=stderr`.
    pub fn report(&self, code: c_int, message: &str) {
        self.report_because(code, message, message);
    }

    fn report_because(&self, code: c_int, message: &str, reason: &str) {
        let text = refusals::c_text(&format!("duralite: {message}"));
        // SAFETY: the format takes one string, which lives across the call.
        unsafe { (self.api.log)(code, c"%s".as_ptr(), text.as_ptr()) };
        if std::env::var_os("DURALITE_LOG").is_some_and(|value| value == "stderr") {
            // A connection that waits for a lock tries again and again, and is refused for the same reason
            // each time, so print only a new reason. Do not wait for the mutex, because a mutex that another
            // thread held at a fork stays locked in the child.
            let last = LAST_SAID.try_lock().ok();
            if last.as_ref().is_none_or(|last| **last != reason) {
                eprintln!("duralite: {message}");
            }
            if let Some(mut last) = last {
                reason.clone_into(&mut last);
            }
        }
    }

    /// Records a failure for `duralite_last_error()`, reports it to SQLite's error log, and returns its code.
    pub fn fail(&self, failure: &Failure) -> c_int {
        refusals::record(&failure.message);
        self.report_because(failure.code, &failure.message, failure.reason());
        failure.code
    }

    /// Returns whether the main database of a connection is a file of another VFS than this one. SQLite then
    /// opens super-journals through that VFS. A main database without a name, such as one in memory, needs no
    /// super-journals, so the answer is `false`. If there is no main database yet, the answer is `false` too,
    /// because the database that is being opened becomes the main one.
    ///
    /// # Safety
    /// `connection` is open, or is being opened, on this thread.
    pub unsafe fn has_main_elsewhere(&self, connection: *mut Connection) -> bool {
        let mut vfs: *mut Vfs = ptr::null_mut();
        let (main, op) = (c"main".as_ptr(), ffi::FCNTL_VFS_POINTER);
        // SAFETY: as promised by the caller. SQLite stores a pointer to the VFS, and the name that it gives
        // stays while the database is open.
        unsafe {
            if (self.api.file_control)(connection, main, op, (&raw mut vfs).cast()) != ffi::OK {
                return false;
            }
            let name = (self.api.db_filename)(connection, main);
            let has_name = !name.is_null() && *name != 0;
            has_name && vfs != (self.api.vfs_find)(VFS_NAME.as_ptr())
        }
    }

    /// Returns a copy of the text in memory that SQLite frees, or null if SQLite is out of memory.
    pub fn text(&self, text: &str) -> *mut c_char {
        let text = refusals::c_text(text);
        // SAFETY: the format takes one string, which lives across the call.
        unsafe { (self.api.mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }
}
