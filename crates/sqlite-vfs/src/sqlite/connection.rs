//! Connections that this VFS opens for itself, through the application's SQLite.
#![allow(unsafe_code)] // calls SQLite's functions

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use duralite_sqlite_ffi::{self as ffi, Connection, Statement};

use super::Api;
use crate::errors::Failure;
use crate::shield::Said;
use crate::shield::shield;

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is opening one of the VFS's own connections.
pub fn is_opening() -> bool {
    OPENING.try_with(Cell::get).unwrap_or(false)
}

/// How one of the VFS's own connections waits for a lock. The connection does not use SQLite's busy handler,
/// because that handler sleeps for up to tens of milliseconds at a time, and a checkpoint may keep all
/// writers out during such a sleep.
#[derive(Clone, Copy)]
pub struct BusyWait {
    /// The time for which one statement polls for a lock, at short intervals.
    pub polling: Duration,
    /// The additional time for which the statement waits in the queue for a lock. While the statement is in
    /// the queue, it keeps no other connection waiting.
    pub queued: Duration,
    /// The function that waits in that queue for at most the given time. It returns `false` at once if the
    /// lock that was refused has no queue.
    pub queue: fn(Duration) -> bool,
}

impl BusyWait {
    /// Returns a wait that only polls, for at most `limit`.
    pub fn polling(limit: Duration) -> Self {
        Self { polling: limit, queued: Duration::ZERO, queue: |_| false }
    }
}

/// The interval at which a wait polls.
const PAUSE: Duration = Duration::from_micros(250);

/// What the busy handler knows about the statement that waits: when it began to wait, and how much of the
/// time since then it has spent in the queue. The time between two calls of the handler counts as waiting
/// too, because SQLite may open a log in between, and that may take time.
struct Busy {
    wait: BusyWait,
    since: Cell<Instant>,
    queued: Cell<Duration>,
    gave_up: Cell<bool>,
}

impl Busy {
    fn new(wait: BusyWait) -> Self {
        Self {
            wait,
            since: Cell::new(Instant::now()),
            queued: Cell::new(Duration::ZERO),
            gave_up: Cell::new(false),
        }
    }

    /// Waits if any time is left. Returns whether SQLite should try again.
    fn wait(&self, is_first: bool) -> bool {
        let begun = Instant::now();
        if is_first {
            self.since.set(begun);
            self.queued.set(Duration::ZERO);
        }
        let left = self.wait.queued.saturating_sub(self.queued.get());
        if !left.is_zero() && (self.wait.queue)(left) {
            self.queued.set(self.queued.get() + begun.elapsed());
            return true;
        }
        let polled = begun.duration_since(self.since.get()).saturating_sub(self.queued.get());
        let left = self.wait.polling.saturating_sub(polled);
        self.gave_up.set(left.is_zero());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(PAUSE));
        true
    }
}

/// Waits when SQLite finds a lock taken. This is the busy handler, which SQLite calls with `busy` as the
/// argument.
unsafe extern "C" fn on_busy(busy: *mut c_void, before: c_int) -> c_int {
    shield(0, || {
        // SAFETY: `busy` is the `Busy` of the connection, and outlives the connection. Only the connection's
        // thread uses it.
        let busy = unsafe { &*busy.cast::<Busy>() };
        c_int::from(busy.wait(before == 0))
    })
}

/// One of the VFS's own connections. Dropping this value closes the connection. Only one thread at a time
/// uses it.
pub struct OwnConnection<'a> {
    api: &'a Api,
    connection: *mut Connection,
    purpose: &'static str,
    /// The state of the busy handler. It comes from `Box::into_raw`, because SQLite has the pointer.
    busy: *mut Busy,
}

// SAFETY: SQLite lets any thread use a connection, one at a time. In a program whose SQLite has no mutexes
// there is one thread that uses SQLite. A shared reference to this type stays on its thread.
unsafe impl Send for OwnConnection<'_> {}

impl Drop for OwnConnection<'_> {
    fn drop(&mut self) {
        // SAFETY: `open` opened this connection, which has no unfinished statements. Closing null does
        // nothing.
        unsafe { (self.api.close)(self.connection) };
        // SAFETY: `Box::into_raw` made this pointer, and SQLite does not have it any more.
        drop(unsafe { Box::from_raw(self.busy) });
    }
}

