//! A thread per log that works behind the committers' backs: it checkpoints, so that none of them
//! has to, and makes what Group Synch has acknowledged durable in time.
//!
//! It never outlasts them. Whoever lets go of the log does so while the thread has no hold of it, and who
//! is about to take EXCLUSIVE, as the last close does, keeps it from opening the database until that is
//! over: what has been closed stays closed, and the guard is off when the last `sqlite3_close` returns.

use std::cell::Cell;
use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::attachment::Attachment;
use crate::connection::OwnConnection;
use crate::db::Db;
use crate::errors::{During, Failure};
use crate::registration::{Registration, VFS_NAME};

/// How long a checkpoint waits for what is in its way before it leaves the rest to the next.
const BUSY_TIMEOUT_MS: c_int = 100;
/// Between two checkpoints that did not get everything home.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Needed {
    checkpoint: bool,
    flush: bool,
    stop: bool,
    /// Whether somebody has the turn.
    turn: bool,
    /// Connections that have EXCLUSIVE, or try to get it.
    holding_off: u32,
}

thread_local! {
    /// Whether this thread is one of those: its own connections wait for nothing that it does.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread works in the background.
pub fn is_worker() -> bool {
    IS_WORKER.get()
}

/// What the thread is asked to do.
#[derive(Default)]
pub struct Maintenance {
    needed: Mutex<Needed>,
    asked: Condvar,
    /// A turn has ended.
    freed: Condvar,
}

/// The log is nobody else's to let go of, or to open another connection to.
pub struct Turn(Arc<Maintenance>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.needed().turn = false;
        self.0.freed.notify_all();
    }
}

/// No checkpoint begins.
pub struct HoldOff(Arc<Maintenance>);

impl Drop for HoldOff {
    fn drop(&mut self) {
        self.0.needed().holding_off -= 1;
    }
}

/// What the thread works with.
struct Worker {
    maintenance: Arc<Maintenance>,
    attachment: Weak<Attachment>,
    registration: &'static Registration,
    /// The database with the settings that it is open with.
    uri: CString,
    flush_interval: Duration,
}

impl Maintenance {
    fn needed(&self) -> MutexGuard<'_, Needed> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread for the log of `db`.
    pub fn start(db: &Db, attachment: &Arc<Attachment>) -> Result<Arc<Self>, Failure> {
        let settings = attachment.in_force().clone();
        let maintenance = Arc::new(Self::default());
        let worker = Worker {
            maintenance: Arc::clone(&maintenance),
            attachment: Arc::downgrade(attachment),
            registration: db.registration,
            uri: uri_of(db, &settings.parameters())?,
            flush_interval: settings.options.waldio.group_interval,
        };
        let thread = std::thread::Builder::new().name("duralite".to_owned());
        thread
            .spawn(move || worker.run())
            .map_err(|error| Failure::cannot_open(format!("cannot start a thread: {error}")))?;
        Ok(maintenance)
    }

    /// Asks for a checkpoint.
    pub fn checkpoint(&self) {
        let mut needed = self.needed();
        if !needed.checkpoint {
            needed.checkpoint = true;
            self.asked.notify_one();
        }
    }

    /// Asks for everything to be made durable within the interval of Group Synch.
    pub fn flush(&self) {
        let mut needed = self.needed();
        if !needed.flush {
            needed.flush = true;
            self.asked.notify_one();
        }
    }

    /// Ends the thread, some time soon.
    pub fn stop(&self) {
        self.needed().stop = true;
        self.asked.notify_one();
        self.freed.notify_all();
    }

    /// Waits until what the thread has begun is done, and keeps it from more. `None` on the thread
    /// itself.
    pub fn turn(self: &Arc<Self>) -> Option<Turn> {
        if IS_WORKER.get() {
            return None;
        }
        let mut needed = self.wait_while(|needed| needed.turn);
        needed.turn = true;
        Some(Turn(Arc::clone(self)))
    }

