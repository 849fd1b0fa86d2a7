//! What belongs to one SQLite of the process, and the entry that makes it.
//!
//! Two copies of SQLite in one process that load the same library share its globals. So nothing
//! here is global: each registration keeps its own copies of the function pointers and is found
//! through the `pAppData` of its VFS.
#![allow(unsafe_code)] // calls SQLite through its table of routines

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_medium::process::PerProcess;
use duralite_sqlite_ffi::{
    self as ffi, ApiRoutines, Connection, Context, CreateFunction, EntryPoint, Statement, Vfs,
};

use crate::base::BaseVfs;
use crate::db::Db;
use crate::errors::Failure;
use crate::{connection, functions, hosts, refusals, settings, strict, vfs};

/// The name under which the VFS is registered. A static: that a VFS has this very text shows that it is
/// one of this library's, and not of another copy of it.
pub static VFS_NAME: &CStr = c"duralite";
/// `SQLITE_VERSION_NUMBER` of the oldest SQLite that has all that is called.
pub const OLDEST_SQLITE: c_int = 3_031_000;

/// Serialises registering, so that two threads do not both find the name free.
static REGISTERING: PerProcess<Mutex<()>> = PerProcess::new();

/// Why the VFS could not be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterError {
    message: String,
}

impl RegisterError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RegisterError {}

/// SQLite's functions, copied out of its table.
pub(crate) struct Api {
    pub auto_extension: unsafe extern "C" fn(EntryPoint) -> c_int,
    pub busy_timeout: unsafe extern "C" fn(*mut Connection, c_int) -> c_int,
    pub close: unsafe extern "C" fn(*mut Connection) -> c_int,
    pub column_int: unsafe extern "C" fn(*mut Statement, c_int) -> c_int,
    pub column_text: unsafe extern "C" fn(*mut Statement, c_int) -> *const c_uchar,
    pub create_function_v2: CreateFunction,
    pub db_filename: unsafe extern "C" fn(*mut Connection, *const c_char) -> *const c_char,
    pub errmsg: unsafe extern "C" fn(*mut Connection) -> *const c_char,
    pub file_control: unsafe extern "C" fn(*mut Connection, *const c_char, c_int, *mut c_void) -> c_int,
    pub finalize: unsafe extern "C" fn(*mut Statement) -> c_int,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
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
    pub filename_wal: unsafe extern "C" fn(*const c_char) -> *const c_char,
    threadsafe: unsafe extern "C" fn() -> c_int,
}

impl Api {
    /// # Safety
    /// `routines` is null or the table that a SQLite passes to extensions.
    unsafe fn copy(routines: *const ApiRoutines) -> Result<Self, RegisterError> {
        if routines.is_null() {
            return Err(RegisterError::new(
                "duralite: this SQLite passes no table of routines to extensions",
            ));
        }
        // SAFETY: the table is SQLite's; this entry has been there since 3.3.
        let version = unsafe { (*routines).libversion_number };
        // SAFETY: takes nothing, returns a number.
        let version = version.map_or(0, |version| unsafe { version() });
        if version < OLDEST_SQLITE {
            return Err(RegisterError::new(format!(
                "duralite needs SQLite 3.31 or newer; this one says {version}"
            )));
        }
        // SAFETY: a SQLite of this version has the whole table; it never changes.
        let routines = unsafe { &*routines };
        macro_rules! copy {
            ($($name:ident),*) => {
                Self { $($name: routines.$name.ok_or_else(|| {
                    RegisterError::new(concat!("duralite: this SQLite lacks sqlite3_", stringify!($name)))
                })?),* }
            };
        }
        Ok(copy!(
            auto_extension,
            busy_timeout,
            close,
            column_int,
            column_text,
            create_function_v2,
            db_filename,
            errmsg,
            file_control,
            finalize,
            free,
            mprintf,
            result_text,
            step,
            prepare_v2,
            open_v2,
            vfs_find,
            vfs_register,
            log,
            uri_parameter,
            uri_key,
            filename_wal,
            threadsafe
        ))
    }
}

impl Api {
    /// Whether several threads may call this SQLite.
    pub fn is_threadsafe(&self) -> bool {
        // SAFETY: takes nothing, returns a number.
        unsafe { (self.threadsafe)() != 0 }
    }
}

/// The VFS of one SQLite. Never freed: SQLite may call it until the process ends.
pub(crate) struct Registration {
    pub api: Api,
    pub parent: BaseVfs,
    /// This process's open databases by the address of their WAL's name, which is how SQLite's calls about
    /// the WAL are recognised.
    databases: PerProcess<Mutex<HashMap<usize, Arc<Db>>>>,
}

