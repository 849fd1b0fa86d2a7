//! Where an open rollback journal is kept.

use std::sync::Arc;

use duralite_wal::LogError;
use duralite_wal::engine::home::DatabaseFile;
use duralite_wal::engine::rollback::RollbackJournal;

use crate::sqlite::base::BaseFile;

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
