//! The rollback journal that SQLite has open, where this VFS keeps it or sees what SQLite does with it.
//!
//! SQLite makes a journal under RESERVED, while others still read, and changes the database under EXCLUSIVE.
//! A guard goes on only under EXCLUSIVE (invariant 2). So where no guard is on yet, what SQLite writes before
//! it has EXCLUSIVE is kept in memory: while the database is unchanged a journal counts for nothing. It takes
//! as much memory as the pages that SQLite keeps in its cache meanwhile.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_sqlite_ffi as ffi;
use duralite_wal::LogError;
use duralite_wal::engine::home::DatabaseFile;
use duralite_wal::engine::rollback::RollbackJournal;

use crate::errors::{During, Failure};
use crate::sqlite::base::BaseFile;

/// The size of the smallest header, of one sector, with which SQLite begins a journal. SQLite writes less at
/// the beginning when it syncs the journal, and when it leaves the journal with its first bytes zeroed.
const HEADER_BYTES: usize = 512;

/// Whether this write of SQLite's begins a journal: from then on the journal is another transaction's.
pub fn begins_journal(data: &[u8], offset: u64) -> bool {
    offset == 0 && data.len() >= HEADER_BYTES
}

/// The rollback journal of a connection.
#[derive(Default)]
pub struct Journal {
    state: Mutex<State>,
    /// Whether SQLite is making the database's first page, with a rollback journal of the base's.
    makes_database: AtomicBool,
}

enum State {
    Open(JournalStore),
    /// No journal is open, or one that the base alone knows of.
    Closed {
        /// Whether the journal that was open last never left memory.
        was_in_memory: bool,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { was_in_memory: false }
    }
}

impl Journal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SQLite opens a journal that is kept here, or goes on with it in another place.
    pub fn set(&self, store: JournalStore) {
        *self.state() = State::Open(store);
    }

    /// The journal is not open here any more.
    pub fn unset(&self) {
        let mut state = self.state();
        let was_in_memory = matches!(*state, State::Open(JournalStore::Memory(_)));
        *state = State::Closed { was_in_memory };
    }

    /// Whether the journal that was open last was in memory. SQLite closes a journal before it deletes it,
    /// and one in memory is gone then. `true` only once.
    pub fn forget_closed(&self) -> bool {
        match &mut *self.state() {
            State::Closed { was_in_memory } => std::mem::take(was_in_memory),
            State::Open(_) => false,
        }
    }

    /// Whether a rollback journal is open that is kept here.
    pub fn is_open(&self) -> bool {
        matches!(*self.state(), State::Open(_))
    }

    /// Whether the open journal is a file of the base's.
    pub fn is_base(&self) -> bool {
        matches!(*self.state(), State::Open(JournalStore::Base(_)))
    }

    /// Whether the open journal is still in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(*self.state(), State::Open(JournalStore::Memory(_)))
    }

    /// Closes the base's file, which holds nothing that counts. What SQLite writes next is kept in memory.
    pub fn leave_base(&self) {
        let mut state = self.state();
        if let State::Open(JournalStore::Base(file)) = &*state {
            file.close();
            *state = State::Open(JournalStore::Memory(Vec::new()));
        }
    }

    /// SQLite closes the journal.
    pub fn close(&self) -> c_int {
        let file = match &*self.state() {
            State::Open(JournalStore::Base(file)) => Some(*file),
            _ => None,
        };
        self.unset();
        file.map_or(ffi::OK, BaseFile::close)
    }

    /// Puts the journal from memory into the log, which has none yet. After an error it is still in memory,
    /// and the log has none.
    pub fn pour(&self, journal: Arc<dyn RollbackJournal>) -> Result<(), LogError> {
        let mut state = self.state();
        let State::Open(JournalStore::Memory(bytes)) = &*state else { return Ok(()) };
        let poured = journal.delete().and_then(|()| journal.create()).and_then(|()| journal.write(bytes, 0));
        if let Err(error) = poured {
            // A journal that cannot be deleted is hot, and rolls back to the present state of the database.
            let _ = journal.delete();
            return Err(error);
        }
        *state = State::Open(JournalStore::Log(journal));
        Ok(())
    }

    fn with<T>(
        &self,
        during: During,
        work: impl FnOnce(&mut JournalStore) -> Result<T, LogError>,
    ) -> Result<T, Failure> {
        let done = match &mut *self.state() {
            State::Open(store) => work(store),
            State::Closed { .. } => Err(LogError::Unexpected("a rollback journal that is not open")),
        };
        done.map_err(|error| Failure::of(&error, during))
    }

    /// Fills `buf` as `xRead` does.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        let count = self.with(During::Read, |store| store.read(buf, offset))?;
        let Some(rest) = buf.get_mut(count..).filter(|rest| !rest.is_empty()) else { return Ok(ffi::OK) };
        rest.fill(0);
        Ok(ffi::IOERR_SHORT_READ)
    }

    /// Writes to the journal. Durable after [`Self::sync`].
    pub fn write(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        self.with(During::Write, |store| store.write(data, offset))
    }

    /// Truncates the journal. Durable on return.
    pub fn truncate(&self, size: u64) -> Result<(), Failure> {
        self.with(During::Truncate, |store| store.truncate(size))
    }

    /// Makes the journal durable.
    pub fn sync(&self) -> Result<(), Failure> {
        self.with(During::Sync, |store| store.sync())
    }

    /// The size of the journal in bytes.
    pub fn size(&self) -> Result<u64, Failure> {
        self.with(During::Size, |store| store.size())
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
}