/// Gives the locks back that the base VFS believes this child to hold for its parent's connections: it counts the
/// locks of a process on its own, and would take none from the kernel for the child's.
fn disown(parents: &'static Mutex<HashMap<usize, Arc<Db>>>) {
    // One that was locked at the fork stays so: no thread is there that could unlock it.
    if let Ok(databases) = parents.try_lock() {
        for db in databases.values() {
            db.base.unlock(ffi::LOCK_NONE);
        }
    }
}

impl Registration {
    /// To be called before anything is done for this process, which may be a child.
    pub fn enter(&self) {
        drop(self.databases());
    }

    fn databases(&self) -> MutexGuard<'_, HashMap<usize, Arc<Db>>> {
        self.databases.get_after(disown).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database whose WAL has this very name.
    pub fn database_of_wal(&self, wal_name: *const c_char) -> Option<Arc<Db>> {
        self.databases().get(&wal_name.addr()).cloned()
    }

    /// Refuses a rollback journal that its database must not get now.
    pub fn check_journal(&self, journal: &Path) -> Result<(), Failure> {
        let databases = self.databases();
        let mut checked = databases
            .values()
            .map(|db| db.check_journal(journal).and_then(|()| strict::check_journal(db, journal)));
        checked.find(Result::is_err).unwrap_or(Ok(()))
    }

    pub fn remember(&self, db: &Arc<Db>) {
        self.databases().insert(db.wal_name.address(), Arc::clone(db));
    }

    pub fn forget(&self, db: &Db) {
        let removed = {
            let mut databases = self.databases();
            match databases.get(&db.wal_name.address()) {
                Some(found) if ptr::eq(Arc::as_ptr(found), db) => databases.remove(&db.wal_name.address()),
                _ => None,
            }
        };
        drop(removed);
    }

    /// Tells SQLite's error log, and stderr if asked to.
    pub fn report(&self, code: c_int, message: &str) {
        let text = refusals::c_text(&format!("duralite: {message}"));
        // SAFETY: the format takes one string, which lives across the call.
        unsafe { (self.api.log)(code, c"%s".as_ptr(), text.as_ptr()) };
        if std::env::var_os("DURALITE_LOG").is_some_and(|value| value == "stderr") {
            eprintln!("duralite: {message}");
        }
    }

    /// Reports a refusal, keeps its reason, and returns its code.
    pub fn fail(&self, failure: &Failure) -> c_int {
        refusals::record(&failure.message);
        self.report(failure.code, &failure.message);
        failure.code
    }

    /// Text in SQLite's memory; null when there is none left.
    pub fn text(&self, text: &str) -> *mut c_char {
        let text = refusals::c_text(text);
        // SAFETY: the format takes one string, which lives across the call.
        unsafe { (self.api.mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }
}

/// How the library was entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The VFS becomes the default one.
    pub make_default: bool,
    /// Somebody loaded the library through the connection, as opposed to SQLite calling for each that
    /// is opened.
    pub loaded: bool,
}

/// Registers the VFS with the SQLite that `routines` belongs to, on top of its default VFS, and gives
/// `duralite_last_error()` to `db` and to every connection opened later. Doing it again changes nothing,
/// except that `make_default` makes it the default.
///
/// # Errors
/// When SQLite is too old or refuses, or when `db` has a file open without Duralite and the environment
/// says `strict`; on a non-null `message` the text is put there too.
///
/// # Safety
/// `routines` is null or the table that SQLite passes to extensions, `db` is null or the connection that
/// it passes, and `message` is null or where it wants the error text.
pub unsafe fn register(
    db: *mut Connection,
    routines: *const ApiRoutines,
    entry: Entry,
    message: *mut *mut c_char,
) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    let api = unsafe { Api::copy(routines) };
    // SAFETY: as promised by the caller.
    let result = api.and_then(|api| unsafe { register_through(db, api, entry) });
    result.inspect_err(|error| {
        refusals::record(&error.message);
        // SAFETY: as promised by the caller.
        unsafe { tell(routines, message, &error.message) };
    })
}

