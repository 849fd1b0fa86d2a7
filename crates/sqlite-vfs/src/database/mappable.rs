//! The database file, as an engine may map it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duralite_medium::Nvm;
use duralite_wal::LogError;
use duralite_wal::engine::home::{DatabaseFile, HomeKind, memory};

use super::Db;
use crate::sqlite::base::BaseFile;

/// The base's file, and the descriptor that tells which file it is.
pub struct Mappable<'a> {
    base: BaseFile,
    file: Option<&'a OwnedFd>,
    path: &'a Path,
    mapped: &'a AtomicBool,
}

impl<'a> Mappable<'a> {
    /// A file of the base's by this path. The descriptor that a mapping takes stays open until a connection
    /// to the same file is closed.
    pub fn new(base: BaseFile, file: Option<&'a OwnedFd>, path: &'a Path, mapped: &'a AtomicBool) -> Self {
        Self { base, file, path, mapped }
    }
}

impl Db {
    /// The database file for code that attaches a log, and may map the file.
    pub fn mappable(&self) -> Mappable<'_> {
        Mappable::new(self.base, self.file.as_ref(), &self.path, &self.mapped)
    }

    /// Closes the descriptor that a mapping of the file has left, if no connection of this process holds a
    /// lock: closing it gives all those locks back. Called by a connection that is being closed and holds
    /// none. If any connection has a lock, here or in another process, the descriptor stays until another
    /// connection is closed.
    pub fn close_left_mapping(&self) {
        let may_have_mapped = self.was_served() || self.mapped.load(Ordering::Relaxed);
        let Some(file) = self.file.as_ref().filter(|_| may_have_mapped) else { return };
        if !memory::is_left_open(file) {
            return;
        }
        let Ok(mut own) = self.lock.own() else { return };
        if matches!(own.held_mut().exclusive(|_| false), Ok(Some(_))) {
            memory::close_left(file);
        }
    }
}

impl DatabaseFile for Mappable<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        DatabaseFile::read(&self.base, buf, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        DatabaseFile::write(&self.base, bytes, offset)
    }

    fn sync(&self) -> Result<(), LogError> {
        DatabaseFile::sync(&self.base)
    }

    fn size(&self) -> Result<u64, LogError> {
        DatabaseFile::size(&self.base)
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        DatabaseFile::truncate(&self.base, bytes)
    }

    fn map(&self, memory: HomeKind) -> Result<Arc<dyn Nvm>, LogError> {
        let Some(file) = self.file else {
            let what = "it was replaced while it was being opened; open it again";
            return Err(LogError::Busy { path: self.path.to_path_buf(), what });
        };
        self.mapped.store(true, Ordering::Relaxed);
        memory::map(file, self.path, memory)
    }
}
