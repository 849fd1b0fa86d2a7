//! Logs that this process has attached. All its connections to a database share one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use duralite_journal::engine::Committer;
use duralite_journal::pool::{LOCKS_BYTES, LOCKS_OFFSET};
use duralite_journal::{DatabaseIdentity, JournalError, Log};
use duralite_locks::Table;
use duralite_logfmt::LogId;

use crate::errors::{During, Failure};
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
            return conflict.map_or(Ok(found), |message| Err(Failure::cannot_open(message)));
        }
        let log = attach().map_err(|error| Failure::of(&error, During::Open))?;
        let new = Arc::new(Self {
            key,
            committer: log.committer(),
            locks: Table::join(Arc::clone(log.segment()), LOCKS_OFFSET),
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

    /// The locks of the wal-index.
    pub fn locks(&self) -> &Arc<Table> {
        &self.locks
    }

    pub fn id(&self) -> LogId {
        self.key.log
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        if attached.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            attached.remove(&self.key);
        }
    }
}
