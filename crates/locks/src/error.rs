//! Why a lock was not taken.

use std::fmt;

use duralite_medium::MediumError;

/// Why a lock was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockError {
    /// Another connection holds a lock that is in the way.
    Busy,
    /// The kernel did not say whether a process lives.
    Medium(MediumError),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("busy"),
            Self::Medium(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LockError {}

impl From<MediumError> for LockError {
    fn from(error: MediumError) -> Self {
        Self::Medium(error)
    }
}
