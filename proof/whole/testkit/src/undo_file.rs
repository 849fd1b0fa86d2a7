//! A rollback journal in a file beside a log.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use duralite_wal::LogError;
use duralite_wal::engine::rollback::RollbackJournal;

use crate::steps::step;

/// The ending of the file's name.
const NAME: &str = "-undo";

/// A rollback journal in a file. The file exists only while there is a journal. All processes share the file.
pub struct UndoFile {
    path: PathBuf,
}

impl UndoFile {
    /// Returns the journal beside the log at `path`.
    pub fn beside(path: &Path) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push(NAME);
        Self { path: name.into() }
    }

    /// Returns whether a file is a journal of this kind, judged by its name.
    pub fn is_one(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().ends_with(NAME.as_bytes())
    }

    fn with<T>(
        &self,
        op: &'static str,
        work: impl FnOnce(&File) -> Result<T>,
    ) -> std::result::Result<T, LogError> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        file.and_then(|file| work(&file)).map_err(|error| LogError::io(op, &self.path, &error))
    }
}

impl RollbackJournal for UndoFile {
    fn size(&self) -> std::result::Result<Option<u64>, LogError> {
        match std::fs::metadata(&self.path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("look at", &self.path, &error)),
        }
    }

    fn create(&self) -> std::result::Result<(), LogError> {
        step();
        let file = OpenOptions::new().write(true).create_new(true).open(&self.path);
        file.and_then(|file| file.set_permissions(Permissions::from_mode(0o666)))
            .map_err(|error| LogError::io("make", &self.path, &error))
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> std::result::Result<usize, LogError> {
        let file = match File::open(&self.path) {
            // A process that checks whether a journal is hot holds no lock, so the writer may delete the
            // journal meanwhile. A missing file therefore reads as an empty one.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            file => file,
        };
        let read = file.and_then(|file| {
            let left = file.metadata()?.len().saturating_sub(offset);
            let wanted = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
            // The writer may truncate the file before this read.
            file.read_at(&mut buf[..wanted], offset)
        });
        read.map_err(|error| LogError::io("read", &self.path, &error))
    }

    fn write(&self, bytes: &[u8], offset: u64) -> std::result::Result<(), LogError> {
        step();
        self.with("write", |file| file.write_all_at(bytes, offset))
    }

    fn truncate(&self, bytes: u64) -> std::result::Result<(), LogError> {
        step();
        self.with("cut", |file| file.set_len(file.metadata()?.len().min(bytes)))
    }

    /// Does nothing. In these tests processes die, but the machine does not, so nothing needs a sync.
    fn sync(&self) -> std::result::Result<(), LogError> {
        step();
        Ok(())
    }

    fn delete(&self) -> std::result::Result<(), LogError> {
        step();
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(LogError::io("delete", &self.path, &error))
            }
            _ => Ok(()),
        }
    }
}
