//! How this VFS waits for locks of the database file that other connections hold. These waits come in
//! addition to those of the application's busy handler. The module also makes the failures that this VFS
//! reports if a wait has no success. And it gives each thread of this process a turn to open a log. Each
//! thread needs EXCLUSIVE for a moment, and without turns the threads would keep each other from getting it.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use duralite_locks::file::{Code, Exclusive, Held};
use duralite_medium::process::PerProcess;
use duralite_sqlite_ffi as ffi;

use crate::database::Db;
use crate::errors::Failure;
use crate::sqlite::base::BaseFile;

/// The proof that this connection holds EXCLUSIVE. The functions that put a guard on or take a guard off
/// require this proof (invariant 2).
pub type Alone<'h> = Exclusive<'h, BaseFile>;

/// The longest time for which a connection with PENDING waits for others to release SHARED. During that time
/// no connection can begin a transaction.
const PENDING: Duration = Duration::from_millis(50);
const PENDING_PAUSE: Duration = Duration::from_micros(100);
const PENDING_TRIES: u32 = (PENDING.as_micros() / PENDING_PAUSE.as_micros()) as u32;

/// The largest number of times that this VFS reads `/proc/locks` to find a lock there. The kernel returns the
/// file in pieces, and while other processes lock and unlock, a lock may be missing from all pieces.
const LOOKS_AT_LOCKS: u32 = 8;

/// Takes EXCLUSIVE. Waits a short time for connections that hold SHARED. Meanwhile PENDING keeps other
/// connections from taking SHARED. Returns `None` if a connection does not release SHARED in that time.
pub fn take_alone<'h>(db: &Db, held: &'h mut Held<'_, BaseFile>) -> Result<Option<Alone<'h>>, Failure> {
    let pending = |tries| tries < PENDING_TRIES && db.patience.sleep(PENDING_PAUSE);
    held.exclusive(pending).map_err(cannot_lock(db))
}

/// Makes the failure to report to SQLite when this VFS could not take a lock of the file.
pub fn cannot_lock(db: &Db) -> impl Fn(Code) -> Failure + '_ {
    |code| Failure::new(code, format!("cannot lock {}", db.path.display()))
}

/// Returns the failure to report when a connection that does not use the log keeps this VFS from taking
/// EXCLUSIVE. The message names those processes that have the file locked and that this process can see.
pub fn in_use(db: &Db) -> Failure {
    in_use_by(&db.path, who_locks(db))
}

/// Returns the failure to report when other connections of this VFS open, use or close the log, and patience
/// has run out.
pub fn contended(db: &Db) -> Failure {
    let path = db.path.display();
    let reason = format!("other connections open, use or close the log of {path} just now; try again");
    let message = match who_locks(db) {
        Some(who) => format!("{reason} (the database is locked in {who})"),
        None => reason.clone(),
    };
    Failure::new(ffi::BUSY, message).because_of(reason)
}

/// Returns the failure to report when something that SQLite has read under its lock of the file is out of
/// date.
pub fn out_of_date(db: &Db) -> Failure {
    let path = db.path.display();
    let message = format!(
        "what this connection has read of {path} is out of date: the database has changed, or its lock was \
         given back; begin the transaction again"
    );
    Failure::new(ffi::BUSY, message)
}

/// Returns the failure of [`in_use`]. Only the message depends on `who`, the processes that hold locks. The
/// reason is always the same.
fn in_use_by(path: &Path, who: Option<String>) -> Failure {
    let path = path.display();
    let reason = format!(
        "{path} is open in another program, or another connection, without this log; close that one, or open it with the same \
         settings"
    );
    let message = match who {
        Some(who) => format!(
            "{path} is open without this log in {who}; close it there, or open it with the same settings"
        ),
        None => reason.clone(),
    };
    Failure::new(ffi::BUSY, message).because_of(reason)
}

