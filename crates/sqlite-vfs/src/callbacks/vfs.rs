//! `sqlite3_vfs`: the functions of the VFS itself, most of which take a file's name.
#![allow(unsafe_code)] // the functions that SQLite calls

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use duralite_sqlite_ffi::{self as ffi, File, SyscallFn, Vfs};

use super::{db_file, journal_file, wal_file};
use crate::account;
use crate::database::{Db, JournalStore, Names, Prepared, strict, super_journal, waiting};
use crate::errors::Failure;
use crate::guard::child::{self, ChildJournal};
use crate::guard::{self, journal, places};
use crate::registration::Registration;
use crate::settings::{self, Settings};
use crate::shield::shield;
use crate::sqlite::VFS_NAME;
use crate::sqlite::base::{BaseFile, BaseVfs, PagerName, method};
use crate::status;

/// Returns the table of a VFS that is stacked on `parent`.
pub fn table(parent: BaseVfs, app_data: *mut c_void) -> Vfs {
    Vfs {
        version: method!(parent, version).min(3),
        os_file_bytes: method!(parent, os_file_bytes) + db_file::HEADER_BYTES,
        max_pathname: method!(parent, max_pathname),
        next: ptr::null_mut(),
        name: VFS_NAME.as_ptr(),
        app_data,
        open: Some(open),
        delete: Some(delete),
        access: Some(access),
        full_pathname: Some(full_pathname),
        dl_open: Some(dl_open),
        dl_error: Some(dl_error),
        dl_sym: Some(dl_sym),
        dl_close: Some(dl_close),
        randomness: Some(randomness),
        sleep: Some(sleep),
        current_time: Some(current_time),
        get_last_error: Some(get_last_error),
        current_time_int64: Some(current_time_int64),
        set_system_call: Some(set_system_call),
        get_system_call: Some(get_system_call),
        next_system_call: Some(next_system_call),
    }
}

/// Returns the registration that a VFS of this library belongs to.
///
/// # Safety
/// `vfs` was made by [`table`] with a registration that is never freed.
unsafe fn registration_of(vfs: *mut Vfs) -> &'static Registration {
    // SAFETY: as promised by the caller.
    unsafe { &*(*vfs).app_data.cast::<Registration>() }
}

/// Returns the registration behind a VFS, if this copy of the library made the VFS.
///
/// # Safety
/// `vfs` is null or registered.
pub unsafe fn ours(vfs: *mut Vfs) -> Option<&'static Registration> {
    // SAFETY: as promised by the caller.
    let name = unsafe { vfs.as_ref() }?.name;
    // SAFETY: only `table` makes a VFS whose name is at this address.
    (name == VFS_NAME.as_ptr()).then(|| unsafe { registration_of(vfs) })
}

/// Runs `$body` with the registration of `$vfs`, and stops a panic from crossing into C.
macro_rules! with_registration {
    ($vfs:ident, $default:expr, |$registration:ident| $body:expr) => {
        shield($default, || {
            // SAFETY: SQLite passes the VFS whose method it calls.
            let $registration = unsafe { registration_of($vfs) };
            $body
        })
    };
}

