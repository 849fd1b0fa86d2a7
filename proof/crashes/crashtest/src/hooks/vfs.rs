//! A VFS that records what SQLite does to the files of some directories.
//!
//! It is a copy of the default VFS with its own functions for opening and deleting. Each file of a recorded
//! directory gets a copy of its own method table, in which the functions that change the file are replaced.
#![allow(unsafe_code)] // functions that SQLite calls

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use duralite_sqlite_ffi::{self as ffi, File, IoMethods, Vfs};
use rusqlite::ffi as sqlite;

use crate::event::{Event, FileKind};
use crate::recorder::{Call, Failure, Recorder};

/// The name of the recording VFS without Duralite above it, for SQLite's own journal modes.
pub const VFS_NAME: &CStr = c"duralite-recorded";

/// The unit that a device writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Clone)]
struct Open {
    methods: &'static IoMethods,
    path: PathBuf,
    recorder: Arc<Recorder>,
}

#[derive(Default)]
struct Registry {
    directories: Vec<(PathBuf, Arc<Recorder>)>,
    /// The open files. The key is the address of SQLite's file structure.
    open: HashMap<usize, Open>,
    /// The method tables that this VFS has made. The key is the address of the base VFS's table that was
    /// copied.
    tables: HashMap<usize, &'static IoMethods>,
}

static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
static BASE: OnceLock<usize> = OnceLock::new();

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn base() -> *mut Vfs {
    BASE.get().map_or(ptr::null_mut(), |address| ptr::with_exposed_provenance_mut(*address))
}

/// A directory whose files are recorded, until this value is dropped. Files that are open at the drop are
/// recorded until they are closed.
pub struct TappedDirectory {
    dir: PathBuf,
}

/// Starts to record a directory. Records what SQLite does to each file in it that SQLite opens later.
#[must_use]
pub fn tap_files(dir: &Path, recorder: Arc<Recorder>) -> TappedDirectory {
    let mut registry = registry();
    registry.directories.retain(|(other, _)| other != dir);
    registry.directories.push((dir.to_path_buf(), recorder));
    TappedDirectory { dir: dir.to_path_buf() }
}

impl Drop for TappedDirectory {
    fn drop(&mut self) {
        registry().directories.retain(|(dir, _)| *dir != self.dir);
    }
}

/// Registers the recording VFS as SQLite's default, so that Duralite builds on it, and then registers
/// Duralite. Further calls change nothing.
///
/// # Errors
/// An error if SQLite refuses.
pub fn register() -> anyhow::Result<()> {
    static DONE: OnceLock<Result<(), String>> = OnceLock::new();
    DONE.get_or_init(|| register_once().map_err(|error| error.to_string()))
        .clone()
        .map_err(anyhow::Error::msg)
}

fn register_once() -> anyhow::Result<()> {
    // SAFETY: the calls ask for the default VFS, and register a table that is never freed. Both sides declare
    // the same structure.
    unsafe {
        super::heap::install()?;
        sqlite::sqlite3_initialize();
        let found = sqlite::sqlite3_vfs_find(ptr::null()).cast::<Vfs>();
        anyhow::ensure!(!found.is_null(), "SQLite has no VFS");
        let _ = BASE.set(found.expose_provenance());
        let mut table = ptr::read(found);
        table.next = ptr::null_mut();
        table.name = VFS_NAME.as_ptr();
        table.open = Some(open);
        table.delete = Some(delete);
        let table = Box::into_raw(Box::new(table));
        let code = sqlite::sqlite3_vfs_register(table.cast(), 1);
        anyhow::ensure!(code == ffi::OK, "SQLite refused the recording VFS (code {code})");
        let code = sqlite::sqlite3_auto_extension(Some(enter));
        anyhow::ensure!(code == ffi::OK, "SQLite took no extension (code {code})");
        let opened = rusqlite::Connection::open_in_memory();
        sqlite::sqlite3_cancel_auto_extension(Some(enter));
        // Makes the base VFS the default again. Otherwise the recording would also cover other databases that
        // this process opens.
        sqlite::sqlite3_vfs_register(found.cast(), 1);
        opened?;
    }
    Ok(())
}

