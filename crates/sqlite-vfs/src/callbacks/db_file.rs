//! `sqlite3_io_methods` of a main database.
#![allow(unsafe_code)] // the functions that SQLite calls

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use duralite_locks::file::Level;
use duralite_sqlite_ffi::{self as ffi, File, IoMethods};

use super::file::{to_fill, to_write};
use super::{ask, pragma};
use crate::database::{Db, replicated, strict};
use crate::errors::Failure;
use crate::guard::helper::Lifter;
use crate::guard::{self, journal};
use crate::registration::Registration;
use crate::shield::shield;
use crate::status;

/// The structure at the beginning of the memory that SQLite gives for a file. The base VFS's file follows
/// this structure. No code borrows the structure mutably, because SQLite may call a method of the file while
/// another method runs.
#[repr(C)]
pub struct DbFile {
    methods: *const IoMethods,
    db: *const Db,
    registration: &'static Registration,
}

/// The number of bytes of [`DbFile`] before the base VFS's file. It is a multiple of 8, the alignment of
/// SQLite's memory.
pub const HEADER_BYTES: c_int = 24;
const _: () = assert!(size_of::<DbFile>() == HEADER_BYTES as usize && align_of::<DbFile>() <= 8);

/// Returns the address of the base VFS's file in the memory of this VFS's file.
///
/// # Safety
/// `file` has room for `HEADER_BYTES` bytes and a file of the base VFS.
pub unsafe fn base_of(file: *mut File) -> *mut File {
    // SAFETY: the caller promises that `file` has room for more than `HEADER_BYTES` bytes.
    unsafe { file.byte_add(HEADER_BYTES as usize) }
}

/// Makes `file` an open database.
///
/// # Safety
/// `file` is memory for a file of this VFS, with an open file of the base VFS at [`base_of`].
pub unsafe fn install(file: *mut File, db: Arc<Db>, registration: &'static Registration) {
    let version = db.base.methods().map_or(1, |methods| methods.version);
    let methods: *const IoMethods = match version {
        3.. => &METHODS_3,
        2 => &METHODS_2,
        _ => &METHODS_1,
    };
    let front = DbFile { methods, db: Arc::into_raw(db), registration };
    // SAFETY: as promised by the caller.
    unsafe { ptr::write(file.cast::<DbFile>(), front) };
}

const fn methods(version: c_int) -> IoMethods {
    IoMethods {
        version,
        close: Some(close),
        read: Some(read),
        write: Some(write),
        truncate: Some(truncate),
        sync: Some(sync),
        file_size: Some(file_size),
        lock: Some(lock),
        unlock: Some(unlock),
        check_reserved_lock: Some(check_reserved_lock),
        file_control: Some(file_control),
        sector_size: Some(sector_size),
        device_characteristics: Some(device_characteristics),
        shm_map: Some(shm_map),
        shm_lock: Some(shm_lock),
        shm_barrier: Some(shm_barrier),
        shm_unmap: Some(shm_unmap),
        fetch: Some(fetch),
        unfetch: Some(unfetch),
    }
}

/// The device characteristics that announce atomic writes: of any size, of a certain size, and of several
/// pages at once.
const ATOMIC: c_int = ((ffi::IOCAP_ATOMIC64K << 1) - ffi::IOCAP_ATOMIC) | ffi::IOCAP_BATCH_ATOMIC;

/// The method tables, one for each version of the base VFS's methods. SQLite checks the version before it
/// calls a method that the first version lacks.
static METHODS_1: IoMethods = methods(1);
static METHODS_2: IoMethods = methods(2);
static METHODS_3: IoMethods = methods(3);

/// Returns the database behind an open file of this VFS.
///
/// # Safety
/// `file` was made by [`install`] and is not closed before the result's last use.
unsafe fn db_of<'a>(file: *mut File) -> &'a Db {
    // SAFETY: as promised by the caller. The reference that `install` leaked keeps the database alive.
    unsafe { &*(*file.cast::<DbFile>()).db }
}

/// Runs `$body` with the database of `$file`, and stops a panic from crossing into C. In a child of the
/// process that opened the database, the answer is `$default`.
macro_rules! with_db {
    ($file:ident, $default:expr, |$db:ident| $body:expr) => {
        with_db!($file, $default, |$db| $body, in_child: $db.check_process($default).err().unwrap_or($default))
    };
    ($file:ident, $default:expr, |$db:ident| $body:expr, in_child: $dead:expr) => {
        shield($default, || {
            // SAFETY: SQLite calls methods on open files only.
            let $db = unsafe { db_of($file) };
            if $db.is_own() { $body } else { $dead }
        })
    };
}