impl<'a> OwnConnection<'a> {
    /// Opens a database by its path or URI through the VFS `vfs`. The messages of this connection's failures
    /// begin with `purpose`.
    pub fn open(
        api: &'a Api,
        name: &CStr,
        vfs: &CStr,
        wait: BusyWait,
        purpose: &'static str,
    ) -> Result<Self, Failure> {
        let busy = Box::into_raw(Box::new(Busy::new(wait)));
        let mut own = Self { api, connection: ptr::null_mut(), purpose, busy };
        let flags = ffi::OPEN_READWRITE | ffi::OPEN_URI | ffi::OPEN_NOMUTEX | ffi::OPEN_PRIVATECACHE;
        let said = Said::here(&OPENING);
        // SAFETY: both names live across the call. `drop` closes the connection, even if opening it has
        // failed.
        let code = unsafe { (api.open_v2)(name.as_ptr(), &raw mut own.connection, flags, vfs.as_ptr()) };
        drop(said);
        if code != ffi::OK {
            return Err(own.failure(code));
        }
        // SAFETY: the connection is open. It is closed before `busy` is freed.
        unsafe { (api.busy_handler)(own.connection, Some(on_busy), own.busy.cast()) };
        Ok(own)
    }

    /// Returns whether the last wait ended because no time was left.
    pub fn gave_up(&self) -> bool {
        // SAFETY: this value is alive as long as the connection.
        unsafe { &*self.busy }.gave_up.get()
    }

    fn failure(&self, code: c_int) -> Failure {
        // SAFETY: the text belongs to the connection (or to SQLite for null), and is copied.
        let text = unsafe { CStr::from_ptr((self.api.errmsg)(self.connection)) };
        Failure::new(code, format!("{}: {}", self.purpose, text.to_string_lossy()))
    }

    /// Runs one statement. Returns the first column of its first row, as a number, or `None` if the statement
    /// returns no row.
    pub fn run(&self, sql: &CStr) -> Result<Option<c_int>, Failure> {
        let mut statement: *mut Statement = ptr::null_mut();
        // SAFETY: the connection is open, and the text ends with a zero. The null pointer says that no tail
        // is wanted.
        let code = unsafe {
            (self.api.prepare_v2)(self.connection, sql.as_ptr(), -1, &raw mut statement, ptr::null_mut())
        };
        if code != ffi::OK {
            return Err(self.failure(code));
        }
        // SAFETY: the statement was prepared above.
        let code = unsafe { (self.api.step)(statement) };
        let first = if code == ffi::ROW {
            // SAFETY: the statement has a row.
            Some(unsafe { (self.api.column_int)(statement, 0) })
        } else {
            None
        };
        // SAFETY: the statement is finalised only here.
        let finalized = unsafe { (self.api.finalize)(statement) };
        match code {
            ffi::ROW | ffi::DONE => Ok(first),
            _ => Err(self.failure(finalized)),
        }
    }
}

/// Returns the URI of the database at `path`, with these parameters.
pub fn uri_of(path: &Path, parameters: &[(&str, String)]) -> Result<CString, Failure> {
    let mut uri = b"file:".to_vec();
    escape(&mut uri, path.as_os_str().as_bytes());
    for (i, (name, value)) in parameters.iter().enumerate() {
        uri.push(if i == 0 { b'?' } else { b'&' });
        uri.extend_from_slice(name.as_bytes());
        uri.push(b'=');
        escape(&mut uri, value.as_bytes());
    }
    CString::new(uri).map_err(|_| Failure::cannot_open("the path of the database holds a zero byte"))
}

/// Appends `text`, and escapes all bytes that have a meaning in a URI.
fn escape(uri: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            uri.push(*byte);
        } else {
            uri.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_escaped() {
        let mut uri = Vec::new();
        escape(&mut uri, "/tmp/a b?c#d%eé.db".as_bytes());
        assert_eq!(uri, b"/tmp/a%20b%3Fc%23d%25e%C3%A9.db");
    }
}
