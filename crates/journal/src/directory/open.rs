//! Opening what is called like a log.

use std::path::Path;

use duralite_medium::process::OwnFile;

use crate::{JournalError, engines, log_file};

/// Opens an existing log of any engine.
///
/// # Errors
/// `Io`; `Format` when it is none, by its first bytes.
pub(super) fn open_log(path: &Path, write: bool) -> Result<OwnFile, JournalError> {
    log_file::open(path, write, |bytes| engines::by_magic(bytes).is_some())
}