unsafe extern "C" fn enter(
    db: *mut sqlite::sqlite3,
    message: *mut *mut c_char,
    routines: *const sqlite::sqlite3_api_routines,
) -> c_int {
    // SAFETY: the arguments are those that SQLite has passed. The types on the two sides are two names for
    // the same tables.
    unsafe { duralite::sqlite3_duralite_auto(db.cast(), message, routines.cast()) }
}

/// Returns the path of a file and the file's recorder, if the file's directory is recorded.
///
/// # Safety
/// `name` is null or a string.
unsafe fn recorded(name: *const c_char) -> Option<(PathBuf, Arc<Recorder>)> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller promises that a name that is not null is a string.
    let path = PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    let registry = registry();
    let (_, recorder) = registry.directories.iter().find(|(dir, _)| path.parent() == Some(dir))?;
    Some((path, Arc::clone(recorder)))
}

fn code_of(failure: Failure, other: c_int) -> c_int {
    match failure {
        Failure::Io => other,
        Failure::NoSpace => ffi::FULL,
    }
}

unsafe extern "C" fn open(
    _vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the arguments come from SQLite. They go unchanged to the base VFS, of which this VFS is a copy.
    let pass = || match unsafe { (*base()).open } {
        // SAFETY: as above.
        Some(open) => unsafe { open(base(), name, file, flags, out_flags) },
        None => ffi::CANTOPEN,
    };
    // SAFETY: SQLite passes null or a string as the name.
    let Some((path, recorder)) = (unsafe { recorded(name) }) else { return pass() };
    let mut step = recorder.step();
    if step.due(Call::Name).is_some() {
        // SAFETY: SQLite provides the memory for the file. If the pointer to the methods is null, SQLite
        // treats the file as closed.
        unsafe { (*file).methods = ptr::null() };
        return ffi::CANTOPEN;
    }
    let existed = path.exists();
    let code = pass();
    // SAFETY: the base VFS has set the methods, to its table or to null.
    let Some(methods) = (unsafe { (*file).methods.as_ref() }).filter(|_| code == ffi::OK) else {
        return code;
    };
    if !existed {
        step.made(&path, FileKind::Sectors);
        step.named(&path, FileKind::Sectors);
    }
    drop(step);
    let mut registry = registry();
    let table = *registry.tables.entry(ptr::from_ref(methods).addr()).or_insert_with(|| {
        // SAFETY: the table contains function pointers, which may be copied.
        let mut table = unsafe { ptr::read(methods) };
        table.close = Some(close);
        table.read = Some(read);
        table.write = Some(write);
        table.truncate = Some(truncate);
        table.sync = Some(sync);
        table.file_control = Some(file_control);
        table.shm_map = table.shm_map.map(|_| shm_map as _);
        Box::leak(Box::new(table))
    });
    registry.open.insert(file.addr(), Open { methods, path, recorder: Arc::clone(&recorder) });
    // SAFETY: the file is open. The base VFS's functions do not use the file's method table, so it can be
    // replaced.
    unsafe { (*file).methods = table };
    code
}

unsafe extern "C" fn delete(_vfs: *mut Vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    // SAFETY: the arguments come from SQLite, and go on to the VFS of which this one is a copy.
    let pass = || match unsafe { (*base()).delete } {
        // SAFETY: as above.
        Some(delete) => unsafe { delete(base(), name, sync_directory) },
        None => ffi::IOERR_DELETE,
    };
    // SAFETY: SQLite passes null or a string as the name.
    let Some((path, recorder)) = (unsafe { recorded(name) }) else { return pass() };
    let mut step = recorder.step();
    if step.due(Call::Name).is_some() {
        return ffi::IOERR_DELETE;
    }
    let code = pass();
    if code == ffi::OK {
        step.removed(&path);
        if sync_directory != 0 {
            let site = step.site();
            step.push(Event::SyncNames { path, site });
        }
    }
    code
}

