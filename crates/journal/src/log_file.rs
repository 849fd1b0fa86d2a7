//! The file of one log: opening it, and what it begins with.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use duralite_logfmt::FormatError;
use duralite_medium::process::OwnFile;
use rustix::fs::OFlags;

use crate::JournalError;
use crate::tap::{self, FileStep};

/// Opens an existing log.
pub(crate) fn open(path: &Path, write: bool) -> Result<OwnFile, JournalError> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    tap::step(FileStep::Open, path)
        .and_then(|()| OwnFile::open(|| options.open(path)))
        .map_err(|error| JournalError::io("open the log", path, &error))
}

/// The file's first bytes, up to `limit`.
pub(crate) fn first_bytes(path: &Path, file: &File, limit: u64) -> Result<Vec<u8>, JournalError> {
    let meta = file.metadata().map_err(|error| JournalError::io("examine", path, &error))?;
    let mut bytes = vec![0; meta.len().min(limit) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| JournalError::io("read", path, &error))?;
    if bytes.is_empty() {
        let source = FormatError::Short { what: "the log file" };
        return Err(JournalError::Format { log: path.to_path_buf(), source });
    }
    Ok(bytes)
}
