//! The file of a region. This module makes, finds and maps it, and determines which processes use it.
//!
//! A directory has one region for each combination of owner, group and mode of databases (invariant 13). Each process
//! that uses a region holds two shared locks on bytes of the region's file: one for the region, and one for its log. So
//! other processes can tell whether a log is still in use, even if the log's file is gone. The last process deletes a
//! region that no log needs.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use duralite_format::scratchpad::{
    MAGIC, Owner, PAGE_BYTES, REGION_SUPERBLOCK_BYTES, RegionId, RegionSuperblock, SUPERBLOCK_BYTES,
    Superblock,
};
use duralite_medium::process::OwnFile;
use duralite_medium::{
    ByteLock, FileNvm, Latency, MapOptions, Nvm, Persistency, lock_byte, others_hold_bytes, unlock_byte,
};
use rustc_hash::FxHashMap;
use rustix::fs::OFlags;

use crate::engine::descriptor::{LogPlacement, OpenFile};
use crate::engine::media::{MediaOptions, MemoryKind};
use crate::hooks::{self, FileStep};
use crate::shared::log_file::{self, is_in_place, make_file, publish};
use crate::shared::log_memory::hooked;
use crate::{DatabaseIdentity, LogError};

const PREFIX: &str = "duralite-region-";
/// The size of a new region in bytes, unless its limit is lower.
const FIRST_BYTES: u64 = 1 << 20;

/// The way in which a process maps the files of a log and its region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    dax: bool,
    durable_on_store: bool,
    read_only: bool,
    latency: Latency,
    persistency: Persistency,
}

impl Mapping {
    /// Returns a mapping for writing, on the media of a log directory.
    pub(super) fn of(placement: &LogPlacement, media: &MediaOptions) -> Self {
        let scratchpad = placement.media().scratchpad.as_ref();
        let durable_on_store = scratchpad.is_some_and(|scratchpad| scratchpad.durable_on_store);
        Self {
            dax: scratchpad.is_some_and(|scratchpad| scratchpad.memory.kind == MemoryKind::Dax),
            durable_on_store,
            read_only: false,
            latency: media.latency,
            persistency: if durable_on_store { Persistency::X86 } else { media.persistency },
        }
    }

    /// Returns a mapping for reading.
    pub(super) fn read_only(media: &MediaOptions) -> Self {
        let (latency, persistency) = (media.latency, Persistency::X86);
        Self { dax: false, durable_on_store: false, read_only: true, latency, persistency }
    }

