//! What belongs to one SQLite of the process: its VFS of this library, and the databases that are open
//! through it.
//!
//! It is found through the VFS's `pAppData`, since another SQLite may share this library.

use std::collections::HashMap;
use std::ffi::c_char;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_locks::file::{Level, LockedFile};
use duralite_medium::process::PerProcess;

use crate::database::{Db, strict};
use crate::errors::Failure;
use crate::sqlite::Sqlite;

/// The VFS of one SQLite. Never freed: SQLite may call it until the process ends.
pub struct Registration {
    pub sqlite: Sqlite,
    databases: PerProcess<Mutex<Databases>>,
}

/// This process's open databases, by the addresses of the names of their WALs and rollback journals. SQLite's
/// calls about those files are recognised by these addresses.
#[derive(Default)]
struct Databases {
    by_wal: HashMap<usize, Arc<Db>>,
    by_journal: HashMap<usize, Arc<Db>>,
}

/// Gives back the locks that the base VFS believes this child to hold for its parent's connections. The base
/// counts the locks of a process on its own, and would otherwise take none from the kernel for the child's
/// connections.
fn disown(parents: &'static Mutex<Databases>) {
    // If it was locked at the fork it stays locked: the child does not have the thread that could unlock it.
    if let Ok(databases) = parents.try_lock() {
        for db in databases.by_wal.values() {
            // A lock that cannot be given back was not taken.
            let _ = db.base.unlock(Level::None);
        }
    }
}

impl Registration {
    /// Makes a registration without open databases.
    pub fn new(sqlite: Sqlite) -> Self {
        Self { sqlite, databases: PerProcess::new() }
    }

    /// Must be called before anything else is done for this process, which may be a child.
    pub fn enter(&self) {
        drop(self.databases());
    }

    fn databases(&self) -> MutexGuard<'_, Databases> {
        self.databases.get_after(disown).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database whose WAL has this very name.
    pub fn database_of_wal(&self, wal_name: *const c_char) -> Option<Arc<Db>> {
        self.databases().by_wal.get(&wal_name.addr()).cloned()
    }

    /// The database whose rollback journal has this very name.
    pub fn database_of_journal(&self, journal_name: *const c_char) -> Option<Arc<Db>> {
        self.databases().by_journal.get(&journal_name.addr()).cloned()
    }

    /// The databases that are open now.
    pub fn databases_now(&self) -> Vec<Arc<Db>> {
        self.databases().by_wal.values().cloned().collect()
    }

    /// Refuses a rollback journal that its database must not get now.
    pub fn check_journal(&self, journal: &Path) -> Result<(), Failure> {
        let databases = self.databases();
        let mut checked = databases
            .by_wal
            .values()
            .map(|db| db.check_journal(journal).and_then(|()| strict::check_journal(db, journal)));
        checked.find(Result::is_err).unwrap_or(Ok(()))
    }

    /// The databases with this rollback journal whose logs are kept until SQLite shows whether it closes
    /// them.
    pub fn kept_with_journal(&self, journal: &Path) -> Vec<Arc<Db>> {
        let databases = self.databases();
        let kept = databases.by_wal.values().filter(|db| db.is_kept() && db.beside("-journal") == journal);
        kept.cloned().collect()
    }

    pub fn remember(&self, db: &Arc<Db>) {
        let mut databases = self.databases();
        databases.by_wal.insert(db.names.wal.address(), Arc::clone(db));
        databases.by_journal.insert(db.names.journal.address(), Arc::clone(db));
    }

    pub fn forget(&self, db: &Db) {
        let removed = {
            let mut databases = self.databases();
            let Databases { by_wal, by_journal } = &mut *databases;
            [(by_wal, db.names.wal), (by_journal, db.names.journal)].map(|(databases, name)| match databases
                .get(&name.address())
            {
                Some(found) if ptr::eq(Arc::as_ptr(found), db) => databases.remove(&name.address()),
                _ => None,
            })
        };
        drop(removed);
    }
}
