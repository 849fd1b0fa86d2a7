//! Logs that this process has attached. All its connections to a database share one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use duralite_journal::engine::Committer;
use duralite_journal::pool::{LOCKS_BYTES, LOCKS_OFFSET};
use duralite_journal::{DatabaseIdentity, JournalError, Log};
use duralite_locks::Table;
use duralite_logfmt::LogId;

use crate::db::Db;
use crate::errors::{During, Failure};
use crate::maintenance::{self, Maintenance};
use crate::settings::Settings;

const _: () = assert!(duralite_locks::LAYOUT_BYTES <= LOCKS_BYTES);

/// What tells one attached log from another: the database file and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    inode: u64,
    birth_ns: u64,
    log: LogId,
}

/// Process-wide on purpose: it holds nothing of any one SQLite.
static ATTACHED: LazyLock<Mutex<HashMap<Key, Weak<Attachment>>>> = LazyLock::new(Mutex::default);

/// A log in use, detached when the last connection lets go of it.
pub struct Attachment {
    key: Key,
    log: Mutex<Log>,
    /// Waited for without the lock of the log.
    committer: Option<Arc<dyn Committer>>,
    /// The locks of the wal-index.
    locks: Arc<Table>,
    maintenance: OnceLock<Arc<Maintenance>>,
    in_force: Mutex<Settings>,
}

impl Attachment {
    /// The attachment of this log, made by `attach` if this process has none yet.
    pub fn get(
        identity: &DatabaseIdentity,
        id: LogId,
        settings: &Settings,
        attach: impl FnOnce() -> Result<Log, JournalError>,
    ) -> Result<Arc<Self>, Failure> {
        let key = Key { inode: identity.inode, birth_ns: identity.birth_ns, log: id };
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = attached.get(&key).and_then(Weak::upgrade) {
            // Dropping the last reference takes the lock that is held here.
            drop(attached);
            let conflict = settings.conflict_with(&found.in_force());
            // The thread that checkpoints has connections too, and those do not ask for a thread.
            if conflict.is_none() && settings.background_checkpoint > 0 {
                found.in_force().background_checkpoint = settings.background_checkpoint;
            }
            return conflict.map_or(Ok(found), |message| Err(Failure::cannot_open(message)));
        }
        let log = attach().map_err(|error| Failure::of(&error, During::Open))?;
        let new = Arc::new(Self {
            key,
            committer: log.committer(),
            locks: Table::join(Arc::clone(log.segment()), LOCKS_OFFSET),
            maintenance: OnceLock::new(),
            log: Mutex::new(log),
            in_force: Mutex::new(settings.clone()),
        });
        attached.insert(key, Arc::downgrade(&new));
        Ok(new)
    }

    /// The log. A panic under the lock has been caught at the boundary to C, and a log that was
    /// left inconsistent has poisoned itself (invariant 9).
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings it runs with.
    pub fn in_force(&self) -> MutexGuard<'_, Settings> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who makes sealed transactions durable.
    pub fn committer(&self) -> Option<&dyn Committer> {
        self.committer.as_deref()
    }

    /// Starts what works in the background, if the settings ask for it and it does not run yet.
    pub fn maintain(self: &Arc<Self>, db: &Db) -> Result<(), Failure> {
        let settings = self.in_force().clone();
        let wanted = settings.background_checkpoint > 0 || settings.options.waldio.group_synch > 0;
        if !wanted || self.maintenance.get().is_some() {
            return Ok(());
        }
        if !maintenance::is_possible(db.registration) {
            let message = "background_checkpoint and group_synch need a SQLite that is built for threads";
            return Err(Failure::cannot_open(message));
        }
        let started = Maintenance::start(db, self)?;
        if let Err(second) = self.maintenance.set(started) {
            second.stop();
        }
        Ok(())
    }

    /// What works in the background, if anything does.
    pub fn maintenance(&self) -> Option<&Arc<Maintenance>> {
        self.maintenance.get()
    }

    /// Tells the background that this many frames are in the log, and whether a commit may
    /// have been acknowledged that is not durable yet.
    pub fn committed(&self, frames: u32, undurable: bool) {
        let Some(maintenance) = self.maintenance.get() else { return };
        let (limit, group_synch) = {
            let settings = self.in_force();
            (settings.background_checkpoint, settings.options.waldio.group_synch > 0)
        };
        if limit > 0 && frames >= limit {
            maintenance.checkpoint();
        }
        if undurable && group_synch {
            maintenance.flush();
        }
    }

    /// The locks of the wal-index.
    pub fn locks(&self) -> &Arc<Table> {
        &self.locks
    }

    /// Makes durable what Group Synch has acknowledged, which is in memory that goes with the last
    /// process.
    pub fn flush_group(&self) {
        if self.in_force().options.waldio.group_synch > 0
            && let Some(committer) = self.committer()
        {
            // An error has poisoned the log: whoever commits next is told.
            let _ = committer.wait_all();
        }
    }

    pub fn id(&self) -> LogId {
        self.key.log
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(maintenance) = self.maintenance.get() {
            maintenance.stop();
        }
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            attached.remove(&self.key);
        }
    }
}
