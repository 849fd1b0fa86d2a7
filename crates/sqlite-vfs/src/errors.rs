//! Turns failures into result codes for SQLite.

use std::ffi::c_int;

use duralite_sqlite_ffi as ffi;
use duralite_wal::{ErrorKind, LogError};

/// A result code and the message that goes with it.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: c_int,
    pub message: String,
    /// The part of the message that is the same at each attempt. `None` if the whole message is the same at
    /// each attempt.
    reason: Option<String>,
}

impl Failure {
    pub fn new(code: c_int, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), reason: None }
    }

    /// Gives this failure a reason that is the same at each attempt. The message differs from attempt to
    /// attempt, because it has details that may or may not be known at the moment.
    pub fn because_of(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// Returns a text that is the same at each attempt that fails for the same reason.
    pub fn reason(&self) -> &str {
        self.reason.as_ref().unwrap_or(&self.message)
    }

    pub fn cannot_open(message: impl Into<String>) -> Self {
        Self::new(ffi::CANTOPEN, message)
    }

    pub fn of(error: &LogError, during: During) -> Self {
        let code = match error {
            // For an error of the base VFS about the database file, SQLite gets the code that it would get
            // without this VFS.
            LogError::BaseVfs { code, .. } if during != During::Open => *code,
            _ => code_of(error.kind(), during),
        };
        Self::new(code, error.to_string())
    }
}

impl Failure {
    /// Turns a failure to read a page into a failure of the statement, which may have written a part of its
    /// changes. `SQLITE_BUSY` and codes like it become an I/O error, because after an I/O error SQLite always
    /// rolls the statement back. After `SQLITE_BUSY` SQLite does so only if it has kept a statement journal.
    /// Without a statement journal the transaction would continue with half of an insert.
    pub fn amid_writes(self) -> Self {
        match self.code & 0xff {
            ffi::BUSY | ffi::CANTOPEN | ffi::READONLY | ffi::PROTOCOL => {
                Self { code: ffi::IOERR_READ, ..self }
            }
            _ => self,
        }
    }
}

/// The operation of SQLite during which a failure happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum During {
    Open,
    Read,
    Write,
    Truncate,
    Sync,
    Size,
    Delete,
}

impl During {
    /// Returns the I/O error that belongs to the operation.
    fn io_error(self) -> c_int {
        match self {
            Self::Open => ffi::CANTOPEN,
            Self::Read => ffi::IOERR_READ,
            Self::Write => ffi::IOERR_WRITE,
            Self::Truncate => ffi::IOERR_TRUNCATE,
            Self::Sync => ffi::IOERR_FSYNC,
            Self::Size => ffi::IOERR_FSTAT,
            Self::Delete => ffi::IOERR_DELETE,
        }
    }
}

/// Turns a kind of [`LogError`] into SQLite's code. This is the only place that does so. The VFS's own
/// refusals have their codes already.
fn code_of(kind: ErrorKind, during: During) -> c_int {
    match kind {
        ErrorKind::Full => ffi::FULL,
        ErrorKind::Corrupt if during == During::Open => ffi::CANTOPEN,
        ErrorKind::Corrupt => ffi::CORRUPT,
        ErrorKind::NotFound | ErrorKind::CantOpen => ffi::CANTOPEN,
        ErrorKind::ReadOnly if during == During::Open => ffi::CANTOPEN,
        ErrorKind::ReadOnly => ffi::READONLY,
        ErrorKind::Busy => ffi::BUSY,
        // `LostPlace` concerns only followers of a log, and never reaches SQLite.
        ErrorKind::Io | ErrorKind::LostPlace => during.io_error(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_amid_writes_fails_so_that_sqlite_rolls_back() {
        let told = |code| Failure::new(code, "why").amid_writes();
        assert_eq!((told(ffi::BUSY).code, told(ffi::BUSY).message.as_str()), (ffi::IOERR_READ, "why"));
        for code in [ffi::IOERR_SHMMAP, ffi::CORRUPT, ffi::FULL] {
            assert_eq!(told(code).code, code);
        }
    }

    #[test]
    fn full_is_always_full_and_io_names_the_operation() {
        for during in [During::Open, During::Write, During::Truncate] {
            assert_eq!(code_of(ErrorKind::Full, during), ffi::FULL);
        }
        assert_eq!(code_of(ErrorKind::Io, During::Sync), ffi::IOERR_FSYNC);
        assert_eq!(code_of(ErrorKind::Corrupt, During::Open), ffi::CANTOPEN);
        assert_eq!(code_of(ErrorKind::Corrupt, During::Read), ffi::CORRUPT);
    }
}
