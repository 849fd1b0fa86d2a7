//! The errors of the disk, and of the file systems mounted on it.

use std::io;
use std::path::{Path, PathBuf};

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The action of the caller, as a verb.
        doing: &'static str,
        /// The file, device or directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The system cannot mount the file system on the device. For a crash image this means that the file
    /// system's recovery failed.
    #[error("cannot mount {} as {kind}: {source}", device.display())]
    Mount {
        /// The loop device.
        device: PathBuf,
        /// The file system's name.
        kind: &'static str,
        /// The error of the mount.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program}: {message}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// The text that the program wrote to standard error.
        message: String,
    },
}

impl Error {
    /// Returns a function for `map_err` that adds what failed, and on which path.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source: source.into() }
    }
}
