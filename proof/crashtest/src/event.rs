//! What a workload did that durability depends on, in the order in which it happened.
#![allow(missing_docs)] // offsets, lengths and sizes are bytes

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use duralite_crashmodel::disk::DiskEvent;
use duralite_journal::media::Medium;
use duralite_journal::{Descriptor, engines};
use duralite_medium::LINE_BYTES;

/// A file, by the number of its making: one that is deleted and made again is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Where in the source a call came from, as an index into [`Recording::sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// How a file becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Mapped memory: lines of 64 bytes, flushed and fenced.
    Memory,
    /// Sectors of 512 bytes, in any order until a sync.
    Sectors,
}

impl FileKind {
    /// The kind of a file with this content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        let in_memory = |engine: &Descriptor| engine.needs.first() == Some(&Medium::LogMemory);
        if engines::by_magic(content).is_some_and(in_memory) { Self::Memory } else { Self::Sectors }
    }
}

/// Whether a file of this name is a log.
#[must_use]
pub fn is_log(path: &Path) -> bool {
    duralite_journal::directory::is_log_name(path)
}

/// One step.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were stored in memory.
    Store { file: FileId, at: u64, bytes: Box<[u8]> },
    /// Lines began to be written back.
    Flush { file: FileId, at: u64, len: u64, site: SiteId },
    /// What was flushed became durable; in memory that is durable on store, `all` that was stored.
    Fence { file: FileId, all: bool, site: SiteId },
    /// Bytes were written to a file.
    Write { file: FileId, at: u64, bytes: Box<[u8]> },
    /// What was written became durable.
    Sync { file: FileId, site: SiteId },
    /// Syncing failed: what was written and not synced never arrives, and the next sync will not say so.
    Lost { file: FileId },
    /// Of what was written, this range became durable.
    SyncRange { file: FileId, at: u64, len: u64, site: SiteId },
    /// The file got another size.
    Truncate { file: FileId, size: u64 },
    /// The file grew by zeros, durably.
    Extend { file: FileId, size: u64 },
    /// A path got this file, or none.
    Name { path: PathBuf, file: Option<FileId> },
    /// The names in the directory of a path became durable.
    SyncNames { path: PathBuf, site: SiteId },
    /// A request of the disk that everything is on, where there is one.
    Disk(DiskEvent),
    /// A transaction is about to be committed.
    Begin { number: u32 },
    /// All transactions up to this one must be found from now on.
    Acknowledged { number: u32 },
}

impl Event {
    /// The call site, if it is a call that makes something durable.
    #[must_use]
    pub fn site(&self) -> Option<SiteId> {
        match self {
            Self::Flush { site, .. }
            | Self::Fence { site, .. }
            | Self::Sync { site, .. }
            | Self::SyncRange { site, .. }
            | Self::SyncNames { site, .. } => Some(*site),
            _ => None,
        }
    }
}

/// A file that a recording speaks of.
#[derive(Clone, Debug)]
pub struct RecordedFile {
    /// Its path.
    pub path: PathBuf,
    /// How it becomes durable.
    pub kind: FileKind,
    /// What was durable in it when the recording began.
    pub initial: Vec<u8>,
}

/// A run of a workload.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Every file, by number.
    pub files: Vec<RecordedFile>,
    /// The names that were durable when the recording began.
    pub names: Vec<(PathBuf, FileId)>,
    /// What happened.
    pub events: Vec<Event>,
    /// The call sites.
    pub sites: Vec<String>,
    /// Of each file of memory the lines that nobody has flushed: what is in them matters to nobody after a crash.
    pub volatile: Vec<HashSet<u64>>,
}

impl Recording {
    /// Finds the lines that are stored and never flushed.
    pub fn find_volatile(&mut self) {
        let mut stored: Vec<HashSet<u64>> = vec![HashSet::new(); self.files.len()];
        let mut flushed = stored.clone();
        for event in &self.events {
            if let Event::Fence { file, all: true, .. } = event {
                let stored = stored[file.0 as usize].clone();
                flushed[file.0 as usize].extend(stored);
                continue;
            }
            let (file, at, len, lines) = match event {
                Event::Store { file, at, bytes } => (file, *at, bytes.len() as u64, &mut stored),
                Event::Flush { file, at, len, .. } => (file, *at, *len, &mut flushed),
                _ => continue,
            };
            lines[file.0 as usize].extend(at / LINE_BYTES..(at + len).div_ceil(LINE_BYTES));
        }
        self.volatile = stored.iter().zip(&flushed).map(|(stored, flushed)| stored - flushed).collect();
    }
}
