//! Connections that this VFS opens for itself, to write or to use the base VFS when the application's
//! connection cannot.
//!
//! A closed database has no log. A read-only connection cannot make a log. If that connection read the
//! database without a log, no other connection could make a log while it reads. So the VFS opens a second
//! connection that makes the log, if this user may write, as stock SQLite makes `-wal` and `-shm` for a
//! reader. After the reader has closed, another such connection closes the log and so deletes it.
//!
//! Such a connection also closes a log whose last users have closed at the same time. Each of these users
//! kept the others from EXCLUSIVE, so none of them could close the log.
//!
//! If pages end in reserved bytes, the VFS opens no such connection, because its checkpoint would bypass the
//! VFS above this one that fills those bytes.
//!
//! If a program without Duralite has left an ordinary `-wal`, the VFS opens a connection through the base
//! VFS. In that connection stock SQLite checkpoints the `-wal`.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use duralite_medium::FileSegment;
use duralite_sqlite_ffi as ffi;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::database::Db;
use crate::errors::Failure;
use crate::shield::Said;
use crate::sqlite::connection::{BusyWait, OwnConnection, uri_of};
use crate::sqlite::{Sqlite, VFS_NAME};

/// The time for which one of the VFS's own connections waits for a lock. The application waits during that
/// time.
const BUSY_TIMEOUT: Duration = Duration::from_millis(100);
/// The time for which stock SQLite waits for connections that use an ordinary `-wal`.
const STOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How many times a connection tries to close the log after several connections have closed at the same time.
const TRIES: u32 = 3;

thread_local! {
    /// Whether this thread is opening a helper.
    static HELPING: Cell<bool> = const { Cell::new(false) };
}

fn open(
    sqlite: &'static Sqlite,
    uri: &CString,
    purpose: &'static str,
) -> Result<OwnConnection<'static>, Failure> {
    OwnConnection::open(&sqlite.api, uri, VFS_NAME, BusyWait::polling(BUSY_TIMEOUT), purpose)
        .and_then(|own| own.run(c"SELECT 1 FROM sqlite_master LIMIT 1").map(|_| own))
}

/// Runs `work`, which opens a helper. Marks the thread during that time, so that the helper opens no other
/// helper.
fn helping<T>(work: impl FnOnce() -> T) -> T {
    let _said = Said::here(&HELPING);
    work()
}

/// Opens a connection that may write. The caller is a connection that may not write and holds no lock of the
/// file. Returns `None` if this user may not write, if pages have reserved bytes, or if the caller is a
/// helper itself. Also returns `None` after an error, which goes to SQLite's error log.
pub fn writer(db: &Db, purpose: &'static str) -> Option<OwnConnection<'static>> {
    if HELPING.get() || !may_write(db) || db.reserves_bytes().unwrap_or(true) {
        return None;
    }
    let parameters = db.settings().parameters();
    let opened = uri_of(&db.path, &parameters).and_then(|uri| helping(|| open(db.sqlite, &uri, purpose)));
    opened.inspect_err(|failure| db.sqlite.report(ffi::NOTICE, &failure.message)).ok()
}

fn may_write(db: &Db) -> bool {
    access(&db.path, Access::WRITE_OK).is_ok()
}

/// Closes a log that no connection uses any more and that nobody has checkpointed and deleted. Two kinds of
/// logs need this: a log that was made for a reader, and a log whose last users closed at the same time. A
/// connection makes its `Lifter` before it closes its files, and runs the `Lifter` after that.
pub struct Lifter {
    sqlite: &'static Sqlite,
    uri: CString,
    /// The path of the log's shared memory, if a connection that may write was refused EXCLUSIVE. The lifter
    /// then does nothing if that file shows that a process uses the log, or if the file is gone.
    unless_used: Option<PathBuf>,
}

impl Lifter {
    /// Returns the `Lifter` that must run after this connection has closed. It must run if the connection has
    /// used a log and either was read-only or was refused EXCLUSIVE. Returns `None` otherwise, and also if
    /// the VFS must not open a connection for this work.
    pub fn of(db: &Db) -> Option<Self> {
        let refused = db.refused_exclusive();
        if HELPING.get() || !db.was_served() || !(db.read_only || refused.is_some()) || !may_write(db) {
            return None;
        }
        if db.reserves_bytes().unwrap_or(true) {
            return None;
        }
        let parameters = db.settings().parameters();
        let uri = uri_of(&db.path, &parameters).ok()?;
        Some(Self { sqlite: db.sqlite, uri, unless_used: refused.filter(|_| !db.read_only) })
    }

    /// Opens and closes the database, so that SQLite checkpoints at the last close and this VFS deletes the
    /// log. If the connection was refused EXCLUSIVE, makes several attempts, because other connections may do
    /// the same at the same time and keep each other from EXCLUSIVE.
    pub fn run(self) {
        helping(|| self.close_anew());
    }

    fn close_anew(&self) {
        for _ in 0..TRIES {
            if self.unless_used.as_deref().is_some_and(is_used_or_gone) {
                break;
            }
            if let Err(failure) =
                open(self.sqlite, &self.uri, "cannot close a log that no connection uses any more")
            {
                self.sqlite.report(ffi::NOTICE, &failure.message);
            }
            if self.unless_used.is_none() {
                break;
            }
        }
    }
}

/// Returns whether any process uses the log with this shared memory, or the log is gone.
fn is_used_or_gone(segment: &Path) -> bool {
    File::open(segment).map_or(true, |segment| FileSegment::has_processes(&segment).unwrap_or(true))
}

/// Returns whether this user may write the `-wal` and the `-shm`, if they exist.
pub fn may_write_base_wal(db: &Db) -> bool {
    let may = |end| {
        !matches!(access(db.beside(end), Access::WRITE_OK), Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    };
    may("-wal") && may("-shm")
}

/// Checkpoints and empties the base VFS's `-wal`. Fails with `BUSY` if another connection uses the file.
pub fn checkpoint_base_wal(db: &Db) -> Result<(), Failure> {
    let name = CString::new([b"./".as_slice(), db.path.as_os_str().as_bytes()].concat())
        .map_err(|_| Failure::cannot_open("the path of the database holds a zero byte"))?;
    // SQLite would treat a name that begins with `file:` as a URI. An absolute path does not begin with
    // `file:`. A relative path gets `./` at its beginning.
    let name = if db.path.is_absolute() { &name.as_c_str()[2..] } else { name.as_c_str() };
    let purpose = "cannot checkpoint the ordinary -wal file";
    let parent = db.sqlite.parent.name();
    let stock = OwnConnection::open(&db.sqlite.api, name, parent, BusyWait::polling(STOCK_TIMEOUT), purpose)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_helping() {
        let panicked = std::panic::catch_unwind(|| {
            helping(|| {
                assert!(HELPING.get());
                std::panic::resume_unwind(Box::new(()));
            });
        });
        assert!(panicked.is_err() && !HELPING.get());
        helping(|| helping(|| ()));
        assert!(!HELPING.get());
    }
}
