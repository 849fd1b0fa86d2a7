//! The errors of a medium.

use std::path::PathBuf;

use rustix::io::Errno;

/// Returns the system's text for an error. For some errors adds what the user can do, which the system's text
/// does not say.
#[must_use]
pub fn in_words(error: &std::io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => {
            "out of file descriptors (EMFILE): close files, or raise the limit of open files (ulimit -n)"
                .to_owned()
        }
        Some(Errno::NFILE) => {
            "the system is out of file descriptors (ENFILE): close programs, or raise fs.file-max".to_owned()
        }
        _ => error.to_string(),
    }
}

/// An operation that a medium refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MediumError {
    /// The file system is full, or the owner's quota on it is used up.
    #[error("no space left on the medium")]
    NoSpace,
    /// A range reaches beyond what the medium holds or can hold.
    #[error("{len} bytes at {at} are out of bounds")]
    OutOfBounds {
        /// The offset of the range, in bytes.
        at: u64,
        /// The length of the range, in bytes.
        len: u64,
    },
    /// Direct access was requested on a file system that does not have it.
    #[error("{} is not on a DAX file system", path.display())]
    NotDax {
        /// The file that could not be mapped.
        path: PathBuf,
    },
    /// A file system that is known to break write-ahead logs.
    #[error(
        "{} is on {name}, where locks or shared memory do not reach every process that opens the file; keep \
         the database on a local file system, or use journal=off", path.display()
    )]
    FileSystem {
        /// The directory.
        path: PathBuf,
        /// The file system's name.
        name: String,
    },
    /// A system call failed.
    #[error("{op}: {}", in_words(&(*source).into()))]
    Io {
        /// The system call.
        op: &'static str,
        /// The error that the call returned.
        source: Errno,
    },
    /// An access to the mapping found that a page of the file is missing, because another program truncated
    /// the file while it was mapped, or because the page cannot be read. The contents of the mapping from the
    /// missing page on are not valid.
    #[error("another program truncated {} while it was open, or a part of it cannot be read", path.display())]
    Cut {
        /// The file.
        path: PathBuf,
    },
    /// Every process slot is taken.
    #[error(
        "{most} processes have the database open already, and no more can open it; close it in one of them"
    )]
    Crowded {
        /// The number of slots.
        most: usize,
    },
    /// The machine, the file system or the mapping cannot do this.
    #[error("{what} is not supported here")]
    Unsupported {
        /// The name of what is not supported.
        what: &'static str,
    },
}

impl MediumError {
    /// Returns whether this is the error of a failed flush. After a failed flush, nothing is known about the
    /// data that was written before it.
    #[must_use]
    pub fn is_failed_flush(&self) -> bool {
        matches!(self, Self::Io { op: "fsync" | "fdatasync", .. })
    }

    /// Returns the error of a failed system call.
    #[must_use]
    pub fn from_errno(op: &'static str, source: Errno) -> Self {
        if source == Errno::NOSPC || source == Errno::DQUOT {
            Self::NoSpace
        } else if source == Errno::OPNOTSUPP || source == Errno::NOSYS {
            Self::Unsupported { what: op }
        } else {
            Self::Io { op, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_becomes_the_closest_variant() {
        assert_eq!(MediumError::from_errno("fallocate", Errno::NOSPC), MediumError::NoSpace);
        assert_eq!(MediumError::from_errno("fallocate", Errno::DQUOT), MediumError::NoSpace);
        assert_eq!(
            MediumError::from_errno("fallocate", Errno::OPNOTSUPP),
            MediumError::Unsupported { what: "fallocate" }
        );
        let io = MediumError::from_errno("fsync", Errno::IO);
        assert_eq!(io, MediumError::Io { op: "fsync", source: Errno::IO });
        assert!(io.to_string().starts_with("fsync: "));
    }
}
