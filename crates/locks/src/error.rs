//! Why a lock was not taken.

use duralite_medium::MediumError;

/// Why a lock was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another connection holds a lock that is in the way.
    #[error("busy")]
    Busy,
    /// The kernel did not say whether a process lives.
    #[error("{0}")]
    Medium(MediumError),
}

impl From<MediumError> for LockError {
    fn from(error: MediumError) -> Self {
        Self::Medium(error)
    }
}