/// Does the same as [`with_db`], for calls that SQLite never makes between deleting the WAL and closing the
/// database. The guard may still be on the database when SQLite has deleted the WAL, so that it can stay
/// after the last close. A call of this macro shows that SQLite is not closing the database, so the macro
/// first takes that guard off.
macro_rules! with_open_db {
    ($file:ident, $default:expr, |$db:ident| $body:expr) => {
        with_db!($file, $default, |$db| {
            if $db.is_kept() {
                guard::lift_kept($db);
            }
            $body
        })
    };
}

/// Passes a call on to the base VFS's file.
macro_rules! forward {
    ($db:ident, $method:ident, $missing:expr, $($arg:expr),*) => {
        match $db.base.methods().and_then(|methods| methods.$method) {
            // SAFETY: the method gets its own file, and SQLite's arguments unchanged.
            Some(method) => unsafe { method($db.base.as_ptr(), $($arg),*) },
            None => $missing,
        }
    };
}

fn answer(db: &Db, result: Result<c_int, Failure>) -> c_int {
    db.answer(result)
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    shield(ffi::IOERR_CLOSE, || {
        // SAFETY: `install` made this file, and SQLite closes it once.
        let (db, registration) = unsafe {
            let front = file.cast::<DbFile>();
            (Arc::from_raw((*front).db), (*front).registration)
        };
        let base = db.base;
        let mut lifter = None;
        if db.is_own() {
            status::account_for(&db);
            registration.forget(&db);
            journal::close(&db);
            lifter = Lifter::of(&db);
            db.release_shared_memory();
            db.detach();
            db.close_left_mapping();
        } else {
            // The base VFS in this child still counts the locks of the parent's connections. Release these
            // locks here, while the files of all these connections still exist.
            registration.enter();
            // The database belongs to the parent process, so this child must not release anything of it.
            std::mem::forget(db);
        }
        let code = base.close();
        if let Some(lifter) = lifter {
            lifter.run();
        }
        // SAFETY: SQLite keeps this memory alive until `close` returns.
        unsafe { (*file).methods = ptr::null() };
        code
    })
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, len: c_int, offset: i64) -> c_int {
    with_open_db!(file, ffi::IOERR_READ, |db| {
        if let Some(concurrent) = db.concurrent() {
            // SAFETY: `buf` is SQLite's buffer of `len` bytes.
            let read = unsafe { to_fill(buf, len, offset) }
                .and_then(|(buf, offset)| concurrent.read(db, buf, offset));
            if let Some(read) = read {
                return answer(db, read);
            }
        }
        let code = if db.has_home() {
            // SAFETY: `buf` is SQLite's buffer of `len` bytes.
            answer(db, unsafe { read_home(db, buf, len, offset) })
        } else {
            forward!(db, read, ffi::IOERR_READ, buf, len, offset)
        };
        if let Err(failure) = db.check_outside() {
            return db.sqlite.fail(&failure);
        }
        let (Ok(offset), Ok(len)) = (u64::try_from(offset), usize::try_from(len)) else { return code };
        if offset >= duralite_format::guard::MASKED_END || !matches!(code, ffi::OK | ffi::IOERR_SHORT_READ) {
            return code;
        }
        // SAFETY: `buf` is SQLite's buffer of `len` bytes, which was just filled.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), len) };
        let shown = db.unmask(offset, buf);
        if shown.is_ok() {
            db.show_change(offset, buf);
        }
        answer(db, shown.map(|()| code))
    })
}

/// Reads the database through the home of the attached log: the engine's view of the database file.
///
/// # Safety
/// `buf` has room for `len` bytes.
unsafe fn read_home(db: &Db, buf: *mut c_void, len: c_int, offset: i64) -> Result<c_int, Failure> {
    // SAFETY: as promised by the caller.
    let Some((buf, offset)) = (unsafe { to_fill(buf, len, offset) }) else { return Ok(ffi::IOERR_READ) };
    db.read(buf, offset).map_err(|failure| db.read_failure(failure))
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, len: c_int, offset: i64) -> c_int {
    with_open_db!(file, ffi::IOERR_WRITE, |db| {
        // SAFETY: `data` is SQLite's buffer of `len` bytes, which SQLite does not change during the call.
        let Some((data, offset)) = (unsafe { to_write(data, len, offset) }) else { return ffi::IOERR_WRITE };
        answer(db, strict::check_write(db, offset, data).and_then(|()| db.write(offset, data)))
    })
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    with_open_db!(file, ffi::IOERR_TRUNCATE, |db| answer(db, db.truncate(size)))
}