/// Puts the text of an error where SQLite wants it.
///
/// # Safety
/// `routines` is null or SQLite's table, and `message` null or where it wants the text.
unsafe fn tell(routines: *const ApiRoutines, message: *mut *mut c_char, text: &str) {
    // SAFETY: as promised by the caller; this entry is as old as extensions are.
    let mprintf = unsafe { routines.as_ref() }.and_then(|table| table.mprintf);
    if let Some(mprintf) = mprintf.filter(|_| !message.is_null()) {
        let text = refusals::c_text(text);
        // SAFETY: the format takes one string; the caller promised where the text goes.
        unsafe { *message = mprintf(c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// # Safety
/// `db` is null or an open connection of the SQLite that `api` is from.
unsafe fn register_through(db: *mut Connection, api: Api, entry: Entry) -> Result<(), RegisterError> {
    let is_strict = settings::strict_by_environment();
    let looked_at = !db.is_null() && (is_strict || entry.loaded || entry.make_default);
    // SAFETY: as promised by the caller.
    let plain = if looked_at { unsafe { hosts::plain_database(&api, db) } } else { None };
    if let Some(plain) = plain.as_ref().filter(|plain| is_strict && !plain.on_purpose) {
        // Before anything is registered: SQLite unloads a library that fails.
        return Err(RegisterError::new(format!("duralite: {}", plain.refusal())));
    }
    let registration = register_with(api, entry.make_default)?;
    let Some(registration) = registration.filter(|_| !db.is_null()) else { return Ok(()) };
    // SAFETY: as promised by the caller.
    unsafe { functions::add(registration, db) };
    if let Some(plain) = plain.filter(|plain| !plain.on_purpose) {
        registration.report(ffi::WARNING, &plain.warning());
    }
    Ok(())
}

/// The registration, unless the VFS of our name is another library's.
fn register_with(api: Api, make_default: bool) -> Result<Option<&'static Registration>, RegisterError> {
    let _one_at_a_time = REGISTERING.get().lock().unwrap_or_else(PoisonError::into_inner);
    let (find, register) = (api.vfs_find, api.vfs_register);
    let refused = |code: c_int| RegisterError::new(format!("duralite: SQLite refused the VFS (code {code})"));
    // SAFETY: a name that lives for good.
    let existing = unsafe { find(VFS_NAME.as_ptr()) };
    if !existing.is_null() {
        if make_default {
            // SAFETY: found a moment ago; registered VFSs stay.
            let code = unsafe { register(existing, 1) };
            if code != ffi::OK {
                return Err(refused(code));
            }
        }
        // SAFETY: found a moment ago.
        return Ok(unsafe { vfs::ours(existing) });
    }
    // SAFETY: null asks for the default.
    let parent = unsafe { find(ptr::null()) };
    if parent.is_null() {
        return Err(RegisterError::new("duralite: this SQLite has no VFS to build on"));
    }
    // SAFETY: registered, and nobody unregisters the default of a running SQLite.
    let parent = unsafe { BaseVfs::new(parent) };
    let auto_extension = api.auto_extension;
    let registration = Box::leak(Box::new(Registration { api, parent, databases: PerProcess::new() }));
    let app_data: *mut c_void = ptr::from_ref::<Registration>(registration).cast_mut().cast();
    let table = Box::into_raw(Box::new(vfs::table(parent, app_data)));
    // SAFETY: a table that is never freed and that SQLite may write `next` into.
    let code = unsafe { register(table, c_int::from(make_default)) };
    if code != ffi::OK {
        return Err(refused(code));
    }
    // Without memory for it, later connections do without the function.
    // SAFETY: an entry point that is there as long as the VFS is.
    unsafe { auto_extension(opened) };
    Ok(Some(registration))
}

/// Called by SQLite for every connection that has been opened.
unsafe extern "C" fn opened(
    db: *mut Connection,
    message: *mut *mut c_char,
    routines: *const ApiRoutines,
) -> c_int {
    vfs::shield(ffi::OK, || {
        // SAFETY: null, or the table of the SQLite that calls.
        let find = unsafe { routines.as_ref() }.and_then(|routines| routines.vfs_find);
        // SAFETY: a name that lives for good, and what is registered under it.
        let registration = find.and_then(|find| unsafe { vfs::ours(find(VFS_NAME.as_ptr())) });
        let Some(registration) = registration else { return ffi::OK };
        // SAFETY: SQLite passes the connection that it has opened.
        unsafe { functions::add(registration, db) };
        if !settings::strict_by_environment() || connection::is_opening() {
            return ffi::OK;
        }
        // SAFETY: as above.
        let plain = unsafe { hosts::plain_database(&registration.api, db) };
        let Some(plain) = plain.filter(|plain| !plain.on_purpose) else { return ffi::OK };
        let failure = Failure::cannot_open(plain.refusal());
        // SAFETY: SQLite's own arguments.
        unsafe { tell(routines, message, &failure.message) };
        registration.fail(&failure)
    })
}
