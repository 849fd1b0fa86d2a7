//! What the rest of the product knows of an engine: its descriptor.
//!
//! A new engine is a module with a descriptor, a document of its format, and a line in [`crate::engines`].

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use duralite_logfmt::LogHead;
use duralite_medium::FileSegment;
use duralite_medium::process::OwnFile;

use crate::JournalError;
use crate::engine::Engine;
use crate::home::DatabaseFile;
use crate::media::{MediaSet, Medium, MemoryKind, check_directory};
use crate::salvage::{Later, Salvaged};
use crate::settings::{EngineOptions, EngineSetting};
use crate::walk::{WalkSummary, WalkedTransaction};

/// Bytes at the beginning of a log's file that tell what it is; an engine's superblock has at most so many.
pub const HEAD_BYTES: u64 = 4096;

/// An engine, as the registry knows it.
pub struct Descriptor {
    /// Its name in settings.
    pub name: &'static str,
    /// The first bytes of its logs.
    pub magic: [u8; 8],
    /// The media that it needs; the log's file, which begins with the magic number, is on the first.
    pub needs: &'static [Medium],
    /// Its settings, those that it shares with other engines too, in the order in which they are told.
    pub settings: &'static [&'static EngineSetting],
    /// Whether it keeps rollback journals ([`crate::rollback`]): so that nobody looks for one where there is none.
    pub rollback_journals: bool,
    /// Whether the engine writes pages into the database file by itself, beside SQLite's checkpoint.
    pub writes_home: bool,
    /// What it keeps in memory that the log's users share.
    pub shared: SharedBytes,
    /// Writes an empty log into a new file. What it stored is durable on return, as far as the medium is; the
    /// file has no name yet.
    pub format: fn(&NewLog<'_>) -> Result<(), JournalError>,
    /// Opens a log; whoever is alone recovers it.
    pub attach: fn(Attaching<'_>) -> Result<Box<dyn Engine>, JournalError>,
    /// Opens a log as a user who may only read it. Changes nothing.
    pub attach_outside: fn(AttachingOutside<'_>) -> Result<Box<dyn Engine>, JournalError>,
    /// Opens a log to look at it, as recovery would find it. Changes nothing, and takes no lock.
    pub open_read_only: fn(&OpenFile<'_>) -> Result<Box<dyn Engine>, JournalError>,
    /// Reads and checks what a log says about itself, from its first [`HEAD_BYTES`] or as many as there are.
    pub inspect: fn(&OpenFile<'_>, &[u8]) -> Result<LogHead, JournalError>,
    /// Whether a log that nobody uses holds no commits, nor its home anything that is not in the database file;
    /// `false` where that cannot be told.
    pub is_empty: fn(&OpenFile<'_>) -> bool,
    /// Gives back what a log has outside of its file: nobody uses it, or needs what it holds, and its file is about to be
    /// deleted.
    pub release: fn(&OpenFile<'_>) -> Result<(), JournalError>,
    /// Visits every committed transaction in order, then rebuilds every page and checks SQLite's checksums: with the
    /// help of the database file where pages need it. Changes nothing.
    pub walk: Walk,
    /// Reads a log that may be damaged: up to the damage, and what is whole behind it. Changes nothing.
    pub salvage: Salvage,
    /// The longest that a commit which was acknowledged stays where it is not durable, to be made durable in the
    /// background; `None` where nothing in the background is needed.
    pub flush_interval: fn(&EngineOptions) -> Option<Duration>,
}

/// How what a log holds is saved.
pub type Salvage = fn(&OpenFile<'_>, &dyn DatabaseFile, Later<'_>) -> Result<Salvaged, JournalError>;

/// How a log is walked.
pub type Walk = fn(
    &OpenFile<'_>,
    &dyn DatabaseFile,
    &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, JournalError>;

/// A longer log of blocks is not kept at the last close.
const KEPT_BYTES: u64 = 512 << 10;

impl Descriptor {
    /// Whether who attaches such a log reads so much, for what may lie after its end, that a new log would cost less.
    pub(crate) fn is_long_to_find(&self, log: &File) -> bool {
        let is_read = self.needs.contains(&Medium::LogBlocks);
        is_read && log.metadata().is_ok_and(|log| log.len() > KEPT_BYTES)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Names are unique.
impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Descriptor {}

/// An engine's part of the memory that a log's users share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBytes {
    /// Those at its beginning that are zeros whenever it begins anew.
    pub zeroed: u64,
    /// All.
    pub all: u64,
}

/// The file of a log, open.
pub struct OpenFile<'a> {
    /// What it is called.
    pub path: &'a Path,
    /// The open file.
    pub file: &'a OwnFile,
}

/// A log that is being made.
pub struct NewLog<'a> {
    /// Where.
    pub directory: &'a LogDirectory,
    /// How.
    pub options: &'a EngineOptions,
    /// Its file, empty.
    pub file: OpenFile<'a>,
    /// For whom.
    pub head: LogHead,
}

/// A log that is being attached.
pub struct Attaching<'a> {
    /// Where.
    pub directory: &'a LogDirectory,
    /// How.
    pub options: &'a EngineOptions,
    /// Its file.
    pub file: OpenFile<'a>,
    /// The database's file, as it is: for an engine whose home has it mapped. It is the connection's own, and not kept.
    pub database: &'a dyn DatabaseFile,
    /// The memory that its users share.
    pub segment: Arc<FileSegment>,
    /// Where the engine's part of that memory begins.
    pub base: u64,
    /// Whether nobody else has it: then the engine's part of that memory begins anew.
    pub alone: bool,
    /// Whether it is another database's log, to be put home into a copy: what that one may have in it stays.
    pub of_another: bool,
    /// Whether this process has just made it, durably: there is nothing to recover.
    pub is_new: bool,
    /// For whoever is alone: what begins with zeros of the engine's part of that memory, as the last process left it that used the
    /// log. `None` where that is not known, or the system has been started since.
    pub left: Option<Vec<u8>>,
}

/// A log that is being attached by a user who may only read it.
pub struct AttachingOutside<'a> {
    /// How.
    pub options: &'a EngineOptions,
    /// Its file.
    pub file: OpenFile<'a>,
    /// The memory that its users share; `None` where there are none, and it is read as a crash has left it.
    pub shared: Option<Arc<FileSegment>>,
    /// Where the engine's part of that memory begins.
    pub base: u64,
}

/// Where an engine keeps logs: the media that it takes, and with them the directory of the log's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirectory {
    /// The engine.
    pub engine: &'static Descriptor,
    /// The directory of the log's file.
    pub dir: PathBuf,
    media: MediaSet,
}

impl LogDirectory {
    /// Where an engine keeps logs on these media.
    ///
    /// # Errors
    /// Which of those that it needs is not there, or cannot be used.
    pub fn of(engine: &'static Descriptor, media: &MediaSet) -> Result<Self, String> {
        engine.needs.iter().try_for_each(|medium| media.check(*medium))?;
        let first = engine.needs.first().and_then(|medium| media.directory(*medium));
        let dir = first.ok_or("no medium for the log's file")?.to_path_buf();
        Ok(Self { engine, dir, media: media.only(engine.needs) })
    }

    /// A directory in which there may be logs of an engine, memory being emulated; what else the engine needs is
    /// taken from `media`, and memory for pages, if that has none, is emulated too, wherever the database is.
    #[must_use]
    pub fn at(engine: &'static Descriptor, dir: &Path, media: &MediaSet) -> Self {
        let media = media.only(engine.needs);
        let mut media =
            engine.needs.first().map_or_else(MediaSet::default, |medium| media.with(*medium, dir));
        if engine.needs.contains(&Medium::HomeMemory) && media.home_memory.is_none() {
            media = media.with(Medium::HomeMemory, Path::new(""));
        }
        Self { engine, dir: dir.to_path_buf(), media }
    }

    /// The same, with memory for what it is: a log in memory is the same on both kinds of it.
    #[must_use]
    pub fn as_found(mut self) -> Self {
        self.media = self.media.as_found();
        self
    }

    /// The media that the engine uses.
    #[must_use]
    pub fn media(&self) -> &MediaSet {
        &self.media
    }

    /// What the database's pages are mapped as, where the engine has them in memory.
    #[must_use]
    pub fn home_kind(&self) -> MemoryKind {
        self.media.home_memory.as_ref().map_or(MemoryKind::Emulated, |memory| memory.kind)
    }

    /// Whether the log is in persistent memory.
    #[must_use]
    pub fn is_dax(&self) -> bool {
        let memory = self.engine.needs.first().and_then(|medium| self.media.memory(*medium));
        memory.is_some_and(|memory| memory.kind == MemoryKind::Dax)
    }

    /// Refuses a directory that could not hold a log, before an application relies on it.
    ///
    /// # Errors
    /// Why it cannot, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let dir = self.dir.display();
        check_directory(&self.dir)?;
        let has_dax = || {
            let found = duralite_medium::has_dax(&self.dir);
            found
                .map_err(|error| format!("cannot use directory {dir}: {}", duralite_medium::in_words(&error)))
        };
        if self.is_dax() && !has_dax()? {
            return Err(format!(
                "{dir} is not on a DAX file system, so a commit there would not survive a power loss; name a \
                 DAX directory, or choose {}=emulate with nvram_dir={dir}",
                if self.media.scratchpad.is_some() { "scratchpad" } else { "nvram" }
            ));
        }
        Ok(())
    }
}