/// An open rollback journal.
pub enum JournalStore {
    /// In the base's file, open in SQLite's memory. The transaction that makes the database has its journal
    /// there, since no page can carry a guard yet. In exclusive locking mode SQLite keeps the file open for
    /// the next transaction.
    Base(BaseFile),
    /// In memory: SQLite does not have EXCLUSIVE yet, and the database has no guard.
    Memory(Vec<u8>),
    /// In the log.
    Log(Arc<dyn RollbackJournal>),
}

impl JournalStore {
    /// Fills `buf` from byte `offset` on. Returns how many bytes there were.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        match self {
            Self::Memory(bytes) => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let count = buf.len().min(bytes.len() - at);
                buf[..count].copy_from_slice(&bytes[at..at + count]);
                Ok(count)
            }
            Self::Log(journal) => journal.read(buf, offset),
            Self::Base(file) => DatabaseFile::read(file, buf, offset),
        }
    }

    /// Writes all of `data` from byte `offset` on.
    pub fn write(&mut self, data: &[u8], offset: u64) -> Result<(), LogError> {
        let bytes = match self {
            Self::Memory(bytes) => bytes,
            Self::Log(journal) => return journal.write(data, offset),
            Self::Base(file) => return DatabaseFile::write(file, data, offset),
        };
        let too_large = || LogError::Unexpected("a rollback journal that is larger than memory");
        let at = usize::try_from(offset).map_err(|_| too_large())?;
        let end = at.checked_add(data.len()).ok_or_else(too_large)?;
        if bytes.len() < end {
            bytes.try_reserve(end - bytes.len()).map_err(|_| too_large())?;
            bytes.resize(end, 0);
        }
        bytes[at..end].copy_from_slice(data);
        Ok(())
    }

    /// Truncates the journal to `size` bytes.
    pub fn truncate(&mut self, size: u64) -> Result<(), LogError> {
        match self {
            Self::Memory(bytes) => {
                bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                Ok(())
            }
            Self::Log(journal) => journal.truncate(size),
            Self::Base(file) => DatabaseFile::truncate(file, size),
        }
    }

    /// Makes the journal durable, where anything depends on it.
    pub fn sync(&self) -> Result<(), LogError> {
        match self {
            // Nothing in the database depends on it yet.
            Self::Memory(_) => Ok(()),
            Self::Log(journal) => journal.sync(),
            Self::Base(file) => DatabaseFile::sync(file),
        }
    }

    /// The size of the journal in bytes.
    pub fn size(&self) -> Result<u64, LogError> {
        match self {
            Self::Memory(bytes) => Ok(bytes.len() as u64),
            Self::Log(journal) => Ok(journal.size()?.unwrap_or(0)),
            Self::Base(file) => DatabaseFile::size(file),
        }
    }
}
