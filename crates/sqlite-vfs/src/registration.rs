//! What belongs to one SQLite of the process: its VFS of ours, and the databases that are open through it.
//!
//! It is found through the `pAppData` of its VFS, since another SQLite may share this library.

use std::collections::HashMap;
use std::ffi::c_char;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_medium::process::PerProcess;
use duralite_sqlite_ffi as ffi;

use crate::database::{Db, strict};
use crate::errors::Failure;
use crate::sqlite::Sqlite;

/// The VFS of one SQLite. Never freed: SQLite may call it until the process ends.
pub struct Registration {
    pub sqlite: Sqlite,
    /// This process's open databases by the address of their WAL's name, which is how SQLite's calls about
    /// the WAL are recognised.
    databases: PerProcess<Mutex<HashMap<usize, Arc<Db>>>>,
}

/// Gives the locks back that the base VFS believes this child to hold for its parent's connections: it counts the
/// locks of a process on its own, and would take none from the kernel for the child's.
fn disown(parents: &'static Mutex<HashMap<usize, Arc<Db>>>) {
    // One that was locked at the fork stays so: no thread is there that could unlock it.
    if let Ok(databases) = parents.try_lock() {
        for db in databases.values() {
            db.base.unlock(ffi::LOCK_NONE);
        }
    }
}

impl Registration {
    /// No database is open yet.
    pub fn new(sqlite: Sqlite) -> Self {
        Self { sqlite, databases: PerProcess::new() }
    }

    /// To be called before anything is done for this process, which may be a child.
    pub fn enter(&self) {
        drop(self.databases());
    }

    fn databases(&self) -> MutexGuard<'_, HashMap<usize, Arc<Db>>> {
        self.databases.get_after(disown).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database whose WAL has this very name.
    pub fn database_of_wal(&self, wal_name: *const c_char) -> Option<Arc<Db>> {
        self.databases().get(&wal_name.addr()).cloned()
    }

    /// Refuses a rollback journal that its database must not get now.
    pub fn check_journal(&self, journal: &Path) -> Result<(), Failure> {
        let databases = self.databases();
        let mut checked = databases
            .values()
            .map(|db| db.check_journal(journal).and_then(|()| strict::check_journal(db, journal)));
        checked.find(Result::is_err).unwrap_or(Ok(()))
    }

    /// The databases with this rollback journal whose logs are kept until SQLite shows whether it closes them.
    pub fn kept_with_journal(&self, journal: &Path) -> Vec<Arc<Db>> {
        let databases = self.databases();
        let kept = databases.values().filter(|db| db.is_kept() && db.beside("-journal") == journal);
        kept.cloned().collect()
    }

    pub fn remember(&self, db: &Arc<Db>) {
        self.databases().insert(db.wal_name.address(), Arc::clone(db));
    }

    pub fn forget(&self, db: &Db) {
        let removed = {
            let mut databases = self.databases();
            match databases.get(&db.wal_name.address()) {
                Some(found) if ptr::eq(Arc::as_ptr(found), db) => databases.remove(&db.wal_name.address()),
                _ => None,
            }
        };
        drop(removed);
    }
}