unsafe extern "C" fn sync(file: *mut File, flags: c_int) -> c_int {
    with_open_db!(file, ffi::IOERR_FSYNC, |db| db.sync_for_sqlite(flags))
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    with_open_db!(file, ffi::IOERR_FSTAT, |db| {
        if let Some(bytes) = db.concurrent().and_then(|concurrent| concurrent.size()) {
            // SAFETY: SQLite passes a place for the size.
            unsafe { *size = i64::try_from(bytes).unwrap_or(i64::MAX) };
            return ffi::OK;
        }
        if !db.has_home() {
            return forward!(db, file_size, ffi::IOERR_FSTAT, size);
        }
        let bytes = db.size().map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        answer(
            db,
            bytes.map(|bytes| {
                // SAFETY: SQLite passes a place for the size.
                unsafe { *size = bytes };
                ffi::OK
            }),
        )
    })
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    with_open_db!(file, ffi::IOERR_LOCK, |db| answer(db, guard::lock(db, Level::of_code(level))))
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    with_db!(
        file,
        ffi::IOERR_UNLOCK,
        |db| {
            guard::unlock(db, Level::of_code(level))
        },
        in_child: ffi::OK
    )
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, held: *mut c_int) -> c_int {
    with_db!(file, ffi::IOERR_CHECKRESERVEDLOCK, |db| {
        forward!(db, check_reserved_lock, ffi::IOERR_CHECKRESERVEDLOCK, held)
    })
}

unsafe extern "C" fn file_control(file: *mut File, op: c_int, arg: *mut c_void) -> c_int {
    with_db!(file, ffi::IOERR, |db| {
        // SAFETY: SQLite passes the argument that belongs to the operation.
        match unsafe { control(db, op, arg) } {
            Some(code) => code,
            None => forward!(db, file_control, ffi::NOTFOUND, op, arg),
        }
    })
}

/// Does what a file control asks of this VFS. Returns `None` if the caller must pass the call on to the base
/// VFS.
///
/// # Safety
/// `arg` is the argument that belongs to the operation `op`.
unsafe fn control(db: &Db, op: c_int, arg: *mut c_void) -> Option<c_int> {
    match op {
        ffi::FCNTL_COMMIT_PHASETWO => replicated::commit(db).err().map(|failure| db.sqlite.fail(&failure)),
        ffi::FCNTL_CKPT_DONE => {
            db.checkpointed();
            None
        }
        ffi::FCNTL_PRAGMA => {
            // SAFETY: SQLite passes the array that its documentation describes.
            let code = unsafe { pragma::answer(db, arg.cast::<*mut c_char>()) };
            (code != ffi::NOTFOUND).then_some(code)
        }
        // SAFETY: SQLite passes the argument that belongs to the operation.
        ask::OPERATION => unsafe { ask::answer(db, arg) }.then_some(ffi::OK),
        ffi::FCNTL_BUSYHANDLER => {
            // SAFETY: SQLite passes a function and its argument. Both stay valid as long as the file is open.
            unsafe { db.host.set_busy_handler(arg.cast()) };
            None
        }
        // If SQLite could wait for locks itself, a transaction would take WRITE before it reads anything, and
        // this VFS could not validate it.
        ffi::FCNTL_LOCK_TIMEOUT => db.concurrent().map(|_| ffi::NOTFOUND),
        ffi::FCNTL_OVERWRITE => db.concurrent().and_then(|concurrent| {
            let code = answer(db, concurrent.overwrites(db));
            (code != ffi::OK).then_some(code)
        }),
        ffi::FCNTL_PDB => {
            // SAFETY: SQLite passes the address of its pointer to the connection. The address stays valid as
            // long as the file is open.
            let is_first = unsafe { db.host.set_connection(arg.cast()) };
            // If the file is open already, a connection joins a shared cache. SQLite's pointer then leads to
            // the connection that has used the cache last. Another thread may be using that connection, or
            // may have closed it, so do not follow the pointer. It is not known where the main database of
            // the joining connection is.
            let is_elsewhere = !is_first || {
                // SAFETY: this address holds SQLite's pointer to the connection that has just opened this
                // file, on this thread.
                let connection = unsafe { *arg.cast::<*mut ffi::Connection>() };
                // SAFETY: as above.
                !connection.is_null() && unsafe { db.sqlite.has_main_elsewhere(connection) }
            };
            if is_elsewhere {
                db.set_main_elsewhere();
            }
            None
        }
        ffi::FCNTL_EXTERNAL_READER => db.has_external_reader().map(|answer| {
            // SAFETY: SQLite passes a place for the answer.
            unsafe { *arg.cast::<c_int>() = c_int::from(answer) };
            ffi::OK
        }),
        // SQLite asks this before the checkpoint of the last close. If the answer is that the file has moved,
        // SQLite leaves that checkpoint out, because the `-wal` at the path may belong to another database. A
        // log belongs to the file itself, wherever the file is, and without the checkpoint the file would
        // stay guarded. So this VFS answers no. If a copy that needs the log has taken the file's place, the
        // base VFS answers instead, so that SQLite leaves the log to that copy.
        ffi::FCNTL_HAS_MOVED => db.takes_log_home().then(|| {
            // SAFETY: SQLite passes a place for the answer.
            unsafe { *arg.cast::<c_int>() = 0 };
            ffi::OK
        }),
        // If the log has a home, the home decides how large the file is, so do not pass the hint on to the
        // base VFS.
        ffi::FCNTL_SIZE_HINT => db.has_home().then(|| {
            // SAFETY: SQLite passes the size.
            let bytes = unsafe { arg.cast::<i64>().as_ref() };
            db.hint(bytes.and_then(|bytes| u64::try_from(*bytes).ok()).unwrap_or(0));
            ffi::OK
        }),
        ffi::FCNTL_VFSNAME => {
            let name = format!("duralite/{}", db.sqlite.parent.name().to_string_lossy());
            // SAFETY: SQLite passes a place for the text, which it frees itself.
            unsafe { *arg.cast::<*mut c_char>() = db.sqlite.text(&name) };
            Some(ffi::OK)
        }
        _ => None,
    }
}