/// Returns the other processes that hold locks of the database file. Returns `None` if this process can see
/// none of them, for example because they run in another container.
fn who_locks(db: &Db) -> Option<String> {
    let meta = std::fs::metadata(&db.path).ok()?;
    let file =
        format!("{:02x}:{:02x}:{}", rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()), meta.ino());
    let mut processes = Vec::new();
    for _ in 0..LOOKS_AT_LOCKS {
        processes = processes_with(&std::fs::read_to_string("/proc/locks").ok()?, &file);
        processes.retain(|process| *process != std::process::id());
        if !processes.is_empty() {
            break;
        }
    }
    let named =
        processes.iter().map(|process| match std::fs::read_to_string(format!("/proc/{process}/comm")) {
            Ok(program) => format!("process {process} ({})", program.trim_end()),
            Err(_) => format!("process {process}"),
        });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| named.join(", "))
}

/// Returns the processes that `/proc/locks` names for this file, each once. Leaves out numbers of 0 or less,
/// which stand for processes of another container.
fn processes_with(locks: &str, file: &str) -> Vec<u32> {
    let mut processes = Vec::new();
    for line in locks.lines() {
        // `1: POSIX  ADVISORY  READ 1234 fd:00:5678 1073741826 1073742335`; a waiting process has `->` after
        // the number.
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| *word == file) else { continue };
        let process = at.checked_sub(1).and_then(|at| words[at].parse().ok()).filter(|process| *process > 0);
        if let Some(process) = process.filter(|process| !processes.contains(process) && words[1] != "->") {
            processes.push(process);
        }
    }
    processes
}

/// The turns of this process's threads to open the log of one database. One thread at a time has the turn.
#[derive(Default)]
pub struct Gate {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// The gates of the databases whose logs this process is opening. The key is
/// [`duralite_wal::DatabaseIdentity::numbers`].
type Gates = HashMap<(u64, u64, u64), Weak<Gate>>;
static GATES: PerProcess<Mutex<Gates>> = PerProcess::new();

impl Gate {
    /// Returns the gate of a database file.
    pub fn of(db: &Db) -> Result<Arc<Self>, Failure> {
        let identity = db.identity()?;
        let mut gates = GATES.get().lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|_, gate| gate.strong_count() > 0);
        let place = gates.entry(identity.numbers()).or_default();
        Ok(place.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *place = Arc::downgrade(&new);
            new
        }))
    }

    fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn if no other thread has it.
    pub fn enter(self: &Arc<Self>) -> Option<Turn> {
        let was_taken = std::mem::replace(&mut *self.taken(), true);
        (!was_taken).then(|| Turn(Arc::clone(self)))
    }

    /// Waits until no thread has the turn, for at most `limit`.
    pub fn wait(&self, limit: Duration) {
        drop(self.freed.wait_timeout_while(self.taken(), limit, |taken| *taken));
    }
}

/// The turn of a thread, which lasts until this value is dropped.
pub struct Turn(Arc<Gate>);

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.taken() = false;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_seen_once_and_not_the_next_time_is_the_same_refusal() {
        let path = Path::new("a.db");
        let (seen, unseen) = (in_use_by(path, Some("process 7 (cron)".into())), in_use_by(path, None));
        assert!(seen.message.contains("process 7 (cron)") && !unseen.message.contains("process"));
        assert_eq!(seen.reason(), unseen.reason());
        assert_ne!(seen.reason(), in_use_by(Path::new("b.db"), None).reason());
    }

    #[test]
    fn who_has_a_lock_of_the_file_is_found_once() {
        let locks = "1: POSIX  ADVISORY  READ 1234 fd:00:5678 1073741826 1073742335\n\
                     2: POSIX  ADVISORY  WRITE 77 fd:00:5678 128 128\n\
                     2: -> POSIX  ADVISORY  WRITE 78 fd:00:5678 128 128\n\
                     3: FLOCK  ADVISORY  WRITE 9 fd:00:99 0 EOF\n\
                     4: POSIX  ADVISORY  READ 0 fd:00:5678 1 1\n\
                     5: OFDLCK ADVISORY  READ -1 fd:00:5678 1 1\n\
                     6: POSIX  ADVISORY  READ 1234 fd:00:5678 1 1\n\
                     nonsense\n";
        assert_eq!(processes_with(locks, "fd:00:5678"), [1234, 77]);
        assert_eq!(processes_with(locks, "fd:00:567"), [] as [u32; 0]);
        assert_eq!(processes_with("", "fd:00:5678"), [] as [u32; 0]);
    }
}
