//! The errors that a medium returns when a call is to fail.

use duralite_medium::MediumError;
use rustix::io::Errno;

use crate::recorder::Failure;

/// Returns the error for a failure that is due.
pub(super) fn medium_error(operation: &'static str, failure: Failure) -> MediumError {
    match failure {
        Failure::Io => MediumError::from_errno(operation, Errno::IO),
        Failure::NoSpace => MediumError::NoSpace,
    }
}
