//! `sqlite3_io_methods` of a WAL that lives in a log.
#![allow(unsafe_code)] // the functions that SQLite calls

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use duralite_format::sqlite_wal::FRAME_HEADER_BYTES;
use duralite_sqlite_ffi::{self as ffi, File, IoMethods};
use duralite_wal::LogError;

use super::file::{BESIDE_DATABASE, to_fill, to_write};
use crate::attachment::{Attachment, Use};
use crate::database::{Db, Serving, replicated, save};
use crate::errors::{During, Failure};
use crate::guard::Guard;
use crate::shield::shield;

/// An open WAL. SQLite closes the WAL before its database.
pub struct Wal {
    db: Arc<Db>,
    attachment: Arc<Attachment>,
}

/// The beginning of the memory that SQLite gives for the file.
#[repr(C)]
struct WalFile {
    methods: *const IoMethods,
    wal: *mut Wal,
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

/// Makes `file` an open WAL.
///
/// # Safety
/// `file` is memory for a file of this VFS.
pub unsafe fn install(file: *mut File, db: Arc<Db>, used: Use) {
    let attachment = Arc::clone(used.attachment());
    db.attach(used, Serving::Wal);
    let wal = Box::into_raw(Box::new(Wal { db, attachment }));
    // SAFETY: as promised by the caller.
    unsafe { ptr::write(file.cast::<WalFile>(), WalFile { methods: &METHODS, wal }) };
}

/// Runs `$body` with the WAL of `$file`, and stops a panic from crossing into C. In a child of the process
/// that opened the WAL, the answer is `$default`.
macro_rules! with_wal {
    ($file:ident, $default:expr, |$wal:ident| $body:expr) => {
        shield($default, || {
            // SAFETY: SQLite calls methods on open files only, and `install` made this one.
            let $wal = unsafe { &*(*$file.cast::<WalFile>()).wal };
            match $wal.db.check_process($default) {
                Ok(()) => $body,
                Err(code) => code,
            }
        })
    };
}

impl Wal {
    fn answer(&self, during: During, result: Result<c_int, LogError>) -> c_int {
        result.unwrap_or_else(|error| self.db.sqlite.fail(&Failure::of(&error, during)))
    }

    /// Takes what SQLite writes to the WAL. On a concurrent connection this function keeps the data in memory
    /// until SQLite commits, and then writes the data to the log.
    fn write_for_sqlite(&self, offset: u64, data: &[u8]) -> Result<c_int, Failure> {
        match self.db.concurrent() {
            None => self.write(offset, data),
            Some(own) => own.write_wal(&self.db, offset, data, &mut |offset, data| self.write(offset, data)),
        }
    }

    /// Writes to the log. A commit frame seals the transaction, so the wal-index must have room for the frame
    /// before this function writes it.
    fn write(&self, offset: u64, data: &[u8]) -> Result<c_int, Failure> {
        if offset == 0 {
            return self.begin(data);
        }
        if is_commit_header(data) {
            replicated::check_commit(&self.db)?;
            self.db.make_room_in_index(&self.attachment, offset)?;
        }
        Ok(self.take(offset, data))
    }

    /// Takes the header that SQLite writes at the beginning of the WAL. If the guard is not confirmed yet,
    /// makes it final and durable. Under a provisional guard the log has had no commits. Under any other
    /// guard the log may have had commits, so this function first makes sure that the log may start over.
    fn begin(&self, data: &[u8]) -> Result<c_int, Failure> {
        self.attachment.look_for_log_now(|| self.db.has_no_name());
        if self.attachment.is_deleted() {
            return Ok(self.take(0, data));
        }
        match Guard::of(&self.db, &self.attachment)? {
            Guard::Provisional(guard) => {
                let code = self.take(0, data);
                if code == ffi::OK {
                    guard.make_final()?;
                }
                return Ok(code);
            }
            Guard::Unconfirmed(guard) => guard.put_again()?,
            Guard::Confirmed => {}
        }
        Ok(self.before_reuse().map_or_else(|code| code, |()| self.take(0, data)))
    }

    fn take(&self, offset: u64, data: &[u8]) -> c_int {
        let written = self.db.write_log(&self.attachment, offset, data);
        if let Err(LogError::Deleted(_)) = written {
            save::put_home(&self.db, &self.attachment);
        }
        self.answer(During::Write, written.map(|()| ffi::OK))
    }

