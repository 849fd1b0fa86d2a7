//! Log files in memory: mapping them, and flushing them.

use std::path::Path;
use std::sync::Arc;

use duralite_format::FormatError;
use duralite_format::heap::read_checked_word;
use duralite_medium::{FileNvm, MapOptions, MediumError, Nvm};

use crate::engine::descriptor::OpenFile;
use crate::engine::media::MediaOptions;
use crate::{LogError, hooks};

/// How a log is mapped.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// For writing.
    Write { dax: bool },
    /// For reading only.
    Read,
}

/// The address space that a mapping reserves, in bytes.
pub(crate) struct Reserved {
    /// The bytes that are mapped at first. The log maps more as soon as it needs more.
    pub(crate) first: u64,
    /// The most bytes that the log may need.
    pub(crate) capacity: u64,
    /// If the system refuses to reserve `capacity` bytes, the mapping reserves at least this many bytes, and at least
    /// the file's length.
    pub(crate) least: u64,
}

/// Maps a log's file.
pub(crate) fn map(
    access: Access,
    media: &MediaOptions,
    log: &OpenFile<'_>,
    reserved: Reserved,
) -> Result<FileNvm, LogError> {
    let OpenFile { path, file } = *log;
    let io = |error| LogError::io("open", path, &error);
    let length = file.metadata().map_err(io)?.len();
    let mut options = MapOptions {
        capacity: reserved.capacity.min(isize::MAX as u64),
        first_bytes: Some(reserved.first.max(length)),
        dax: matches!(access, Access::Write { dax: true }),
        latency: media.latency,
        persistency: media.persistency,
        read_only: matches!(access, Access::Read),
        ..MapOptions::default()
    };
    loop {
        match FileNvm::map(file.try_clone().map_err(io)?, path, &options) {
            // Mapping reserves only address space, but a process may be short of that too.
            Err(MediumError::Io { op: "mmap", source }) if source == rustix::io::Errno::NOMEM => {
                let less = options.capacity / 2;
                if less < length.max(reserved.least) {
                    let source = MediumError::Io { op: "mmap", source };
                    return Err(LogError::Medium { path: path.to_path_buf(), source });
                }
                options.capacity = less;
            }
            done => {
                return done.map_err(|source| LogError::Medium { path: path.to_path_buf(), source });
            }
        }
    }
}

/// Wraps the memory with a test's hook, if a test has installed one.
pub(crate) fn hooked(path: &Path, nvm: FileNvm) -> Result<Arc<dyn Nvm>, LogError> {
    hooks::nvm(path, Arc::new(nvm)).map_err(|source| LogError::Medium { path: path.to_path_buf(), source })
}

/// Starts flushing ranges, each given as its first offset and its end. The ranges are durable after the caller's next
/// fence.
pub(crate) fn flush_all(nvm: &dyn Nvm, ranges: &[(u64, u64)]) {
    for &(from, to) in ranges {
        nvm.flush(from, to - from);
    }
}

/// Returns the first `most` bytes of a log, or fewer if the memory is smaller.
pub(crate) fn first_bytes(nvm: &dyn Nvm, most: u64) -> Vec<u8> {
    let mut bytes = vec![0; nvm.len().min(most) as usize];
    nvm.read(0, &mut bytes);
    bytes
}

/// Checks that a log's file has the length that the log's size word gives. `bytes` are the file's first bytes, and `at`
/// is the word's offset in `bytes`. The word is a number of units, at most `limit`; `file_bytes` converts it to the
/// file's length.
///
/// # Errors
/// `Format`; `Io` if the file cannot be examined.
pub(crate) fn check_size(
    log: &OpenFile<'_>,
    bytes: &[u8],
    at: u64,
    limit: u32,
    file_bytes: impl FnOnce(u32) -> u64,
) -> Result<(), LogError> {
    let format = |source| LogError::Format { log: log.path.to_path_buf(), source };
    let length = log.file.metadata().map_err(|error| LogError::io("examine", log.path, &error))?.len();
    let word = bytes.get(at as usize..).and_then(|rest| rest.first_chunk::<8>());
    let word = u64::from_le_bytes(word.copied().unwrap_or_default());
    let grown = read_checked_word(word, "the log's size").map_err(format)?;
    if grown > limit || file_bytes(grown) > length {
        return Err(format(FormatError::Short { what: "the log file" }));
    }
    Ok(())
}
