//! Answers what a concurrent connection asks about the SQLite connection to which it belongs.
#![allow(unsafe_code)] // SQLite's connection and its busy handler

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicPtr, Ordering};

use duralite_sqlite_ffi::{BusyHandler, Connection, Statement};

use crate::sqlite::Sqlite;

/// What SQLite has told the VFS about the SQLite connection that uses a database. All methods run within
/// calls by SQLite, and SQLite holds the connection's mutex during these calls.
#[derive(Default)]
pub struct Host {
    /// The address of SQLite's own pointer to the connection that uses the open database. With a shared
    /// cache, SQLite makes this pointer lead to the connection that is at work.
    connection: AtomicPtr<*mut Connection>,
    /// SQLite's function that calls the connection's busy handler, and its argument.
    busy: Mutex<Option<Busy>>,
}

#[derive(Clone, Copy)]
struct Busy {
    function: BusyInvoker,
    argument: *mut c_void,
}

// SAFETY: the argument belongs to SQLite's open database, and is used only under the connection's mutex.
unsafe impl Send for Busy {}

type BusyInvoker = unsafe extern "C" fn(*mut c_void) -> c_int;
const _: () = assert!(size_of::<BusyInvoker>() == size_of::<BusyHandler>());

impl Host {
    /// Notes the address at which SQLite keeps the pointer to the connection (`SQLITE_FCNTL_PDB`). Returns
    /// whether the address was not known yet.
    ///
    /// # Safety
    /// `place` is SQLite's, and stays valid until the database file is closed.
    pub unsafe fn set_connection(&self, place: *mut *mut Connection) -> bool {
        self.connection.swap(place, Ordering::Relaxed).is_null()
    }

    /// Notes how to call the busy handler (`SQLITE_FCNTL_BUSYHANDLER`).
    ///
    /// # Safety
    /// `pair` is null, or the function and its argument, which stay valid until the database file is closed.
    pub unsafe fn set_busy_handler(&self, pair: *const *mut c_void) {
        if pair.is_null() {
            return;
        }
        // SAFETY: the caller promises that `pair` is valid. A null function reads as `None`.
        let busy = unsafe {
            let function = pair.cast::<Option<BusyInvoker>>().read();
            function.map(|function| Busy { function, argument: *pair.add(1) })
        };
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = busy;
    }

    fn connection(&self) -> *mut Connection {
        let place = self.connection.load(Ordering::Relaxed);
        // SAFETY: as promised to `set_connection`.
        if place.is_null() { ptr::null_mut() } else { unsafe { *place } }
    }

    /// Returns whether the application has begun a transaction, with `BEGIN` or `SAVEPOINT`. The answer is
    /// `false` while the `BEGIN` or `SAVEPOINT` itself runs. `BEGIN IMMEDIATE` takes WRITE during that time.
    /// Returns `None` if SQLite has not told the VFS which connection uses the database.
    pub fn is_in_transaction(&self, sqlite: &Sqlite) -> Option<bool> {
        let connection = self.connection();
        // SAFETY: the connection is open, and this thread is using it.
        (!connection.is_null()).then(|| unsafe { (sqlite.api.get_autocommit)(connection) == 0 })
    }

    /// Returns whether the connection is known to have no database besides its main database and the one for
    /// temporary tables.
    pub fn has_one_database(&self, sqlite: &Sqlite) -> bool {
        const FIRST_ATTACHED: c_int = 2;
        let connection = self.connection();
        let Some(db_name) = sqlite.api.db_name.filter(|_| !connection.is_null()) else { return false };
        // SAFETY: the connection is open, and this thread is using it.
        unsafe { db_name(connection, FIRST_ATTACHED).is_null() }
    }

    /// Returns whether the transaction is known to have read nothing yet, because its first statement is just
    /// beginning the transaction. If that statement finds the database busy, SQLite calls the busy handler
    /// and begins the transaction again.
    pub fn has_read_nothing(&self, sqlite: &Sqlite) -> bool {
        const NOT_BEGUN: c_int = 0;
        let connection = self.connection();
        let Some(txn_state) = sqlite.api.txn_state.filter(|_| !connection.is_null()) else { return false };
        // SAFETY: the connection is open, and this thread is using it.
        unsafe { txn_state(connection, ptr::null()) == NOT_BEGUN }
    }