unsafe extern "C" fn open(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    with_registration!(vfs, ffi::CANTOPEN, |registration| {
        registration.enter();
        // SAFETY: SQLite gives memory of the size that the VFS's table asks for.
        unsafe { (*file).methods = ptr::null() };
        if !name.is_null() && flags & ffi::OPEN_MAIN_DB != 0 {
            // SAFETY: `file` is memory for a file of this VFS, and `name` comes from SQLite's pager.
            return unsafe { open_database(registration, name, file, flags, out_flags) }.unwrap_or_else(
                |failure| {
                    // SAFETY: as above.
                    account::refused(unsafe { path_of(name) }, &failure.message);
                    registration.sqlite.fail(&failure)
                },
            );
        }
        if flags & ffi::OPEN_WAL != 0
            && let Some(db) = registration.database_of_wal(name)
        {
            if db.is_kept() {
                guard::lift_kept(&db);
            }
            match guard::open_wal(&db) {
                Ok(Prepared::Base) => {
                    if let Err(failure) = strict::check_wal(&db) {
                        return registration.sqlite.fail(&failure);
                    }
                }
                Ok(Prepared::Log(used)) => {
                    let granted = match used.outside() {
                        Some(_) => flags & !(ffi::OPEN_READWRITE | ffi::OPEN_CREATE) | ffi::OPEN_READONLY,
                        None => flags,
                    };
                    // SAFETY: `file` is memory for a file of this VFS.
                    unsafe { wal_file::install(file, db, used) };
                    if !out_flags.is_null() {
                        // SAFETY: SQLite passes a place for the flags.
                        unsafe { *out_flags = granted };
                    }
                    return ffi::OK;
                }
                Err(failure) => return registration.sqlite.fail(&failure),
            }
        }
        if !name.is_null() && flags & (ffi::OPEN_MAIN_JOURNAL | ffi::OPEN_SUPER_JOURNAL) != 0 {
            // SAFETY: `file` is memory for a file of this VFS, and `name` ends with a zero.
            match unsafe { open_journal(registration, name, file, flags) } {
                Ok(false) => {}
                Ok(true) => {
                    if !out_flags.is_null() {
                        // SAFETY: SQLite passes a place for the flags.
                        unsafe { *out_flags = flags };
                    }
                    return ffi::OK;
                }
                Err(failure) => return registration.sqlite.fail(&failure),
            }
        }
        // SAFETY: `file` is memory for a file of this VFS, which has room for a file of the base VFS.
        unsafe { registration.sqlite.parent.open(name, file, flags, out_flags) }
    })
}

/// Opens a rollback journal if this VFS keeps the journal, or wraps the base VFS's file for it. Returns
/// `false` if the base VFS has to open the file.
///
/// # Safety
/// `file` is memory for a file of this VFS, and `name` ends with a zero.
unsafe fn open_journal(
    registration: &'static Registration,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
) -> Result<bool, Failure> {
    // SAFETY: as promised by the caller.
    let path = unsafe { path_of(name) };
    if flags & ffi::OPEN_SUPER_JOURNAL != 0 {
        let for_reading = flags & ffi::OPEN_CREATE == 0;
        if let Some(database) = child::database_of(path).filter(|_| for_reading) {
            let Some(child) = ChildJournal::find(registration, &database)? else { return Ok(false) };
            // SAFETY: as promised by the caller.
            unsafe { journal_file::install_child(file, child) };
            return Ok(true);
        }
        child::super_journal_opened(for_reading);
        // SAFETY: as promised by the caller.
        unsafe { super_journal::opened(name) };
        return Ok(false);
    }
    registration.kept_with_journal(path).iter().try_for_each(|db| guard::lift_for_journal(db))?;
    registration.check_journal(path)?;
    let Some(db) = registration.database_of_journal(name) else { return Ok(false) };
    guard::sync_lifted(&db)?;
    match journal::open(&db, flags)? {
        journal::Opened::Base => return Ok(false),
        journal::Opened::Here => {}
        journal::Opened::Wrapped => {
            // SAFETY: as promised by the caller. The null pointer in `methods` marks the base VFS's file as
            // closed.
            let (base, code) = unsafe {
                let at = db_file::base_of(file);
                (*at).methods = ptr::null();
                (BaseFile::new(at), registration.sqlite.parent.open(name, at, flags, ptr::null_mut()))
            };
            if code != ffi::OK {
                base.close();
                return Err(Failure::new(
                    code,
                    format!("cannot open the rollback journal of {}", db.path.display()),
                ));
            }
            db.journal.set(JournalStore::Base(base));
        }
    }
    // SAFETY: as promised by the caller.
    unsafe { journal_file::install(file, db) };
    Ok(true)
}

