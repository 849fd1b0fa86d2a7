//! The lock on a store's directory. It ensures that only one process at a time has the store open.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use duralite_medium::process::ProcessId;

use crate::error::Error;

/// The lock, which is held until this value is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
    process: ProcessId,
}

impl DirectoryLock {
    /// The name of the lock file in the directory.
    pub(crate) const NAME: &str = "lock";

    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// [`Error::Locked`] with the name of the holder, or an error of the system.
    pub(crate) fn take(dir: &Path) -> Result<Self, Error> {
        Self::take_by(dir, &mut |path| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        })
    }

    /// Takes the lock. Calls `open` to open the lock file.
    fn take_by(dir: &Path, open: &mut dyn FnMut(&Path) -> io::Result<File>) -> Result<Self, Error> {
        let path = dir.join(Self::NAME);
        let mut file = loop {
            let mut file = open(&path).map_err(|error| Error::io("opening", &path, error))?;
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
            // The previous holder may have removed this file after this process opened it. Other processes then lock a
            // new file, so this lock would not keep them out.
            if is_at(&file, &path).map_err(|error| Error::io("reading", &path, error))? {
                break file;
            }
        };
        let program = std::env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_owned()));
        let program = program.unwrap_or_default();
        let holder = format!("process {} ({})", std::process::id(), program.to_string_lossy());
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(holder.as_bytes()));
        // The content only tells people who holds the lock. The lock works without it, so an error does not matter.
        let _ = written;
        Ok(Self { file, process: ProcessId::current() })
    }
}

/// Returns whether the path still leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for DirectoryLock {
    /// Releases the lock explicitly, because closing the file may not be enough. A child process that another thread
    /// is just starting has the file open too, until it executes its program. A process that was forked while the
    /// store was open does nothing here, because it must not release its parent's lock.
    fn drop(&mut self) {
        if self.process == ProcessId::current() {
            // If unlocking fails, closing the file still releases the lock.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed helper is a failed test

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

    /// The holder fails to make a store and removes the lock file. By then, another process has opened the file, but
    /// not locked it.
    #[test]
    fn a_file_that_its_holder_has_removed_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = 0;
        let lock = DirectoryLock::take_by(dir.path(), &mut |path| {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            opened += 1;
            if opened == 1 {
                fs::remove_file(path).unwrap();
            }
            file
        });
        let lock = lock.unwrap();
        assert!(matches!(DirectoryLock::take(dir.path()), Err(Error::Locked { .. })));
        assert_eq!(opened, 2);
        drop(lock);
    }
}
