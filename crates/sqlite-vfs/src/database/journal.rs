//! The rollback journal that SQLite has open, where a log keeps it.
//!
//! SQLite makes a journal under RESERVED, while others still read, and changes the database under EXCLUSIVE.
//! A guard goes on only under EXCLUSIVE (invariant 2). So where no guard is on yet, what SQLite writes before
//! it has EXCLUSIVE is kept in memory: while the database is unchanged a journal counts for nothing. It takes
//! as much memory as the pages that SQLite keeps in its cache meanwhile.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use duralite_sqlite_ffi as ffi;
use duralite_wal::LogError;
use duralite_wal::engine::rollback::RollbackJournal;

use super::Db;
use super::journal_store::JournalStore;
use crate::errors::{During, Failure};
use crate::sqlite::base::BaseFile;

/// The size of the smallest header, of one sector, with which SQLite begins a journal. SQLite writes less at
/// the beginning when it syncs the journal, and when it leaves the journal with its first bytes zeroed.
const HEADER_BYTES: usize = 512;

/// Whether this write of SQLite's begins a journal: from then on the journal is another transaction's.
pub fn begins_journal(data: &[u8], offset: u64) -> bool {
    offset == 0 && data.len() >= HEADER_BYTES
}

impl Db {
    fn open_journal(&self) -> MutexGuard<'_, Option<JournalStore>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SQLite opens a journal that is kept here, or closes it.
    pub fn set_journal(&self, store: Option<JournalStore>) {
        let mut open = self.open_journal();
        self.closed_in_memory.store(matches!(*open, Some(JournalStore::Memory(_))), Ordering::Relaxed);
        *open = store;
    }

    /// Whether the journal that was open last was in memory. SQLite closes a journal before it deletes it,
    /// and one in memory is gone then.
    pub fn forget_closed_journal(&self) -> bool {
        self.closed_in_memory.swap(false, Ordering::Relaxed)
    }

    /// Whether a rollback journal is open that is kept here.
    pub fn has_journal(&self) -> bool {
        self.open_journal().is_some()
    }

    /// Whether the open journal is a file of the base's.
    pub fn has_base_journal(&self) -> bool {
        matches!(*self.open_journal(), Some(JournalStore::Base(_)))
    }

    /// Closes that file, which holds nothing that counts. What SQLite writes next is kept in memory.
    pub fn leave_base_journal(&self) {
        let mut open = self.open_journal();
        if let Some(JournalStore::Base(file)) = &*open {
            file.close();
            *open = Some(JournalStore::Memory(Vec::new()));
        }
    }

    /// SQLite closes the journal.
    pub fn close_journal(&self) -> c_int {
        let file = match &*self.open_journal() {
            Some(JournalStore::Base(file)) => Some(*file),
            _ => None,
        };
        self.set_journal(None);
        file.map_or(ffi::OK, BaseFile::close)
    }

    /// Whether the open journal is still in memory.
    pub fn has_journal_in_memory(&self) -> bool {
        matches!(*self.open_journal(), Some(JournalStore::Memory(_)))
    }

    /// Puts the journal from memory into the log, which has none yet. After an error it is still in memory,
    /// and the log has none.
    pub fn pour_journal(&self, journal: Arc<dyn RollbackJournal>) -> Result<(), LogError> {
        let mut open = self.open_journal();
        let Some(JournalStore::Memory(bytes)) = &*open else { return Ok(()) };
        let poured = journal.delete().and_then(|()| journal.create()).and_then(|()| journal.write(bytes, 0));
        if let Err(error) = poured {
            // A journal that cannot be deleted is hot, and rolls back to the present state of the database.
            let _ = journal.delete();
            return Err(error);
        }
        *open = Some(JournalStore::Log(journal));
        Ok(())
    }

    fn with_journal<T>(
        &self,
        during: During,
        work: impl FnOnce(&mut JournalStore) -> Result<T, LogError>,
    ) -> Result<T, Failure> {
        let mut open = self.open_journal();
        let store = open.as_mut().ok_or(LogError::Unexpected("a rollback journal that is not open"));
        store.and_then(work).map_err(|error| Failure::of(&error, during))
    }

    /// Fills `buf` as `xRead` does.
    pub fn read_journal(&self, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        let count = self.with_journal(During::Read, |store| store.read(buf, offset))?;
        let Some(rest) = buf.get_mut(count..).filter(|rest| !rest.is_empty()) else { return Ok(ffi::OK) };
        rest.fill(0);
        Ok(ffi::IOERR_SHORT_READ)
    }

    /// Writes to the journal. Durable after [`Db::sync_journal`].
    pub fn write_journal(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        if begins_journal(data, offset) {
            self.check_log()?;
        }
        self.with_journal(During::Write, |store| store.write(data, offset))
    }

    /// Refuses to begin a transaction whose rollback journal would be in a deleted log: after a crash nothing
    /// could undo it.
    fn check_log(&self) -> Result<(), Failure> {
        let Some(attachment) = self.attached() else { return Ok(()) };
        attachment.look_for_log(attachment.clock_ns(), || self.has_no_name());
        attachment.check_found().map_err(|error| Failure::of(&error, During::Write))
    }

    /// Truncates the journal. Durable on return.
    pub fn truncate_journal(&self, size: u64) -> Result<(), Failure> {
        self.with_journal(During::Truncate, |store| store.truncate(size))
    }

    /// Makes the journal durable.
    pub fn sync_journal(&self) -> Result<(), Failure> {
        self.with_journal(During::Sync, |store| store.sync())
    }

    /// The size of the journal in bytes.
    pub fn journal_size(&self) -> Result<u64, Failure> {
        self.with_journal(During::Size, |store| store.size())
    }

    /// Whether rollback journals are in the log, or the next one would be.
    pub fn keeps_rollback_journals(&self) -> bool {
        match self.attached() {
            Some(attachment) => attachment.rollback_journal().is_some(),
            None => self.may_raise_for_journal(),
        }
    }

    /// Notes whether the transaction that begins makes the database. The base then keeps its journal, since
    /// no page could carry a guard yet.
    pub fn set_makes_database(&self, makes: bool) {
        self.makes_database.store(makes, Ordering::Relaxed);
    }

    /// Whether this transaction makes the database.
    pub fn makes_database(&self) -> bool {
        self.makes_database.load(Ordering::Relaxed)
    }

    /// Whether a guard may say that the rollback journal is in a log: the engine of this database keeps such
    /// journals, or such a guard has been seen. Otherwise the VFS does not look.
    pub fn looks_for_rollback_guard(&self) -> bool {
        self.saw_rollback_guard.load(Ordering::Relaxed)
            || self.is_capable() && self.placement().is_ok_and(|placement| placement.engine.rollback_journals)
    }

    /// Whether a transaction with a rollback journal may put the guard on.
    pub fn may_raise_for_journal(&self) -> bool {
        !self.read_only
            && self.is_capable()
            && self.placement().is_ok_and(|placement| placement.engine.rollback_journals)
    }
}