/// Opens a main database.
///
/// # Safety
/// `file` is memory for a file of this VFS, and `name` comes from SQLite's pager.
unsafe fn open_database(
    registration: &'static Registration,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> Result<c_int, Failure> {
    // SAFETY: as promised by the caller.
    let uri = unsafe { Uri::new(registration, name) };
    let settings = resolve_settings(&uri).map_err(Failure::cannot_open)?;
    // SAFETY: the name ends with a zero.
    let path = unsafe { path_of(name) }.to_path_buf();
    if matches!(path.try_exists(), Ok(false)) {
        places::check_new(&settings, &path)?;
        strict::check_new(&settings, &path)?;
    }
    // SAFETY: the caller promises that `file` has room for a file of this VFS, and the base VFS's file lies
    // within it. The null pointer in `methods` marks that file as closed.
    let base = unsafe {
        let at = db_file::base_of(file);
        (*at).methods = ptr::null();
        BaseFile::new(at)
    };
    let mut granted: c_int = 0;
    // SAFETY: `base` has room for a file of the base VFS, and is not open.
    let code = unsafe { registration.sqlite.parent.open(name, base.as_ptr(), flags, &raw mut granted) };
    if code != ffi::OK {
        base.close();
        return Ok(code);
    }
    let api = &registration.sqlite.api;
    // SAFETY: `name` comes from SQLite's pager, as these functions require. The names that they return live
    // until the file is closed.
    let names = unsafe {
        Names {
            journal: PagerName::new((api.filename_journal)(name)),
            wal: PagerName::new((api.filename_wal)(name)),
        }
    };
    let read_only = granted & ffi::OPEN_READONLY != 0;
    let db = Arc::new(Db::new(&registration.sqlite, base, path, names, read_only, settings));
    let ignores_wal = ["immutable", "nolock"].iter().any(|name| uri.is_true(name));
    let checked = places::check_open(&db, ignores_wal).and_then(|()| strict::check_open(&db, ignores_wal));
    if let Err(failure) = checked {
        base.close();
        return Err(failure);
    }
    if db.is_capable() && !names.wal.as_ptr().is_null() {
        registration.remember(&db);
    }
    status::account_for(&db);
    // SAFETY: `file` is memory for a file of this VFS, and the base VFS's file in it is open.
    unsafe { db_file::install(file, db, registration) };
    if !out_flags.is_null() {
        // SAFETY: SQLite passes a place for the flags.
        unsafe { *out_flags = granted };
    }
    Ok(ffi::OK)
}

/// Returns the path that SQLite passes as `name`.
///
/// # Safety
/// `name` ends with a zero and outlives the result.
unsafe fn path_of<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: as promised by the caller.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))
}

fn resolve_settings(uri: &Uri) -> Result<Settings, String> {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    settings::refuse_unknown(uri.keys(), variables)?;
    Settings::resolve(|name| uri.get(name), settings::variable)
}

/// The parameters of a database's URI.
struct Uri {
    registration: &'static Registration,
    name: *const c_char,
}

impl Uri {
    /// # Safety
    /// `name` comes from SQLite's pager and outlives this value.
    unsafe fn new(registration: &'static Registration, name: *const c_char) -> Self {
        Self { registration, name }
    }