    /// Returns a mapping for writing, for a caller that does not know the media. The mapping assumes that stores have
    /// to be flushed.
    pub(super) fn flushed() -> Self {
        Self { read_only: false, ..Self::read_only(&MediaOptions::default()) }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn is_dax(&self) -> bool {
        self.dax
    }

    /// Maps a file, and reserves `capacity` bytes of address space.
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

/// An open region.
pub(super) struct RegionFile {
    pub(super) path: PathBuf,
    pub(super) file: OwnFile,
}

impl RegionFile {
    /// The byte that a process locks exclusively while it grows the file.
    pub(super) const GROWING_AT: i64 = 1 << 41;
    /// The byte on which every process that uses the region holds a shared lock.
    const USERS_AT: i64 = 1 << 42;
    /// The first of the bytes that processes lock for the logs that they use.
    const LOGS_AT: i64 = 1 << 43;
    pub(super) const TRIES: u32 = 200;
    pub(super) const PAUSE: Duration = Duration::from_millis(1);

    fn log_at(owner: Owner) -> i64 {
        Self::LOGS_AT + (owner.number() >> 14) as i64
    }

    /// Takes the shared lock by which this process announces that it uses a log.
    pub(super) fn hold(&self, owner: Owner) -> Result<(), LogError> {
        let held = lock_byte(&self.file, ByteLock::Shared, Self::log_at(owner));
        let held = held.map_err(|source| LogError::Medium { path: self.path.clone(), source })?;
        if held { Ok(()) } else { Err(self.busy()) }
    }

    /// Makes this process's lock on a log's byte exclusive. Returns `false` if another process uses the log; this process
    /// then keeps its earlier lock.
    pub(super) fn hold_alone(&self, owner: Owner) -> Result<bool, LogError> {
        lock_byte(&self.file, ByteLock::Exclusive, Self::log_at(owner))
            .map_err(|source| LogError::Medium { path: self.path.clone(), source })
    }

    /// Releases the lock of a log.
    pub(super) fn let_go(&self, owner: Owner) {
        unlock_byte(&self.file, Self::log_at(owner));
    }

    /// Returns whether another process uses a log.
    fn is_held(&self, owner: Owner) -> bool {
        others_hold_bytes(&self.file, Self::log_at(owner), 1).unwrap_or(true)
    }

    fn busy(&self) -> LogError {
        let what = "another process is deleting this region; try again";
        LogError::Busy { path: self.path.clone(), what }
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Returns which of these owners are missing. The log of a missing owner is not in the region's directory, and no
    /// process uses it.
    pub(super) fn missing(
        &self,
        id: RegionId,
        owners: &FxHashMap<Owner, u32>,
    ) -> Result<Vec<Owner>, LogError> {
        if owners.is_empty() {
            return Ok(Vec::new());
        }
        let there = self.logs(id)?;
        let is_missing = |owner: &Owner| !there.contains(owner) && !self.is_held(*owner);
        Ok(owners.keys().copied().filter(is_missing).collect())
    }

    /// Returns the owners of the logs that are in the region's directory.
    pub(super) fn logs(&self, id: RegionId) -> Result<Vec<Owner>, LogError> {
        logs_of(self.dir(), id).map_err(|error| LogError::io("look for logs in", self.dir(), &error))
    }

    /// Returns `true` if only this process uses the region. In that case no other process can begin to use it before
    /// this process closes the file.
    pub(super) fn is_unused(&self) -> bool {
        lock_byte(&self.file, ByteLock::Exclusive, Self::USERS_AT).unwrap_or(false)
    }

    /// Deletes a region that no process uses, unless a log names it.
    pub(super) fn remove_unused(&self, id: RegionId) {
        if is_in_place(&self.path, &self.file).unwrap_or(false)
            && logs_of(self.dir(), id).is_ok_and(|logs| logs.is_empty())
            && hooks::step(FileStep::Remove, &self.path).is_ok()
        {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Returns the owners of the logs in a directory that have their pages in this region, including logs that were put
/// aside.
fn logs_of(dir: &Path, id: RegionId) -> io::Result<Vec<Owner>> {
    let mut owners = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let may_be = path.file_name().is_some_and(|name| contains(name, b"-duralite"));
        if !may_be {
            continue;
        }
        let file = match log_file::open(&path, false, |bytes| bytes.starts_with(&MAGIC)) {
            Ok(file) => file,
            Err(LogError::Format { .. } | LogError::Io { kind: io::ErrorKind::NotFound, .. }) => {
                continue;
            }
            // Fail, because this file cannot be read. It may be a log with pages in this region, and no other log may
            // get these pages.
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        let bytes = log_file::first_bytes(&path, &file, SUPERBLOCK_BYTES)
            .map_err(|error| io::Error::other(error.to_string()))?;
        if let Ok(superblock) = Superblock::decode(&bytes)
            && superblock.region == id
        {
            owners.push(Owner::of(superblock.head.log_id));
        }
    }
    Ok(owners)
}

fn contains(name: &OsStr, part: &[u8]) -> bool {
    name.as_bytes().windows(part.len()).any(|window| window == part)
}

/// Returns the region for a new log: the one in the directory of the log's file, with the file's owner, group and mode.
/// Makes the region if it does not exist.
pub(super) fn open_or_make(
    log: &OpenFile<'_>,
    mapping: &Mapping,
    limit_bytes: u64,
) -> Result<(RegionFile, RegionSuperblock), LogError> {
    let dir = log.path.parent().unwrap_or(Path::new("."));
    let db = DatabaseIdentity::of_open(log.file, log.path)?;
    let path = dir.join(format!("{PREFIX}{}-{}-{:o}", db.uid, db.gid, db.mode));
    for _ in 0..RegionFile::TRIES {
        if let Some(found) = open(&path, &db, true)? {
            return Ok(found);
        }
        match make(dir, &path, &db, mapping, limit_bytes) {
            Ok(()) => {}
            Err(LogError::Io { kind: io::ErrorKind::AlreadyExists, .. }) => {
                std::thread::sleep(RegionFile::PAUSE)
            }
            Err(error) => return Err(error),
        }
    }
    let what = "other processes are creating or deleting this region; try again";
    Err(LogError::Busy { path, what })
}

/// Opens a region and takes the shared lock that its users hold. Returns `None` if the region does not exist, is
/// incomplete, or is being deleted.
fn open(
    path: &Path,
    db: &DatabaseIdentity,
    write: bool,
) -> Result<Option<(RegionFile, RegionSuperblock)>, LogError> {
    let failed = |error: io::Error| LogError::io("open the region", path, &error);
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(flags());
    let file = match OwnFile::open(|| options.open(path)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || !db.trusts(&meta) {
        return Err(LogError::Owner(path.to_path_buf()));
    }
    let region = RegionFile { path: path.to_path_buf(), file };
    let used = lock_byte(&region.file, ByteLock::Shared, RegionFile::USERS_AT);
    let used = used.map_err(|source| LogError::Medium { path: path.to_path_buf(), source })?;
    if !used || !is_in_place(path, &region.file)? {
        std::thread::sleep(RegionFile::PAUSE);
        return Ok(None);
    }
    let superblock = superblock_of(path, &region.file)?;
    Ok(superblock.map(|superblock| (region, superblock)))
}

/// Returns the flags for opening a region. With these flags, opening returns at once even if the file is a pipe with the name
/// of a region.
fn flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// Reads the superblock of a region; returns `None` if another process is still making the region.
fn superblock_of(path: &Path, file: &File) -> Result<Option<RegionSuperblock>, LogError> {
    let mut bytes = [0; REGION_SUPERBLOCK_BYTES];
    let length = file.read_at(&mut bytes, 0).map_err(|error| LogError::io("read", path, &error))?;
    if bytes[..length].iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let format = |source| LogError::Format { log: path.to_path_buf(), source };
    RegionSuperblock::decode(&bytes[..length]).map(Some).map_err(format)
}

fn make(
    dir: &Path,
    path: &Path,
    db: &DatabaseIdentity,
    mapping: &Mapping,
    limit_bytes: u64,
) -> Result<(), LogError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id)
        .map_err(|error| LogError::io("draw random bytes for", path, &io::Error::other(error.to_string())))?;
    let superblock = RegionSuperblock::for_bytes(RegionId(id), limit_bytes);
    let file = make_file(dir, path, db)?;
    let nvm = hooked(path, mapping.map(&OpenFile { path, file: &file }, superblock.limit_bytes())?)?;
    let first = FIRST_BYTES.clamp(2 * PAGE_BYTES, superblock.limit_bytes());
    nvm.grow(first).map_err(|source| LogError::Medium { path: path.to_path_buf(), source })?;
    nvm.store(0, &superblock.encode());
    nvm.flush(0, REGION_SUPERBLOCK_BYTES as u64);
    nvm.fence();
    publish(path, &file).map_err(|error| LogError::io("make", path, &error))
}

/// Finds the region of a log by its id, in the log's directory or in the directory where the region was when the log was
/// made.
pub(super) fn find(
    log: &OpenFile<'_>,
    superblock: &Superblock,
    write: bool,
) -> Result<(RegionFile, RegionSuperblock), LogError> {
    let db = DatabaseIdentity::of_open(log.file, log.path)?;
    let beside = log.path.parent().unwrap_or(Path::new(".")).to_path_buf();
    let made_in = PathBuf::from(std::ffi::OsString::from_vec(superblock.region_dir.clone()));
    let mut searched = vec![beside];
    if !superblock.region_dir.is_empty() && !searched.contains(&made_in) {
        searched.push(made_in);
    }
    for _ in 0..RegionFile::TRIES {
        match find_in(&searched, superblock, &db, write)? {
            Found::Open(found) => return Ok(*found),
            // Try again. A process that closes the region locks it exclusively for a moment, to check whether any log
            // needs it.
            Found::Taken => std::thread::sleep(RegionFile::PAUSE),
            Found::Nowhere => break,
        }
    }
    let searched: Vec<_> = searched.iter().map(|dir| dir.display().to_string()).collect();
    let (log, region, searched) = (log.path.to_path_buf(), superblock.region, searched.join(", "));
    Err(LogError::NoRegion { log, region, searched })
}

/// The result of the search for a region.
enum Found {
    Open(Box<(RegionFile, RegionSuperblock)>),
    /// The region exists, but no process can open it at the moment.
    Taken,
    Nowhere,
}

fn find_in(
    dirs: &[PathBuf],
    superblock: &Superblock,
    db: &DatabaseIdentity,
    write: bool,
) -> Result<Found, LogError> {
    let mut found = Found::Nowhere;
    // Keep the error for a region that cannot be examined, because it may be the region that this function looks for.
    let mut unknown = None;
    let mut paths = Vec::new();
    for dir in dirs {
        match regions_in(dir) {
            Ok(regions) => paths.extend(regions),
            Err(error) => unknown = unknown.or(Some(LogError::io("read directory", dir, &error))),
        }
    }
    for path in paths {
        let is_it =
            |bytes: &[u8]| RegionSuperblock::decode(bytes).is_ok_and(|found| found.id == superblock.region);
        let mut bytes = [0; REGION_SUPERBLOCK_BYTES];
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags());
        let file = match OwnFile::open(|| options.open(&path)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                unknown = unknown.or(Some(LogError::io("open", &path, &error)));
                continue;
            }
        };
        if !matches!(file.read_at(&mut bytes, 0), Ok(length) if is_it(&bytes[..length])) {
            continue;
        }
        match open(&path, db, write)? {
            Some(open) => return Ok(Found::Open(Box::new(open))),
            None => found = Found::Taken,
        }
    }
    match (found, unknown) {
        (Found::Nowhere, Some(error)) => Err(error),
        (found, _) => Ok(found),
    }
}

/// Opens a region by its path, for the region's owner or a user whom the owner trusts. Returns `None` if the region does
/// not exist, or is being deleted.
///
/// # Errors
/// `Io`, `Owner`, `Format`.
pub(super) fn open_named(path: &Path) -> Result<Option<(RegionFile, RegionSuperblock)>, LogError> {
    open(path, &DatabaseIdentity::of(path)?, true)
}

/// Maps a region for writing.
pub(super) fn map_whole(
    region: &RegionFile,
    superblock: &RegionSuperblock,
) -> Result<Arc<dyn Nvm>, LogError> {
    let file = OpenFile { path: &region.path, file: &region.file };
    hooked(&region.path, Mapping::flushed().map(&file, superblock.limit_bytes())?)
}

/// Returns the regions in a directory, or none if the directory does not exist.
pub(super) fn regions_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let is_region = |name: &OsStr| name.as_bytes().starts_with(PREFIX.as_bytes());
    let mut regions = Vec::new();
    for entry in entries {
        let entry = entry?;
        if is_region(&entry.file_name()) {
            regions.push(entry.path());
        }
    }
    Ok(regions)
}

/// Returns whether a file has the name of a region.
#[must_use]
pub fn is_region_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
}

/// Returns the directory of a region. The region's logs store it in their superblocks. Returns nothing if the directory
/// cannot be determined.
pub(super) fn told_dir(region: &RegionFile) -> Vec<u8> {
    let dir = region.path.parent().and_then(|dir| dir.canonicalize().ok());
    dir.map(|dir| dir.into_os_string().into_vec()).unwrap_or_default()
}
