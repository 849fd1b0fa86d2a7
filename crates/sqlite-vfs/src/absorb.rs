//! Folding the `-wal` file that a program without Duralite left behind into the database: by
//! stock SQLite itself, through the base VFS.
#![allow(unsafe_code)] // opens a connection through SQLite's own functions

use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use duralite_sqlite_ffi::{self as ffi, Connection, Statement};

use crate::db::Db;
use crate::errors::Failure;
use crate::registration::Api;

const BUSY_TIMEOUT_MS: c_int = 2000;

/// A connection of stock SQLite, closed when dropped.
struct Stock<'a> {
    api: &'a Api,
    connection: *mut Connection,
}

impl Drop for Stock<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, without unfinished statements; closing null does nothing.
        unsafe { (self.api.close)(self.connection) };
    }
}

impl<'a> Stock<'a> {
    fn open(db: &'a Db) -> Result<Self, Failure> {
        let registration = db.registration;
        let path = CString::new(db.path.as_os_str().as_bytes())
            .map_err(|_| Failure::cannot_open("the path of the database holds a zero byte"))?;
        let mut stock = Self { api: &registration.api, connection: ptr::null_mut() };
        let flags = ffi::OPEN_READWRITE | ffi::OPEN_NOMUTEX | ffi::OPEN_PRIVATECACHE;
        let vfs = registration.parent.name();
        // SAFETY: path and VFS name live across the call; the connection is closed by `drop`
        // also when opening failed.
        let code =
            unsafe { (stock.api.open_v2)(path.as_ptr(), &raw mut stock.connection, flags, vfs.as_ptr()) };
        if code != ffi::OK {
            return Err(stock.failure(code));
        }
        // SAFETY: an open connection.
        unsafe { (stock.api.busy_timeout)(stock.connection, BUSY_TIMEOUT_MS) };
        Ok(stock)
    }

    fn failure(&self, code: c_int) -> Failure {
        // SAFETY: the text belongs to the connection (or to SQLite for null) and is copied.
        let text = unsafe { CStr::from_ptr((self.api.errmsg)(self.connection)) };
        Failure::new(code, format!("cannot checkpoint the ordinary -wal file: {}", text.to_string_lossy()))
    }

    /// Runs one statement; the first column of its first row, if it has any.
    fn run(&self, sql: &CStr) -> Result<Option<c_int>, Failure> {
        let mut statement: *mut Statement = ptr::null_mut();
        // SAFETY: an open connection and a terminated text; no tail is wanted.
        let code = unsafe {
            (self.api.prepare_v2)(self.connection, sql.as_ptr(), -1, &raw mut statement, ptr::null_mut())
        };
        if code != ffi::OK {
            return Err(self.failure(code));
        }
        // SAFETY: a statement prepared above.
        let code = unsafe { (self.api.step)(statement) };
        let first = if code == ffi::ROW {
            // SAFETY: the statement has a row.
            Some(unsafe { (self.api.column_int)(statement, 0) })
        } else {
            None
        };
        // SAFETY: finalised once, here.
        let finalized = unsafe { (self.api.finalize)(statement) };
        match code {
            ffi::ROW | ffi::DONE => Ok(first),
            _ => Err(self.failure(finalized)),
        }
    }
}

/// Checkpoints and empties the base VFS's `-wal`. Fails with BUSY when somebody uses it.
pub fn checkpoint_base_wal(db: &Db) -> Result<(), Failure> {
    let stock = Stock::open(db)?;
    stock.run(c"PRAGMA synchronous=FULL")?;
    let busy = stock.run(c"PRAGMA wal_checkpoint(TRUNCATE)")?;
    drop(stock);
    if busy == Some(0) && db.base_wal_bytes()?.unwrap_or(0) == 0 {
        return Ok(());
    }
    Err(Failure::new(
        ffi::BUSY,
        format!(
            "{} has an ordinary -wal file that another program is using without Duralite; close that program",
            db.path.display()
        ),
    ))
}