fn of(file: *mut File) -> Option<Open> {
    registry().open.get(&file.addr()).cloned()
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    let removed = registry().open.remove(&file.addr());
    match removed.map(|open| open.methods) {
        Some(methods) => {
            // SAFETY: this is the file's own table, which the file's own functions expect to find there.
            unsafe { (*file).methods = methods };
            // SAFETY: this calls the file's own function.
            methods.close.map_or(ffi::OK, |close| unsafe { close(file) })
        }
        None => ffi::IOERR_CLOSE,
    }
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, len: c_int, at: i64) -> c_int {
    let Some(open) = of(file) else { return ffi::IOERR_READ };
    if open.recorder.step().due(Call::Read).is_some() {
        return ffi::IOERR_READ;
    }
    // SAFETY: this calls the file's own function with SQLite's arguments.
    open.methods.read.map_or(ffi::IOERR_READ, |read| unsafe { read(file, buf, len, at) })
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, len: c_int, at: i64) -> c_int {
    let Some(open) = of(file) else { return ffi::IOERR_WRITE };
    let (Ok(bytes), Ok(from)) = (usize::try_from(len), u64::try_from(at)) else { return ffi::IOERR_WRITE };
    let mut step = open.recorder.step();
    let failure = step.due(Call::Write);
    // A write that fails still writes the whole sectors of its first half.
    let reached = if failure.is_some() { bytes / 2 / SECTOR * SECTOR } else { bytes };
    if reached > 0 {
        let Some(write) = open.methods.write else { return ffi::IOERR_WRITE };
        // SAFETY: this calls the file's own function with SQLite's buffer, or with a part of it.
        let code = unsafe { write(file, data, reached as c_int, at) };
        if code != ffi::OK {
            return code;
        }
        // SAFETY: SQLite's buffer has this length.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), reached) };
        let id = step.file(&open.path, FileKind::Sectors);
        step.push(Event::Write { file: id, at: from, bytes: data.into() });
    }
    failure.map_or(ffi::OK, |failure| code_of(failure, ffi::IOERR_WRITE))
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    let Some(open) = of(file) else { return ffi::IOERR_TRUNCATE };
    let mut step = open.recorder.step();
    if let Some(failure) = step.due(Call::Write) {
        return code_of(failure, ffi::IOERR_TRUNCATE);
    }
    let Some(truncate) = open.methods.truncate else { return ffi::IOERR_TRUNCATE };
    // SAFETY: this calls the file's own function with SQLite's argument.
    let code = unsafe { truncate(file, size) };
    if code == ffi::OK {
        let id = step.file(&open.path, FileKind::Sectors);
        step.push(Event::Truncate { file: id, size: u64::try_from(size).unwrap_or(0) });
    }
    code
}

unsafe extern "C" fn sync(file: *mut File, flags: c_int) -> c_int {
    let Some(open) = of(file) else { return ffi::IOERR_FSYNC };
    let mut step = open.recorder.step();
    let fails = step.fails_to_sync(&open.path);
    if fails || step.due(Call::Sync).is_some() {
        let file = step.file(&open.path, FileKind::Sectors);
        step.push(Event::Lost { file });
        return ffi::IOERR_FSYNC;
    }
    let site = step.site();
    // SAFETY: this calls the file's own function with SQLite's argument.
    let code = open.methods.sync.map_or(ffi::IOERR_FSYNC, |sync| unsafe { sync(file, flags) });
    if code == ffi::OK {
        let id = step.file(&open.path, FileKind::Sectors);
        step.push(Event::Sync { file: id, site });
    }
    code
}

unsafe extern "C" fn file_control(file: *mut File, op: c_int, arg: *mut c_void) -> c_int {
    let Some(open) = of(file) else { return ffi::IOERR };
    if op == sqlite::SQLITE_FCNTL_SIZE_HINT {
        // If the hint were passed on, the file would grow without an event in the recording.
        return ffi::OK;
    }
    // SAFETY: this calls the file's own function with SQLite's arguments.
    open.methods.file_control.map_or(ffi::NOTFOUND, |control| unsafe { control(file, op, arg) })
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    let Some(open) = of(file) else { return ffi::IOERR_SHMMAP };
    if open.recorder.step().due(Call::Map).is_some() {
        return ffi::IOERR_SHMMAP;
    }
    let Some(map) = open.methods.shm_map else { return ffi::IOERR_SHMMAP };
    // SAFETY: this calls the file's own function with SQLite's arguments.
    unsafe { map(file, region, bytes, extend, out) }
}
