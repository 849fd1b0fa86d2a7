//! Log files in memory: how they are mapped, and written back.

use std::path::Path;
use std::sync::Arc;

use duralite_medium::{FileNvm, MapOptions, MediumError, Nvm};

use crate::descriptor::OpenFile;
use crate::media::MediaOptions;
use crate::{JournalError, hooks};

/// How a log is mapped.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// To be changed.
    Write { dax: bool },
    /// To be looked at.
    Read,
}

/// Maps a log's file, with address space for so many bytes, or less where this process may not have so much.
pub(crate) fn map(
    access: Access,
    media: &MediaOptions,
    log: &OpenFile<'_>,
    capacity: u64,
    least: u64,
) -> Result<FileNvm, JournalError> {
    let OpenFile { path, file } = *log;
    let io = |error| JournalError::io("open", path, &error);
    let length = file.metadata().map_err(io)?.len();
    let mut options = MapOptions {
        capacity,
        dax: matches!(access, Access::Write { dax: true }),
        latency: media.latency,
        persistency: media.persistency,
        read_only: matches!(access, Access::Read),
        ..MapOptions::default()
    };
    loop {
        match FileNvm::map(file.try_clone().map_err(io)?, path, &options) {
            // Only address space is reserved, but of that too a process may be given little.
            Err(MediumError::Io { op: "mmap", source }) if source == rustix::io::Errno::NOMEM => {
                let less = options.capacity / 2;
                if less < length.max(least) {
                    let source = MediumError::Io { op: "mmap", source };
                    return Err(JournalError::Medium { path: path.to_path_buf(), source });
                }
                options.capacity = less;
            }
            done => {
                return done.map_err(|source| JournalError::Medium { path: path.to_path_buf(), source });
            }
        }
    }
}

/// With what tests put before it.
pub(crate) fn hooked(path: &Path, nvm: FileNvm) -> Result<Arc<dyn Nvm>, JournalError> {
    hooks::nvm(path, Arc::new(nvm))
        .map_err(|source| JournalError::Medium { path: path.to_path_buf(), source })
}

/// Starts writing back ranges, each from one offset up to another; durable after the next fence.
pub(crate) fn flush_all(nvm: &dyn Nvm, ranges: &[(u64, u64)]) {
    for &(from, to) in ranges {
        nvm.flush(from, to - from);
    }
}
