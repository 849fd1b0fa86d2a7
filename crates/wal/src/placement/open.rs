//! Opening a file that has the name of a log.

use std::path::Path;

use duralite_medium::process::OwnFile;

use crate::{LogError, engines};

use crate::shared::log_file;

/// Opens an existing log of any engine.
///
/// # Errors
/// `Io`; `Format` when the first bytes are not those of a log.
pub(super) fn open_log(path: &Path, write: bool) -> Result<OwnFile, LogError> {
    log_file::open(path, write, |bytes| engines::by_magic(bytes).is_some())
}
