//! `sqlite3_io_methods` of a rollback journal that a log keeps.
#![allow(unsafe_code)] // the functions that SQLite calls

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use duralite_sqlite_ffi::{self as ffi, File, IoMethods};

use super::file::{BESIDE_DATABASE, to_fill, to_write};
use crate::database::{Db, begins_journal};
use crate::errors::Failure;
use crate::guard::child::ChildJournal;
use crate::guard::journal;
use crate::shield::shield;

/// The database that a journal belongs to.
enum Journal {
    /// The journal of an open database. SQLite closes the journal before the database.
    Own(Arc<Db>),
    /// A journal that a super-journal names, opened only for reading.
    Child(ChildJournal),
}

/// The beginning of the memory that SQLite gives for the file.
#[repr(C)]
struct JournalFile {
    methods: *const IoMethods,
    journal: *mut Journal,
}

static METHODS: IoMethods = IoMethods {
    close: Some(close),
    read: Some(read),
    write: Some(write),
    truncate: Some(truncate),
    sync: Some(sync),
    file_size: Some(file_size),
    sector_size: Some(sector_size),
    device_characteristics: Some(device_characteristics),
    ..BESIDE_DATABASE
};

/// Makes `file` the rollback journal of `db`, which [`crate::guard::journal::open`] has just opened.
///
/// # Safety
/// `file` is memory for a file of this VFS.
pub unsafe fn install(file: *mut File, db: Arc<Db>) {
    // SAFETY: as promised by the caller.
    unsafe { put(file, Journal::Own(db)) };
}

/// Makes `file` a journal that a super-journal names.
///
/// # Safety
/// `file` is memory for a file of this VFS.
pub unsafe fn install_child(file: *mut File, child: ChildJournal) {
    // SAFETY: as promised by the caller.
    unsafe { put(file, Journal::Child(child)) };
}

/// # Safety
/// `file` is memory for a file of this VFS.
unsafe fn put(file: *mut File, journal: Journal) {
    let journal = Box::into_raw(Box::new(journal));
    // SAFETY: as promised by the caller.
    unsafe { ptr::write(file.cast::<JournalFile>(), JournalFile { methods: &METHODS, journal }) };
}

/// Runs `$body` with the journal of `$file`, and stops a panic from crossing into C. In a child of the
/// process that opened the journal, the answer is `$default`.
macro_rules! with_journal {
    ($file:ident, $default:expr, |$journal:ident| $body:expr) => {
        shield($default, || {
            // SAFETY: SQLite calls methods on open files only, and `put` made this one.
            let $journal = unsafe { &*(*$file.cast::<JournalFile>()).journal };
            match $journal.check_process($default) {
                Ok(()) => $body,
                Err(code) => code,
            }
        })
    };
}

impl Journal {
    fn check_process(&self, code: c_int) -> Result<(), c_int> {
        match self {
            Self::Own(db) => db.check_process(code),
            Self::Child(_) => Ok(()),
        }
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> c_int {
        match self {
            Self::Own(db) => db.answer(db.journal.read(buf, offset)),
            Self::Child(child) => child.read(buf, offset),
        }
    }

    /// Does an operation that SQLite calls only on the journal of an open database. Answers `refused` for any
    /// other journal.
    fn change(&self, refused: c_int, work: impl FnOnce(&Db) -> Result<(), Failure>) -> c_int {
        match self {
            Self::Own(db) => db.answer(work(db).map(|()| ffi::OK)),
            Self::Child(_) => refused,
        }
    }
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    shield(ffi::IOERR_CLOSE, || {
        // SAFETY: `put` made this file, and SQLite closes it once.
        let journal = unsafe { Box::from_raw((*file.cast::<JournalFile>()).journal) };
        let code = match *journal {
            Journal::Own(db) if db.is_own() => db.journal.close(),
            // The journal belongs to the parent process, so this child must not release anything of it.
            Journal::Own(db) => {
                std::mem::forget(db);
                ffi::OK
            }
            Journal::Child(child) => {
                drop(child);
                ffi::OK
            }
        };
        // SAFETY: SQLite keeps this memory alive until `close` returns.
        unsafe { (*file).methods = ptr::null() };
        code
    })
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, len: c_int, offset: i64) -> c_int {
    with_journal!(file, ffi::IOERR_READ, |journal| {
        // SAFETY: `buf` is SQLite's buffer of `len` bytes.
        let Some((buf, offset)) = (unsafe { to_fill(buf, len, offset) }) else { return ffi::IOERR_READ };
        journal.read(buf, offset)
    })
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, len: c_int, offset: i64) -> c_int {
    with_journal!(file, ffi::IOERR_WRITE, |journal| {
        // SAFETY: `data` is SQLite's buffer of `len` bytes, which SQLite does not change during the call.
        let Some((data, offset)) = (unsafe { to_write(data, len, offset) }) else { return ffi::IOERR_WRITE };
        journal.change(ffi::IOERR_WRITE, |db| {
            if begins_journal(data, offset) {
                journal::begin(db)?;
            }
            db.write_journal(data, offset)
        })
    })
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    with_journal!(file, ffi::IOERR_TRUNCATE, |journal| {
        let Ok(size) = u64::try_from(size) else { return ffi::IOERR_TRUNCATE };
        journal.change(ffi::IOERR_TRUNCATE, |db| db.journal.truncate(size))
    })
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    with_journal!(file, ffi::IOERR_FSYNC, |journal| journal.change(ffi::OK, |db| db.journal.sync()))
}

unsafe extern "C" fn file_size(file: *mut File, out: *mut i64) -> c_int {
    with_journal!(file, ffi::IOERR_FSTAT, |journal| {
        let size = match journal {
            Journal::Own(db) => match db.journal.size() {
                Ok(size) => size,
                Err(failure) => return db.sqlite.fail(&failure),
            },
            Journal::Child(child) => match child.size() {
                Ok(size) => size,
                Err(code) => return code,
            },
        };
        let Ok(size) = i64::try_from(size) else { return ffi::IOERR_FSTAT };
        // SAFETY: SQLite passes a place for the size.
        unsafe { *out = size };
        ffi::OK
    })
}

unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_file: *mut File) -> c_int {
    0
}
