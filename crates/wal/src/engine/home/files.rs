//! Database files that this library opens outside SQLite.

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_medium::Nvm;
use duralite_medium::process::OwnFile;
use rustix::fs::OFlags;

use super::{DatabaseFile, HomeKind, memory};
use crate::{LogError, hooks};

/// A database file that this library has opened itself, outside SQLite.
pub struct OpenDatabase {
    /// The file. The mapping shares it, so that the locks on the file last until both are gone.
    file: Arc<OwnFile>,
    path: PathBuf,
}

impl OpenDatabase {
    /// Wraps an open file. Errors and fault-injection hooks name the file by `path`.
    #[must_use]
    pub fn new(file: File, path: &Path) -> Self {
        Self { file: Arc::new(OwnFile::from(file)), path: path.to_path_buf() }
    }

    fn answer<T>(&self, op: &'static str, result: std::io::Result<T>) -> Result<T, LogError> {
        result.map_err(|error| LogError::io(op, &self.path, &error))
    }
}

impl DatabaseFile for OpenDatabase {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let mut done = 0;
        while done < buf.len() {
            match self.answer("read", self.file.read_at(&mut buf[done..], offset + done as u64))? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        self.answer("write", self.file.write_all_at(bytes, offset))
    }

    fn sync(&self) -> Result<(), LogError> {
        self.answer("sync", self.file.sync_all())
    }

    fn size(&self) -> Result<u64, LogError> {
        self.answer("examine", self.file.metadata()).map(|metadata| metadata.len())
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.answer("truncate", self.file.set_len(bytes))
    }

    fn map(&self, memory: HomeKind) -> Result<Arc<dyn Nvm>, LogError> {
        let flags = rustix::fs::fcntl_getfl(&*self.file);
        let flags = flags.map_err(|errno| LogError::io("examine", &self.path, &errno.into()))?;
        let writable = flags.contains(OFlags::RDWR);
        let failed = |source| LogError::Medium { path: self.path.clone(), source };
        let nvm = memory::map_open(&self.file, writable, &self.path, memory).map_err(failed)?;
        hooks::home(&self.path, Arc::new(nvm)).map_err(failed)
    }
}

/// The database at a path. Opens the file, only for reading, at the first call, because some logs can be read without
/// the database. A process in which SQLite has the database open must not use this type: see
/// [`crate::log::offline::inspect`].
pub struct DatabaseAt {
    path: PathBuf,
    open: OnceCell<OpenDatabase>,
}

impl DatabaseAt {
    /// Makes a handle for the database at `path`. The first call that needs the file opens it.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), open: OnceCell::new() }
    }

    fn file(&self) -> Result<&OpenDatabase, LogError> {
        if let Some(open) = self.open.get() {
            return Ok(open);
        }
        let file = File::open(&self.path).map_err(|error| LogError::io("open", &self.path, &error))?;
        Ok(self.open.get_or_init(|| OpenDatabase::new(file, &self.path)))
    }
}

impl DatabaseFile for DatabaseAt {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        self.file()?.read(buf, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        self.file()?.write(bytes, offset)
    }

    fn sync(&self) -> Result<(), LogError> {
        self.file()?.sync()
    }

    fn size(&self) -> Result<u64, LogError> {
        self.file()?.size()
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.file()?.truncate(bytes)
    }

    fn map(&self, memory: HomeKind) -> Result<Arc<dyn Nvm>, LogError> {
        self.file()?.map(memory)
    }
}

/// Stands for the database file if the caller has only a log. Every call fails. So this type works only with engines
/// whose logs hold everything needed to rebuild pages.
pub struct NoDatabase;

const NONE: LogError = LogError::Unexpected("a page that needs the database, with no database file");

impl DatabaseFile for NoDatabase {
    fn read(&self, _buf: &mut [u8], _offset: u64) -> Result<usize, LogError> {
        Err(NONE)
    }

    fn write(&self, _bytes: &[u8], _offset: u64) -> Result<(), LogError> {
        Err(NONE)
    }

    fn sync(&self) -> Result<(), LogError> {
        Err(NONE)
    }

    fn size(&self) -> Result<u64, LogError> {
        Err(NONE)
    }

    fn truncate(&self, _bytes: u64) -> Result<(), LogError> {
        Err(NONE)
    }
}
