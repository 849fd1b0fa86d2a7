//! The events of a workload on which durability depends, in the order in which they happened.
#![allow(missing_docs)] // offsets, lengths and sizes are bytes

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use duralite_crashmodel::disk::DiskEvent;
use duralite_medium::LINE_BYTES;
use duralite_wal::engine::media::Medium;
use duralite_wal::{Descriptor, engines};

/// The number of a file. A file that is deleted and made again gets a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// The call site: the place in the source that contains a call. This is an index into [`Recording::sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// The way in which a file becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Mapped memory: lines of 64 bytes, flushed and fenced.
    Memory,
    /// Sectors of 512 bytes. Written sectors may become durable in any order, and a sync makes all of them
    /// durable.
    Sectors,
}

impl FileKind {
    /// Returns the kind of a file with this content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        let in_memory = |engine: &Descriptor| engine.needs.first() == Some(&Medium::LogMemory);
        if engines::by_magic(content).is_some_and(in_memory) { Self::Memory } else { Self::Sectors }
    }
}

/// Returns whether a file of this name is a log.
#[must_use]
pub fn is_log(path: &Path) -> bool {
    duralite_wal::placement::is_log_name(path)
}

/// One step of a recording.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were stored in memory.
    Store { file: FileId, at: u64, bytes: Box<[u8]> },
    /// The write-back of lines began.
    Flush { file: FileId, at: u64, len: u64, site: SiteId },
    /// A fence: flushed lines became durable. With `all`, every store became durable; this is for memory that
    /// needs no flushes.
    Fence { file: FileId, all: bool, site: SiteId },
    /// Bytes were written to a file.
    Write { file: FileId, at: u64, bytes: Box<[u8]> },
    /// Everything that was written became durable.
    Sync { file: FileId, site: SiteId },
    /// A sync failed. The unsynced writes never reach the device, although the next sync succeeds.
    Lost { file: FileId },
    /// Everything that was written in this range became durable.
    SyncRange { file: FileId, at: u64, len: u64, site: SiteId },
    /// The file got a new size.
    Truncate { file: FileId, size: u64 },
    /// The file grew by zeros, durably.
    Extend { file: FileId, size: u64 },
    /// From now on the path names this file; `None` if it names no file.
    Name { path: PathBuf, file: Option<FileId> },
    /// The names in the directory that contains `path` became durable.
    SyncNames { path: PathBuf, site: SiteId },
    /// A request that reached the disk. Only recordings on a disk that logs its requests have such events.
    Disk(DiskEvent),
    /// A transaction is about to be committed.
    Begin { number: u32 },
    /// The transactions up to this one are acknowledged. From now on recovery must find all of them.
    Acknowledged { number: u32 },
}

impl Event {
    /// Returns the call site, if the event is a call that makes something durable.
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

/// A file of a recording.
#[derive(Clone, Debug)]
pub struct RecordedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The way in which the file's content becomes durable.
    pub kind: FileKind,
    /// The file's durable content when the recording began.
    pub initial: Vec<u8>,
}

/// A recorded run of a workload.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Every file, by number.
    pub files: Vec<RecordedFile>,
    /// The names that were durable when the recording began.
    pub names: Vec<(PathBuf, FileId)>,
    /// The events, in the order in which they happened.
    pub events: Vec<Event>,
    /// The call sites.
    pub sites: Vec<String>,
    /// For each file in mapped memory, the lines that the run stored to but never flushed. Their content need
    /// not survive a crash.
    pub volatile: Vec<HashSet<u64>>,
}

impl Recording {
    /// Finds the lines that the run stored to but never flushed.
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