    /// Makes the checkpointed pages durable in the database file before the log drops them (invariant 6).
    fn before_reuse(&self) -> Result<(), c_int> {
        // The log cannot start over while a stopped process may still write to it.
        if !self.attachment.may_start_over() {
            return Err(ffi::BUSY);
        }
        // Usually nothing is left to sync here: SQLite has locked the read marks earlier, and this VFS has
        // synced the file at that time. In exclusive locking mode SQLite does not lock the marks, so sync the
        // file here.
        let synced = self.db.sync_home(&self.attachment, None, ffi::SYNC_NORMAL);
        synced.map_err(|failure| self.db.sqlite.fail(&failure))
    }
}

/// Returns whether this is the header of a commit frame. Only a commit frame gives the size of the database;
/// other frames have 0 there.
fn is_commit_header(data: &[u8]) -> bool {
    data.len() == FRAME_HEADER_BYTES && data[4..8] != [0; 4]
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    shield(ffi::IOERR_CLOSE, || {
        // SAFETY: `install` made this file, and SQLite closes it once.
        let wal = unsafe { Box::from_raw((*file.cast::<WalFile>()).wal) };
        if !wal.db.is_own() {
            // The WAL belongs to the parent process, so this child must not release anything of it.
            std::mem::forget(wal);
            // SAFETY: SQLite keeps this memory alive until `close` returns.
            unsafe { (*file).methods = ptr::null() };
            return ffi::OK;
        }
        let Wal { db, attachment } = *wal;
        // Drop this reference first, so that the database has the last reference. `wal_closed` drops the last
        // reference while the background thread does not use the log.
        drop(attachment);
        db.wal_closed();
        // SAFETY: SQLite keeps this memory alive until `close` returns.
        unsafe { (*file).methods = ptr::null() };
        ffi::OK
    })
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, len: c_int, offset: i64) -> c_int {
    with_wal!(file, ffi::IOERR_READ, |wal| {
        // SAFETY: `buf` is SQLite's buffer of `len` bytes.
        let Some((buf, offset)) = (unsafe { to_fill(buf, len, offset) }) else { return ffi::IOERR_READ };
        if let Some(concurrent) = wal.db.concurrent() {
            return wal.db.answer(concurrent.read_wal(&wal.db, buf, offset));
        }
        let read = wal.attachment.log().read(&wal.db.base, offset, buf);
        match read {
            Ok(count) if count < buf.len() => ffi::IOERR_SHORT_READ,
            Ok(_) => ffi::OK,
            Err(error) => wal.db.sqlite.fail(&wal.db.read_failure(Failure::of(&error, During::Read))),
        }
    })
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, len: c_int, offset: i64) -> c_int {
    with_wal!(file, ffi::IOERR_WRITE, |wal| {
        // SAFETY: `data` is SQLite's buffer of `len` bytes, which SQLite does not change during the call.
        let Some((data, offset)) = (unsafe { to_write(data, len, offset) }) else { return ffi::IOERR_WRITE };
        wal.db.answer(wal.write_for_sqlite(offset, data))
    })
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    with_wal!(file, ffi::IOERR_TRUNCATE, |wal| {
        let Ok(size) = u64::try_from(size) else { return ffi::IOERR_TRUNCATE };
        if let Some(concurrent) = wal.db.concurrent() {
            return wal.db.answer(concurrent.truncate_wal(&wal.db));
        }
        if let Err(code) = wal.before_reuse() {
            return code;
        }
        let truncated = wal.attachment.log().truncate(&wal.db.base, size);
        wal.answer(During::Truncate, truncated.map(|()| ffi::OK))
    })
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    with_wal!(file, ffi::IOERR_FSYNC, |wal| {
        // The commit frame has sealed the transaction already, and `Db::wait_durable` waits until it is
        // durable.
        if wal.db.concurrent().is_some() {
            // The transaction is already published too, so an error must not make SQLite roll it back.
            return ffi::OK;
        }
        let usable = wal.attachment.log().check();
        wal.answer(During::Sync, usable.map(|()| ffi::OK))
    })
}

unsafe extern "C" fn file_size(file: *mut File, out: *mut i64) -> c_int {
    with_wal!(file, ffi::IOERR_FSTAT, |wal| {
        let size = match wal.db.concurrent() {
            Some(concurrent) => Ok(concurrent.wal_bytes() as u64),
            None => wal.attachment.log().size(),
        };
        wal.answer(
            During::Size,
            size.map(|size| match i64::try_from(size) {
                Ok(size) => {
                    // SAFETY: SQLite passes a place for the size.
                    unsafe { *out = size };
                    ffi::OK
                }
                Err(_) => ffi::IOERR_FSTAT,
            }),
        )
    })
}

unsafe extern "C" fn sector_size(file: *mut File) -> c_int {
    with_wal!(file, 4096, |wal| wal.db.base.sector_size())
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    with_wal!(file, 0, |wal| wal.db.base.device_characteristics())
}