    fn get(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        // SAFETY: the caller of `new` promised that the name is valid. The value belongs to the name, and is
        // copied.
        unsafe {
            let value = (self.registration.sqlite.api.uri_parameter)(self.name, key.as_ptr());
            value.as_ref().map(|value| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }

    fn is_true(&self, key: &str) -> bool {
        self.get(key)
            .is_some_and(|value| matches!(value.to_lowercase().as_str(), "1" | "yes" | "true" | "on"))
    }

    fn keys(&self) -> impl Iterator<Item = String> {
        (0..).map_while(|n| {
            // SAFETY: as in `get`.
            unsafe {
                let key = (self.registration.sqlite.api.uri_key)(self.name, n);
                key.as_ref().map(|key| CStr::from_ptr(key).to_string_lossy().into_owned())
            }
        })
    }
}

unsafe extern "C" fn delete(vfs: *mut Vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    with_registration!(vfs, ffi::IOERR_DELETE, |registration| {
        // SAFETY: SQLite passes a name that ends with a zero.
        unsafe { super_journal::deleted(name) };
        // SQLite deletes a super-journal last. So if this thread was reading one, it has finished.
        child::super_journal_opened(false);
        if let Some(db) = registration.database_of_wal(name) {
            match guard::delete_wal(&db) {
                Ok(false) => {}
                Ok(true) => return ffi::OK,
                Err(failure) => {
                    // Guard and log stay, so nothing is lost, and the next connection finds them.
                    registration.sqlite.report(ffi::WARNING, &failure.message);
                    return ffi::OK;
                }
            }
        }
        if let Some(db) = registration.database_of_journal(name) {
            match journal::delete(&db) {
                Ok(false) => {}
                Ok(true) => return ffi::OK,
                Err(failure) => return registration.sqlite.fail(&failure),
            }
        }
        registration.sqlite.parent.delete(name, sync_directory)
    })
}

unsafe extern "C" fn access(vfs: *mut Vfs, name: *const c_char, flags: c_int, found: *mut c_int) -> c_int {
    with_registration!(vfs, ffi::IOERR_ACCESS, |registration| {
        if flags == ffi::ACCESS_EXISTS && !name.is_null() {
            // SAFETY: SQLite passes a name that ends with a zero.
            match unsafe { exists(registration, name) } {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    // SAFETY: SQLite passes a place for the answer.
                    unsafe { *found = c_int::from(answer) };
                    return ffi::OK;
                }
                Err(failure) => return registration.sqlite.fail(&failure),
            }
        }
        match method!(registration.sqlite.parent, access) {
            // SAFETY: the method gets its own VFS, and SQLite's arguments unchanged.
            Some(access) => unsafe { access(registration.sqlite.parent.as_ptr(), name, flags, found) },
            None => ffi::IOERR_ACCESS,
        }
    })
}

/// Returns whether a WAL or journal of this name exists, if it may be in a log. Returns `None` if only the
/// base VFS can tell.
///
/// # Safety
/// `name` ends with a zero.
unsafe fn exists(registration: &'static Registration, name: *const c_char) -> Result<Option<bool>, Failure> {
    if let Some(db) = registration.database_of_wal(name) {
        if db.is_kept() {
            guard::lift_kept(&db);
        }
        return guard::has_wal(&db);
    }
    if let Some(db) = registration.database_of_journal(name) {
        return journal::is_there(&db);
    }
    // SAFETY: as promised by the caller.
    let Some(database) = child::database_of(unsafe { path_of(name) }) else { return Ok(None) };
    if !child::is_database(&database) {
        return Ok(None);
    }
    ChildJournal::find(registration, &database)?.map(|child| child.counts()).transpose()
}

/// Sleeps for SQLite. If SQLite sleeps because it was refused WRITE, waits in the queue for that lock.
unsafe extern "C" fn sleep(vfs: *mut Vfs, microseconds: c_int) -> c_int {
    with_registration!(vfs, 0, |registration| {
        let limit = Duration::from_micros(u64::try_from(microseconds).unwrap_or(0));
        if waiting::sleep(limit) {
            return microseconds;
        }
        match method!(registration.sqlite.parent, sleep) {
            // SAFETY: the method gets its own VFS, and SQLite's argument unchanged.
            Some(sleep) => unsafe { sleep(registration.sqlite.parent.as_ptr(), microseconds) },
            None => 0,
        }
    })
}

/// Defines functions that only pass the call on to the base VFS.
macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty, $missing:expr;)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut Vfs $(, $arg: $type)*) -> $result {
            with_registration!(vfs, $missing, |registration| match method!(registration.sqlite.parent, $name) {
                // SAFETY: the method gets its own VFS, and SQLite's arguments unchanged.
                Some(method) => unsafe { method(registration.sqlite.parent.as_ptr() $(, $arg)*) },
                None => $missing,
            })
        }
    )*};
}

forward! {
    full_pathname(name: *const c_char, len: c_int, out: *mut c_char) -> c_int, ffi::CANTOPEN;
    dl_open(name: *const c_char) -> *mut c_void, ptr::null_mut();
    dl_error(len: c_int, out: *mut c_char) -> (), ();
    dl_sym(library: *mut c_void, name: *const c_char) -> SyscallFn, None;
    dl_close(library: *mut c_void) -> (), ();
    randomness(len: c_int, out: *mut c_char) -> c_int, 0;
    current_time(out: *mut f64) -> c_int, ffi::ERROR;
    get_last_error(len: c_int, out: *mut c_char) -> c_int, 0;
    current_time_int64(out: *mut i64) -> c_int, ffi::ERROR;
    set_system_call(name: *const c_char, call: SyscallFn) -> c_int, ffi::NOTFOUND;
    get_system_call(name: *const c_char) -> SyscallFn, None;
    next_system_call(name: *const c_char) -> *const c_char, ptr::null();
}
