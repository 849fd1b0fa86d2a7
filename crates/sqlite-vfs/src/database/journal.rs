//! The rollback journal that SQLite has open, if this VFS keeps it or watches it.
//!
//! SQLite makes a journal under RESERVED, while other connections still read, and changes the database under
//! EXCLUSIVE. A guard goes on only under EXCLUSIVE (invariant 2). So if no guard is on yet, the VFS keeps in
//! memory what SQLite writes to the journal before SQLite has EXCLUSIVE. A crash that loses this memory does
//! no harm, because until SQLite changes the database there is nothing to roll back. The journal takes about
//! as much memory as the changed pages that SQLite keeps in its cache at that time.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_sqlite_ffi as ffi;
use duralite_wal::LogError;
use duralite_wal::engine::home::DatabaseFile;
use duralite_wal::engine::rollback::RollbackJournal;

use crate::errors::{During, Failure};
use crate::sqlite::base::BaseFile;

/// The size of the smallest header with which SQLite begins a journal: one sector. A shorter write at the
/// beginning does not begin a journal. SQLite makes such writes when it syncs a journal, and when it ends a
/// journal by zeroing the journal's first bytes.
const HEADER_BYTES: usize = 512;

/// Returns whether this write by SQLite begins a journal, so that the journal now belongs to a new
/// transaction.
pub fn begins_journal(data: &[u8], offset: u64) -> bool {
    offset == 0 && data.len() >= HEADER_BYTES
}

/// The rollback journal of a connection.
#[derive(Default)]
pub struct Journal {
    state: Mutex<State>,
    /// Whether SQLite is writing the first page of a new database, with a rollback journal in the base VFS's
    /// file.
    makes_database: AtomicBool,
}

enum State {
    Open(JournalStore),
    /// No journal is open, or only the base VFS knows of an open journal.
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

    /// Notes that SQLite opens a journal that is kept in `store`, or that an open journal has moved to
    /// `store`.
    pub fn set(&self, store: JournalStore) {
        *self.state() = State::Open(store);
    }

    /// Notes that this VFS no longer keeps or watches the journal.
    pub fn unset(&self) {
        let mut state = self.state();
        let was_in_memory = matches!(*state, State::Open(JournalStore::Memory(_)));
        *state = State::Closed { was_in_memory };
    }

    /// Returns whether the journal that was open last was in memory. SQLite closes a journal before it
    /// deletes it. A journal in memory is gone once it is closed, so the base VFS has nothing to delete. Only
    /// the first call after the close returns `true`.
    pub fn forget_closed(&self) -> bool {
        match &mut *self.state() {
            State::Closed { was_in_memory } => std::mem::take(was_in_memory),
            State::Open(_) => false,
        }
    }

    /// Returns whether this VFS keeps or watches an open rollback journal.
    pub fn is_open(&self) -> bool {
        matches!(*self.state(), State::Open(_))
    }

    /// Returns whether the open journal is a file of the base VFS.
    pub fn is_base(&self) -> bool {
        matches!(*self.state(), State::Open(JournalStore::Base(_)))
    }

    /// Returns whether the open journal is still in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(*self.state(), State::Open(JournalStore::Memory(_)))
    }

    /// Closes the base VFS's file, which holds nothing that is needed. From now on the VFS keeps in memory
    /// what SQLite writes.
    pub fn leave_base(&self) {
        let mut state = self.state();
        if let State::Open(JournalStore::Base(file)) = &*state {
            file.close();
            *state = State::Open(JournalStore::Memory(Vec::new()));
        }
    }

    /// Closes the journal for SQLite. Returns the code for SQLite.
    pub fn close(&self) -> c_int {
        let file = match &*self.state() {
            State::Open(JournalStore::Base(file)) => Some(*file),
            _ => None,
        };
        self.unset();
        file.map_or(ffi::OK, BaseFile::close)
    }

    /// Moves the journal from memory into the log. There it replaces any journal that is left. After an error
    /// the journal is still in memory, and the log may have a copy of it, which does no harm.
    pub fn pour(&self, journal: Arc<dyn RollbackJournal>) -> Result<(), LogError> {
        let mut state = self.state();
        let State::Open(JournalStore::Memory(bytes)) = &*state else { return Ok(()) };
        let poured = journal.delete().and_then(|()| journal.create()).and_then(|()| journal.write(bytes, 0));
        if let Err(error) = poured {
            // If this deletion fails, a hot journal may be left in the log. That journal rolls the database
            // back to its present state, because SQLite has changed nothing yet.
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

    /// Writes to the journal. The write is durable after [`Self::sync`].
    pub fn write(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        self.with(During::Write, |store| store.write(data, offset))
    }

    /// Truncates the journal. The truncation is durable on return.
    pub fn truncate(&self, size: u64) -> Result<(), Failure> {
        self.with(During::Truncate, |store| store.truncate(size))
    }

    /// Makes the journal durable.
    pub fn sync(&self) -> Result<(), Failure> {
        self.with(During::Sync, |store| store.sync())
    }

    /// Returns the size of the journal in bytes.
    pub fn size(&self) -> Result<u64, Failure> {
        self.with(During::Size, |store| store.size())
    }

    /// Notes whether the new transaction creates the database. The base VFS keeps the journal of such a
    /// transaction in a file, because there is no page yet that could carry a guard.
    pub fn set_makes_database(&self, makes: bool) {
        self.makes_database.store(makes, Ordering::Relaxed);
    }

    /// Returns whether this transaction creates the database.
    pub fn makes_database(&self) -> bool {
        self.makes_database.load(Ordering::Relaxed)
    }
}

/// An open rollback journal.
pub enum JournalStore {
    /// A journal in the base VFS's file, whose handle is in SQLite's memory. The transaction that creates the
    /// database has its journal there, since there is no page yet that could carry a guard. In exclusive
    /// locking mode SQLite keeps the file open for the next transaction.
    Base(BaseFile),
    /// A journal in memory, while SQLite does not have EXCLUSIVE yet and the database has no guard.
    Memory(Vec<u8>),
    /// A journal in the log.
    Log(Arc<dyn RollbackJournal>),
}

impl JournalStore {
    /// Fills `buf` with the journal from byte `offset` on. Returns how many bytes the journal had there.
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

    /// Makes the journal durable if anything depends on it.
    pub fn sync(&self) -> Result<(), LogError> {
        match self {
            // Nothing in the database depends on the journal yet, so it need not be durable.
            Self::Memory(_) => Ok(()),
            Self::Log(journal) => journal.sync(),
            Self::Base(file) => DatabaseFile::sync(file),
        }
    }

    /// Returns the size of the journal in bytes.
    pub fn size(&self) -> Result<u64, LogError> {
        match self {
            Self::Memory(bytes) => Ok(bytes.len() as u64),
            Self::Log(journal) => Ok(journal.size()?.unwrap_or(0)),
            Self::Base(file) => DatabaseFile::size(file),
        }
    }
}
