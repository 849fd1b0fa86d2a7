//! The registration of one copy of SQLite in the process: this library's VFS in that SQLite, and the
//! databases that are open through the VFS.
//!
//! This library finds a registration through the VFS's `pAppData`. The registration is not global, because
//! another SQLite may share this library.

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

/// The VFS of one SQLite. The library never frees this value, because SQLite may call the VFS until the
/// process ends.
pub struct Registration {
    pub sqlite: Sqlite,
    databases: PerProcess<Mutex<Databases>>,
}

/// This process's open databases, by the addresses of the names of their WALs and rollback journals. SQLite
/// passes the same addresses in its calls about those files.
#[derive(Default)]
struct Databases {
    by_wal: HashMap<usize, Arc<Db>>,
    by_journal: HashMap<usize, Arc<Db>>,
}

/// Releases, in a child after a fork, the locks that the base VFS counts for the parent's connections. The
/// base VFS itself counts the locks of a process, and the child inherits that count. As long as the base VFS
/// counts the parent's locks, it takes no lock from the kernel for the child's own connections.
fn disown(parents: &'static Mutex<Databases>) {
    // If the mutex was locked at the fork, it stays locked, because the thread that could unlock it is not in
    // the child. In that case release nothing.
    if let Ok(databases) = parents.try_lock() {
        for db in databases.by_wal.values() {
            // The call fails only if the lock was not taken.
            let _ = db.base.unlock(Level::None);
        }
    }
}

impl Registration {
    /// Makes a registration without open databases.
    pub fn new(sqlite: Sqlite) -> Self {
        Self { sqlite, databases: PerProcess::new() }
    }

    /// Releases, in a child, the locks that the base VFS counts for the parent's connections. Callers must
    /// call this before they do anything else in a process.
    pub fn enter(&self) {
        drop(self.databases());
    }

    fn databases(&self) -> MutexGuard<'_, Databases> {
        self.databases.get_after(disown).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the database whose WAL has its name at this address.
    pub fn database_of_wal(&self, wal_name: *const c_char) -> Option<Arc<Db>> {
        self.databases().by_wal.get(&wal_name.addr()).cloned()
    }

    /// Returns the database whose rollback journal has its name at this address.
    pub fn database_of_journal(&self, journal_name: *const c_char) -> Option<Arc<Db>> {
        self.databases().by_journal.get(&journal_name.addr()).cloned()
    }

    /// Returns the databases that are open now.
    pub fn databases_now(&self) -> Vec<Arc<Db>> {
        self.databases().by_wal.values().cloned().collect()
    }

    /// Refuses to open this rollback journal if its database must not have one now.
    pub fn check_journal(&self, journal: &Path) -> Result<(), Failure> {
        let databases = self.databases();
        let mut checked = databases
            .by_wal
            .values()
            .map(|db| db.check_journal(journal).and_then(|()| strict::check_journal(db, journal)));
        checked.find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Returns the databases that have this rollback journal and whose logs are kept until SQLite shows
    /// whether it is closing the database.
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