unsafe extern "C" fn sector_size(file: *mut File) -> c_int {
    with_db!(file, 4096, |db| db.base.sector_size(), in_child: 4096)
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    with_db!(file, 0, |db| {
        // A torn write of one frame cannot harm the frames next to it in the log, so SQLite need not pad its
        // transactions to a sector's end.
        let log = if db.is_active() { ffi::IOCAP_POWERSAFE_OVERWRITE } else { 0 };
        let base = db.base.device_characteristics();
        // If the base VFS announces atomic writes, SQLite may commit a transaction without a journal, which
        // would bypass the log.
        let atomic = if db.looks_for_rollback_guard() { ATOMIC } else { 0 };
        base & !atomic | log
    }, in_child: 0)
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    with_db!(file, ffi::IOERR_SHMMAP, |db| match db.map_index(region, extend != 0) {
        Some(Ok((code, address))) => {
            // SAFETY: SQLite passes a place for the address.
            unsafe { *out = address };
            code
        }
        Some(Err(failure)) => db.sqlite.fail(&failure),
        None => forward!(db, shm_map, ffi::IOERR_SHMMAP, region, bytes, extend, out),
    })
}

unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, n: c_int, flags: c_int) -> c_int {
    let in_child = if flags & ffi::SHM_UNLOCK != 0 { ffi::OK } else { ffi::IOERR_SHMLOCK };
    with_db!(
        file,
        ffi::IOERR_SHMLOCK,
        |db| match db.lock_shared_memory(offset, n, flags) {
            Some(code) => code,
            None => forward!(db, shm_lock, ffi::IOERR_SHMLOCK, offset, n, flags),
        },
        in_child: if in_child == ffi::OK { ffi::OK } else { db.check_process(in_child).err().unwrap_or(in_child) }
    )
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    with_db!(file, (), |db| {
        fence(Ordering::SeqCst);
        if !db.renew_index() {
            forward!(db, shm_barrier, (),);
        }
    }, in_child: ());
}

unsafe extern "C" fn shm_unmap(file: *mut File, delete: c_int) -> c_int {
    with_db!(
        file,
        ffi::OK,
        |db| if db.unmap_index() { ffi::OK } else { forward!(db, shm_unmap, ffi::OK, delete) },
        in_child: ffi::OK
    )
}

unsafe extern "C" fn fetch(file: *mut File, offset: i64, len: c_int, out: *mut *mut c_void) -> c_int {
    with_db!(file, ffi::IOERR_MMAP, |db| {
        let guard_end = i64::try_from(duralite_format::guard::HEADER_BYTES).unwrap_or(i64::MAX);
        let is_concurrent = db.concurrent().is_some();
        if offset < guard_end && db.is_capable() || db.is_outside() || db.has_home() || is_concurrent {
            // A null address makes SQLite read the page by `xRead` instead. A mapped page would be wrong in
            // four cases. The first page has the guard, which `xRead` removes. For a user who may only read
            // the log, this VFS checks each read afterwards. If the engine has its own view of the file (a
            // home), the newest pages are only in that view. A concurrent connection reads its own snapshot.
            // SAFETY: SQLite passes a place for the address.
            unsafe { *out = ptr::null_mut() };
            return ffi::OK;
        }
        forward!(db, fetch, ffi::IOERR_MMAP, offset, len, out)
    })
}

unsafe extern "C" fn unfetch(file: *mut File, offset: i64, page: *mut c_void) -> c_int {
    with_db!(file, ffi::IOERR_MMAP, |db| forward!(db, unfetch, ffi::OK, offset, page), in_child: ffi::OK)
}
