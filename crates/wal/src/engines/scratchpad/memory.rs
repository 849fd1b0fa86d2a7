//! How the files of a log and its region are mapped.

use duralite_medium::{FileNvm, Latency, MapOptions, Persistency};

use crate::LogError;
use crate::engine::descriptor::{LogPlacement, OpenFile};
use crate::engine::media::{MediaOptions, MemoryKind};

/// How the files are mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    dax: bool,
    durable_on_store: bool,
    read_only: bool,
    latency: Latency,
    persistency: Persistency,
}

impl Mapping {
    /// A mapping for changes, on the media of a log directory.
    pub(super) fn of(directory: &LogPlacement, media: &MediaOptions) -> Self {
        let scratchpad = directory.media().scratchpad.as_ref();
        let durable_on_store = scratchpad.is_some_and(|scratchpad| scratchpad.durable_on_store);
        Self {
            dax: scratchpad.is_some_and(|scratchpad| scratchpad.memory.kind == MemoryKind::Dax),
            durable_on_store,
            read_only: false,
            latency: media.latency,
            persistency: if durable_on_store { Persistency::X86 } else { media.persistency },
        }
    }

    /// A mapping for reading.
    pub(super) fn read_only(media: &MediaOptions) -> Self {
        let (latency, persistency) = (media.latency, Persistency::X86);
        Self { dax: false, durable_on_store: false, read_only: true, latency, persistency }
    }

    /// A mapping for changes by a caller that does not know the media: stores are flushed.
    pub(super) fn flushed() -> Self {
        Self { read_only: false, ..Self::read_only(&MediaOptions::default()) }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn is_dax(&self) -> bool {
        self.dax
    }

    /// Maps a file, and reserves address space for this many bytes.
    pub(super) fn map(&self, file: &OpenFile<'_>, capacity: u64) -> Result<FileNvm, LogError> {
        let OpenFile { path, file } = *file;
        let Self { dax, durable_on_store, read_only, latency, persistency } = *self;
        let options = MapOptions {
            capacity,
            dax,
            latency,
            persistency,
            durable_on_store,
            read_only,
            ..MapOptions::default()
        };
        let file = file.try_clone().map_err(|error| LogError::io("open", path, &error))?;
        FileNvm::map(file, path, &options)
            .map_err(|source| LogError::Medium { path: path.to_path_buf(), source })
    }
}