    /// Returns whether the statement that now commits is a `RELEASE` of the savepoint that began the
    /// transaction.
    pub fn is_releasing(&self, sqlite: &Sqlite) -> bool {
        let mut is_releasing = false;
        self.each_running(sqlite, |_, text| is_releasing |= begins_with(text, &[b"RELEASE"]));
        is_releasing
    }

    /// Returns whether a `PRAGMA` runs.
    pub fn is_in_pragma(&self, sqlite: &Sqlite) -> bool {
        let mut is_in_pragma = false;
        self.each_running(sqlite, |_, text| is_in_pragma |= begins_with(text, &[b"PRAGMA"]));
        is_in_pragma
    }

    /// Returns whether a single statement runs, and that statement only reads. This holds for a `SELECT`, but
    /// not for a statement that ends a transaction.
    pub fn is_in_select(&self, sqlite: &Sqlite) -> bool {
        let (mut running, mut selects) = (0, 0);
        self.each_running(sqlite, |statement, text| {
            running += 1;
            // SAFETY: the statement belongs to this connection, which this thread is using.
            let is_read_only = unsafe { (sqlite.api.stmt_readonly)(statement) } != 0;
            selects += i32::from(is_read_only && begins_with(text, &[b"SELECT", b"WITH", b"VALUES"]));
        });
        (running, selects) == (1, 1)
    }

    /// Returns whether a single statement is known to run.
    pub fn runs_one_statement(&self, sqlite: &Sqlite) -> bool {
        let mut running = 0;
        self.each_running(sqlite, |_, _| running += 1);
        running == 1
    }

    /// Calls `show` with each statement that runs, and its text.
    fn each_running(&self, sqlite: &Sqlite, mut show: impl FnMut(*mut Statement, &[u8])) {
        let (connection, api) = (self.connection(), &sqlite.api);
        if connection.is_null() {
            return;
        }
        // SAFETY: this thread is using the connection, so its statements and their texts stay valid.
        let next = |statement| unsafe { (api.next_stmt)(connection, statement) };
        let mut statement = next(ptr::null_mut());
        while !statement.is_null() {
            // SAFETY: as above.
            let text = unsafe { ((api.stmt_busy)(statement) != 0).then(|| (api.sql)(statement)) };
            if let Some(text) = text {
                // An open incremental blob is a statement without a text.
                // SAFETY: SQLite's text ends with a zero.
                let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes());
                show(statement, text.unwrap_or_default());
            }
            statement = next(statement);
        }
    }

    /// Calls the busy handler, which may sleep. Returns whether the handler wants the connection to try
    /// again.
    pub fn is_patient(&self) -> bool {
        let busy = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as promised to `set_busy_handler`. SQLite's call holds the connection's mutex.
        busy.is_some_and(|busy| unsafe { (busy.function)(busy.argument) } != 0)
    }
}

/// Returns whether a statement begins with one of these words, not counting spaces and comments before it.
fn begins_with(statement: &[u8], words: &[&[u8]]) -> bool {
    let mut rest = statement.trim_ascii_start();
    loop {
        let end: &[u8] = match rest {
            [b';', ..] => b";",
            [b'-', b'-', ..] => b"\n",
            [b'/', b'*', ..] => b"*/",
            _ => break,
        };
        let Some(at) = rest.windows(end.len()).position(|bytes| bytes == end) else { return false };
        rest = rest[at + end.len()..].trim_ascii_start();
    }
    words.iter().any(|word| rest.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::begins_with;

    #[test]
    fn a_release_is_told_from_other_statements() {
        for text in ["RELEASE a", " \n;-- x\n/* y */ release savepoint a", "Release"] {
            assert!(begins_with(text.as_bytes(), &[b"END", b"RELEASE"]), "{text}");
        }
        for text in ["COMMIT", "", "-- RELEASE", "/* RELEASE", "END; RELEASE a", "SAVEPOINT release"] {
            assert!(!begins_with(text.as_bytes(), &[b"RELEASE"]), "{text}");
        }
    }
}
