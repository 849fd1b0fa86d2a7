//! The lock of a store's directory: one process at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use duralite_medium::process::ProcessId;

use crate::error::Error;

/// Held until it is dropped by the process that took it.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
    process: ProcessId,
}

impl DirectoryLock {
    /// The name of its file in the directory.
    pub(crate) const NAME: &str = "lock";

    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// [`Error::Locked`] with who has it, or the system's.
    pub(crate) fn take(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(Self::NAME);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(|error| Error::io("opening", &path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "another process".to_owned(),
                    holder => holder.to_owned(),
                };
                return Err(Error::Locked { path: dir.to_owned(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("locking", &path, error)),
        }
        let program = std::env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_owned()));
        let program = program.unwrap_or_default();
        let holder = format!("process {} ({})", std::process::id(), program.to_string_lossy());
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(holder.as_bytes()));
        // A note for people: the lock holds without it.
        let _ = written;
        Ok(Self { file, process: ProcessId::current() })
    }
}

impl Drop for DirectoryLock {
    /// Gives the lock back by name: a child process that another thread is just starting has the file open as well
    /// until it runs its program, so that closing it would not be enough. A child that was forked with the store open
    /// gives nothing back that is its parent's.
    fn drop(&mut self) {
        if self.process == ProcessId::current() {
            // If that fails, the file's closing does it.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn it_is_free_once_dropped_though_a_child_still_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(dir.path()).unwrap();
        let of_the_child = lock.file.try_clone().unwrap();
        assert!(matches!(DirectoryLock::take(dir.path()), Err(Error::Locked { .. })));
        drop(lock);
        DirectoryLock::take(dir.path()).unwrap();
        drop(of_the_child);
    }
}