    /// Waits until what the thread has begun is done, and keeps it from checkpoints only: Group Synch
    /// goes on in exclusive locking mode. `None` on the thread itself.
    pub fn hold_off(self: &Arc<Self>) -> Option<HoldOff> {
        if IS_WORKER.get() {
            return None;
        }
        self.wait_while(|needed| needed.turn).holding_off += 1;
        Some(HoldOff(Arc::clone(self)))
    }

    /// The thread's turn; `None` to stop, or when checkpoints are held off: the next commit asks again.
    fn own_turn(self: &Arc<Self>, checkpoint: bool) -> Option<Turn> {
        let mut needed = self.wait_while(|needed| needed.turn && !needed.stop);
        if needed.stop || checkpoint && needed.holding_off > 0 {
            return None;
        }
        needed.turn = true;
        Some(Turn(Arc::clone(self)))
    }

    fn wait_while(&self, condition: impl FnMut(&mut Needed) -> bool) -> MutexGuard<'_, Needed> {
        self.freed.wait_while(self.needed(), condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something is needed; `None` to stop.
    fn next(&self) -> Option<(bool, bool)> {
        let idle = |needed: &mut Needed| !needed.checkpoint && !needed.flush && !needed.stop;
        let mut needed = self.asked.wait_while(self.needed(), idle).unwrap_or_else(PoisonError::into_inner);
        if needed.stop {
            return None;
        }
        Some((std::mem::take(&mut needed.checkpoint), needed.flush))
    }
}

impl Worker {
    fn run(self) {
        IS_WORKER.set(true);
        while let Some((checkpoint, flush)) = self.maintenance.next() {
            if flush {
                std::thread::sleep(self.flush_interval);
                // Before the flush: what is sealed from now on asks again.
                self.maintenance.needed().flush = false;
                self.flush();
            }
            if checkpoint {
                if let Err(failure) = self.checkpoint() {
                    self.registration.fail(&failure);
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn flush(&self) {
        let Some(_turn) = self.maintenance.own_turn(false) else { return };
        let Some(attachment) = self.attachment.upgrade() else { return };
        if let Some(Err(error)) = attachment.committer().map(|committer| committer.wait_all()) {
            self.registration.fail(&Failure::of(&error, During::Sync));
        }
    }

    /// Copies most of the log home beside the writers, then the little that has come meanwhile
    /// without them, so that the next one starts the log over.
    fn checkpoint(&self) -> Result<(), Failure> {
        let Some(_turn) = self.maintenance.own_turn(true) else { return Ok(()) };
        if self.attachment.strong_count() == 0 {
            return Ok(());
        }
        let purpose = "cannot checkpoint in the background";
        let own = OwnConnection::open(&self.registration.api, &self.uri, VFS_NAME, BUSY_TIMEOUT_MS, purpose)?;
        own.run(c"PRAGMA wal_autocheckpoint=0")?;
        own.run(c"PRAGMA wal_checkpoint(PASSIVE)")?;
        own.run(c"PRAGMA wal_checkpoint(RESTART)")?;
        Ok(())
    }
}

pub fn uri_of(db: &Db, parameters: &[(&str, String)]) -> Result<CString, Failure> {
    let mut uri = b"file:".to_vec();
    escape(&mut uri, db.path.as_os_str().as_bytes());
    for (i, (name, value)) in parameters.iter().enumerate() {
        uri.push(if i == 0 { b'?' } else { b'&' });
        uri.extend_from_slice(name.as_bytes());
        uri.push(b'=');
        escape(&mut uri, value.as_bytes());
    }
    CString::new(uri).map_err(|_| Failure::cannot_open("the path of the database holds a zero byte"))
}

/// Appends text as it may stand in a URI.
fn escape(uri: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            uri.push(*byte);
        } else {
            uri.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

/// Whether SQLite may be called from a thread of its own.
pub fn is_possible(registration: &Registration) -> bool {
    registration.api.is_threadsafe()
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
