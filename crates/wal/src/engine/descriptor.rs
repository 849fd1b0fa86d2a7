//! An engine's descriptor: all that the rest of the product knows about the engine.
//!
//! A new engine is a module with a descriptor, a document of its format, and a line in [`crate::engines`]. Inside this
//! crate no other module names engines, except for the re-exports in `lib.rs` and an error that names a region. Tests,
//! scripts and documents list engines too: see CONTRIBUTING.md, "Adding an engine".

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use duralite_format::LogHead;
use duralite_medium::FileSegment;
use duralite_medium::process::OwnFile;

use crate::LogError;
use crate::engine::Engine;
use crate::engine::home::DatabaseFile;
use crate::engine::media::{MediaSet, Medium, MemoryKind, check_directory};
use crate::engine::salvage::{Later, Salvaged};
use crate::engine::settings::{EngineOptions, EngineSetting};
use crate::engine::walk::{WalkSummary, WalkedTransaction};

/// The length in bytes of a log's head. The head is the beginning of the file, and identifies the log. No engine's
/// superblock is longer.
pub const HEAD_BYTES: u64 = 4096;

/// An engine, as the registry lists it.
pub struct Descriptor {
    /// The engine's name in settings.
    pub name: &'static str,
    /// The magic number: the first bytes of the engine's logs.
    pub magic: [u8; 8],
    /// The media that the engine needs. The log's file is on the first of them.
    pub needs: &'static [Medium],
    /// The engine's settings, including those that it shares with other engines, in the order in which users see them.
    pub settings: &'static [&'static EngineSetting],
    /// Whether the engine stores rollback journals ([`crate::engine::rollback`]). If it does not, its logs never hold
    /// one.
    pub rollback_journals: bool,
    /// Whether the engine itself writes pages to the database file, in addition to SQLite's checkpoints.
    pub writes_home: bool,
    /// The size of the engine's part of the segment, the memory that the processes using a log share.
    pub shared: SharedBytes,
    /// Writes an empty log into a new file, which has no name yet. A log in memory is as durable on return as its
    /// medium can make it. A log on blocks is durable once the file has been synced, or after
    /// [`harden`](crate::engine::LogWriter::harden).
    pub format: fn(&NewLog<'_>) -> Result<(), LogError>,
    /// Opens a log. If no other process uses the log, also recovers it.
    pub attach: fn(Attaching<'_>) -> Result<Box<dyn Engine>, LogError>,
    /// Opens a log for a user who may only read it. Changes nothing.
    pub attach_outside: fn(AttachingOutside<'_>) -> Result<Box<dyn Engine>, LogError>,
    /// Opens a log for inspection, as recovery would leave it. Changes nothing, and takes no lock.
    pub open_read_only: fn(&OpenFile<'_>) -> Result<Box<dyn Engine>, LogError>,
    /// Reads and checks the head of a log. The function gets the first [`HEAD_BYTES`] of the file, or all bytes if the
    /// file is shorter.
    pub inspect: fn(&OpenFile<'_>, &[u8]) -> Result<LogHead, LogError>,
    /// Returns whether a log that no process uses is empty. An empty log holds no commits, and every page that the
    /// engine stores outside the database file is also in that file. Returns `false` if the engine cannot tell.
    pub is_empty: fn(&OpenFile<'_>) -> bool,
    /// Releases what a log owns outside its file, before the file is deleted. The caller has made sure that nobody
    /// uses the log or needs its contents.
    pub release: fn(&OpenFile<'_>) -> Result<(), LogError>,
    /// Visits every committed transaction in order, then rebuilds every page and checks SQLite's checksums. Reads the
    /// database file if rebuilding a page requires it. Changes nothing.
    pub walk: Walk,
    /// Reads a log that may be damaged. Returns everything before the damage, and passes the intact transactions after it to
    /// the callback. Changes nothing.
    pub salvage: Salvage,
    /// The longest time between the acknowledgement of a commit and the moment at which it is durable. The background
    /// thread makes it durable within this time. `None` if the engine needs no background work.
    pub flush_interval: fn(&EngineOptions) -> Option<Duration>,
}

/// The type of [`Descriptor::salvage`].
pub type Salvage = fn(&OpenFile<'_>, &dyn DatabaseFile, Later<'_>) -> Result<Salvaged, LogError>;

/// The type of [`Descriptor::walk`].
pub type Walk =
    fn(&OpenFile<'_>, &dyn DatabaseFile, &mut dyn FnMut(&WalkedTransaction)) -> Result<WalkSummary, LogError>;

/// If a log on blocks is longer than this number of bytes, the last connection deletes it on closing, even if the
/// setting `on_close` says `keep`.
const KEPT_BYTES: u64 = 512 << 10;

impl Descriptor {
    /// Returns whether making a new log is cheaper than attaching this one. Attaching a long log on blocks is
    /// expensive, because recovery reads a large part of the file to look for records after the log's end.
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

/// Two descriptors are equal if they have the same name, because names are unique.
impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Descriptor {}

/// The size of an engine's part of the segment, the memory that the processes using a log share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBytes {
    /// The number of bytes, from the beginning of the part, that are set to zero whenever the segment is initialised.
    pub zeroed: u64,
    /// The size of the whole part in bytes.
    pub all: u64,
}

/// An open log file.
pub struct OpenFile<'a> {
    /// The file's path.
    pub path: &'a Path,
    /// The open file.
    pub file: &'a OwnFile,
}

/// A log that is being made.
pub struct NewLog<'a> {
    /// The placement of the log.
    pub placement: &'a LogPlacement,
    /// The settings for the log.
    pub options: &'a EngineOptions,
    /// The log's file, still empty.
    pub file: OpenFile<'a>,
    /// The log's head, which states the log's id and its database.
    pub head: LogHead,
}

/// A log that is being attached.
pub struct Attaching<'a> {
    /// The placement of the log.
    pub placement: &'a LogPlacement,
    /// The settings to use.
    pub options: &'a EngineOptions,
    /// The log's file.
    pub file: OpenFile<'a>,
    /// The database file itself, for an engine whose home maps the file. The connection owns the file, so the engine
    /// must not keep this reference.
    pub database: &'a dyn DatabaseFile,
    /// The segment, the memory that the processes using the log share.
    pub segment: Arc<FileSegment>,
    /// Offset of the engine's part of the segment in bytes.
    pub base: u64,
    /// Whether no other process uses the log. If so, the first [`SharedBytes::zeroed`] bytes of the engine's part are
    /// zeros.
    pub alone: bool,
    /// Whether the log belongs to another database, and this process attaches it only to apply it to a copy of that
    /// database. The engine then leaves unchanged what the log holds for the other database.
    pub of_another: bool,
    /// Whether this process has just made the log: the log is empty, and there is nothing to recover.
    pub is_new: bool,
    /// If this process is the only user of the log: the first [`SharedBytes::zeroed`] bytes of the engine's part of the
    /// segment, as they were when the last user ended. `None` if they are not known, or if the system has been
    /// restarted.
    pub left: Option<Vec<u8>>,
}

/// A log that is being attached by a user who may only read it.
pub struct AttachingOutside<'a> {
    /// The settings to use.
    pub options: &'a EngineOptions,
    /// The log's file.
    pub file: OpenFile<'a>,
    /// The segment, the memory that the processes using the log share. `None` if no process uses the log, in which
    /// case the engine reads the log as a crash has left it.
    pub shared: Option<Arc<FileSegment>>,
    /// Offset of the engine's part of the segment in bytes.
    pub base: u64,
}

/// Where an engine keeps a log: the media that it uses, and the directory of the log's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPlacement {
    /// The engine.
    pub engine: &'static Descriptor,
    /// The directory of the log's file.
    pub dir: PathBuf,
    media: MediaSet,
}

impl LogPlacement {
    /// Returns the placement of an engine's logs on these media.
    ///
    /// # Errors
    /// A text about a medium that the engine needs: the medium is missing, or it cannot be used.
    pub fn of(engine: &'static Descriptor, media: &MediaSet) -> Result<Self, String> {
        engine.needs.iter().try_for_each(|medium| media.check(*medium))?;
        let first = engine.needs.first().and_then(|medium| media.directory(*medium));
        let dir = first.ok_or("no medium for the log's file")?.to_path_buf();
        Ok(Self { engine, dir, media: media.only(engine.needs) })
    }

    /// Returns the placement of an engine's logs in the directory `dir`. The engine's first medium is in `dir`. If that
    /// medium is memory, it counts as emulated memory. `media` supplies the other media that the engine needs. If the
    /// engine needs memory for pages and `media` has none, the engine maps the database as emulated memory, in any
    /// directory.
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

    /// Returns the same placement, but each memory counts as the kind that its directory really provides
    /// ([`MediaSet::as_found`]). A log in memory has the same format in emulated and in persistent memory, so this
    /// library can open either.
    #[must_use]
    pub fn as_found(mut self) -> Self {
        self.media = self.media.as_found();
        self
    }

    /// Returns the media that the engine uses.
    #[must_use]
    pub fn media(&self) -> &MediaSet {
        &self.media
    }

    /// Returns whether a home treats the database's mapped pages as persistent or as emulated memory.
    #[must_use]
    pub fn home_kind(&self) -> MemoryKind {
        self.media.home_memory.as_ref().map_or(MemoryKind::Emulated, |memory| memory.kind)
    }

    /// Returns whether the log is in persistent memory.
    #[must_use]
    pub fn is_dax(&self) -> bool {
        let memory = self.engine.needs.first().and_then(|medium| self.media.memory(*medium));
        memory.is_some_and(|memory| memory.kind == MemoryKind::Dax)
    }

    /// Refuses a directory that cannot hold a log, so that no application relies on a log there.
    ///
    /// # Errors
    /// Says why the directory cannot hold a log, and what to do.
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
