//! What can go wrong with the disk and what is mounted on it.

use std::io;
use std::path::{Path, PathBuf};

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        doing: &'static str,
        /// To which file, device or directory.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
    /// The file system on the device cannot be mounted: on a crash image, its recovery failed.
    #[error("cannot mount {} as {kind}: {source}", device.display())]
    Mount {
        /// The loop device.
        device: PathBuf,
        /// The file system's name.
        kind: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What it wrote to its standard error.
        message: String,
    },
}

impl Error {
    /// For `map_err`: what failed, and on what.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source: source.into() }
    }
}
