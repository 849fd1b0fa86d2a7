//! Makes and opens log files of `ppl`, which are mapped memory. The engine's descriptor refers to these functions.

use std::path::Path;
use std::sync::Arc;

use duralite_format::heap::checked_word;
use duralite_format::ppl::{
    Extent, GROWN_OFFSET, MAGIC, NO_LIMIT_CHUNKS, SECTORS_PER_CHUNK, SUPERBLOCK_BYTES, Superblock,
};
use duralite_medium::{FileNvm, LocalSegment, MediumError, Nvm, Segment};
use rustc_hash::FxHashMap;

use super::area::Area;
use super::chain::Pages;
use super::options::{NAME, SETTINGS};
use super::recovery::{last_commit, scan};
use super::store::Store;
use super::words::{PIECES_USED, SECTORS_USED, SHARED, SLOTS, Words};
use super::{Ppl, PplOptions, salvage};
use crate::LogError;
use crate::engine::Engine;
use crate::engine::descriptor::{Attaching, AttachingOutside, Descriptor, LogHead, NewLog, OpenFile};
use crate::engine::media::{MediaOptions, Medium};
use crate::hooks;
use crate::shared::log_file;
use crate::shared::log_memory::{Access, Reserved, check_size, first_bytes, hooked, map};
use crate::shared::pins::{PINS_OFFSET, Pins};

/// The number of bytes of the segment that the processes using a log share.
pub const SHARED_BYTES: u64 = SHARED.all;
/// The usual size of sectors and pool together, in bytes, if the settings give no size. For large pages it is higher.
const USUAL_BYTES: u64 = 64 << 20;
/// The least number of lists in the page table of a log without a limit. Such a log may hold more pages than a log
/// of the usual size.
const BUCKETS: u32 = 1 << 14;
/// A new log has slots for this many bytes of page images.
const SLOTS_BYTES: u32 = 512 << 10;

/// The engine for flash memory that should wear less.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogMemory],
    settings: SETTINGS,
    rollback_journals: false,
    writes_home: true,
    shared: SHARED,
    format,
    attach,
    attach_outside,
    open_read_only: |log| Ok(Box::new(look_at(log)?)),
    inspect,
    is_empty,
    salvage: |log, database, later| {
        let (area, superblock) = area_read_only(log)?;
        salvage::salvage(area, &superblock, database, later)
    },
    walk: |log, database, visit| salvage::walk(look_at(log), || area_read_only(log), database, visit),
    release: |_| Ok(()),
    flush_interval: |_| None,
};

/// Returns the superblock of a new log.
pub(super) fn shape(options: &PplOptions, head: &LogHead) -> Superblock {
    let page_bytes = head.page_bytes;
    let mut superblock = Superblock {
        head: head.clone(),
        sector_bytes: options.sector_bytes,
        limit_chunks: 1,
        usual_chunks: 1,
        slots: (SLOTS_BYTES / page_bytes).clamp(8, SLOTS as u32),
        buckets: 1,
    };
    let usual_bytes = match (options.limit_bytes, options.usual_bytes) {
        // The log has space for all pages that SQLite may write between two automatic checkpoints, which are about a
        // thousand.
        (0, 0) => USUAL_BYTES.max(4096 * u64::from(page_bytes)),
        (0, bytes) | (bytes, _) => bytes,
    };
    let chunks = usual_bytes / superblock.geometry().chunk_bytes;
    superblock.usual_chunks = u32::try_from(chunks).unwrap_or(u32::MAX).clamp(4, NO_LIMIT_CHUNKS);
    let sectors = superblock.usual_chunks * SECTORS_PER_CHUNK;
    superblock.buckets = (sectors / 4).next_power_of_two().min(1 << 20);
    if options.limit_bytes == 0 {
        superblock.limit_chunks = NO_LIMIT_CHUNKS;
        superblock.buckets = superblock.buckets.max(BUCKETS);
    } else {
        superblock.limit_chunks = superblock.usual_chunks;
    }
    superblock
}

/// Writes an empty log into a new file.
pub(super) fn format(new: &NewLog<'_>) -> Result<(), LogError> {
    let superblock = shape(&PplOptions::of(new.options), &new.head);
    let access = Access::Write { dax: new.placement.is_dax() };
    let nvm = map_log(access, &new.options.media, &new.file, &superblock)?;
    Ppl::format(nvm.as_ref(), &superblock)
        .map_err(|source| LogError::Medium { path: new.file.path.to_path_buf(), source })
}

/// Logs on a medium that the caller provides.
impl Ppl {
    /// Writes an empty log onto a medium of zeros. The log is durable on return, as far as the medium is durable.
    ///
    /// # Errors
    /// The medium's error if the medium cannot grow.
    pub fn format(nvm: &dyn Nvm, superblock: &Superblock) -> Result<(), MediumError> {
        nvm.grow(superblock.geometry().file_bytes(0))?;
        nvm.store(0, &superblock.encode());
        nvm.store_u64(GROWN_OFFSET, checked_word(0));
        nvm.flush(0, SUPERBLOCK_BYTES);
        nvm.fence();
        Ok(())
    }

    /// Opens a log. The processes using it share [`SHARED_BYTES`] of `segment` from `base` on. If no other process
    /// uses the log (`alone`), those bytes are zeros, and this call recovers the log.
    ///
    /// # Errors
    /// `Format` and `Corrupt`; `Medium`.
    pub fn attach(
        nvm: Arc<dyn Nvm>,
        path: &Path,
        options: &PplOptions,
        segment: Arc<dyn Segment>,
        base: u64,
        alone: bool,
    ) -> Result<Self, LogError> {
        let superblock = superblock_on(nvm.as_ref(), path)?;
        let area = Area::new(nvm, &superblock, path)?;
        join(area, superblock, options, Words::new(segment, base), None, alone)
    }

    /// Opens a log read-only, as recovery would leave it. Stores nothing and takes no lock.
    ///
    /// # Errors
    /// `Format` and `Corrupt`.
    pub fn open_read_only(nvm: Arc<dyn Nvm>, path: &Path) -> Result<Self, LogError> {
        let superblock = superblock_on(nvm.as_ref(), path)?;
        open_scanned(Area::new(nvm, &superblock, path)?, superblock)
    }
}

fn superblock_on(nvm: &dyn Nvm, path: &Path) -> Result<Superblock, LogError> {
    Superblock::decode(&first_bytes(nvm, SUPERBLOCK_BYTES))
        .map_err(|source| LogError::Format { log: path.to_path_buf(), source })
}

/// Maps and opens a log. If no other process uses the log, recovers it.
pub(super) fn attach(log: Attaching<'_>) -> Result<Box<dyn Engine>, LogError> {
    let Attaching { placement, options, file, segment, base, alone, .. } = log;
    let superblock = superblock_of(&file)?;
    let access = Access::Write { dax: placement.is_dax() };
    let nvm = map_log(access, &options.media, &file, &superblock)?;
    let area = Area::new(nvm, &superblock, file.path)?;
    let segment: Arc<dyn Segment> = segment;
    let pins = Pins::new(Arc::clone(&segment), PINS_OFFSET);
    let words = Words::new(hooks::segment(file.path, segment), base);
    let options = PplOptions::of(options);
    Ok(Box::new(join(area, superblock, &options, words, Some(pins), alone)?))
}

/// Joins the processes that use a log. If there are none, recovers the log.
fn join(
    area: Area,
    superblock: Superblock,
    options: &PplOptions,
    words: Words,
    pins: Option<Pins>,
    alone: bool,
) -> Result<Ppl, LogError> {
    let store = Store::new(area, words, Pages::Shared, &superblock, options);
    let store = Store { pins, ..store };
    if alone {
        store.recover()?;
    } else if store.words.forget_predecessor() {
        drop(store.lock()?);
    }
    Ppl::new(store, superblock, options)
}

/// Opens a log for a user who may only read it. With shared memory, this user sees what others commit from now on.
pub(super) fn attach_outside(log: AttachingOutside<'_>) -> Result<Box<dyn Engine>, LogError> {
    let AttachingOutside { options, file, shared, base } = log;
    let Some(segment) = shared else { return Ok(Box::new(look_at(&file)?)) };
    let superblock = superblock_of(&file)?;
    let nvm = map_log(Access::Read, &options.media, &file, &superblock)?;
    let area = Area::new(nvm, &superblock, file.path)?;
    let options = PplOptions::of(options);
    let store = Store::new(area, Words::new(segment, base), Pages::Shared, &superblock, &options);
    Ok(Box::new(Ppl::new(store, superblock, &options)?))
}

/// Opens a log read-only, as recovery would leave it. Stores nothing and takes no lock.
pub(super) fn look_at(log: &OpenFile<'_>) -> Result<Ppl, LogError> {
    let (area, superblock) = area_read_only(log)?;
    open_scanned(area, superblock)
}

/// Maps a log read-only. Does not read its chains.
pub(super) fn area_read_only(log: &OpenFile<'_>) -> Result<(Area, Superblock), LogError> {
    let superblock = superblock_of(log)?;
    let nvm = Arc::new(map_file(Access::Read, &MediaOptions::default(), log, &superblock)?);
    Ok((Area::new(nvm, &superblock, log.path)?, superblock))
}

/// Opens a mapped log read-only, with the chains that a scan finds.
fn open_scanned(area: Area, superblock: Superblock) -> Result<Ppl, LogError> {
    let last = last_commit(&area)?;
    let scanned = scan(&area, superblock.head.page_bytes, last.number, |_| false)?;
    let chains: FxHashMap<_, _> =
        scanned.chains.into_iter().map(|(page, (chain, _))| (page, chain)).collect();
    let words = Words::new(Arc::new(LocalSegment::new(SHARED.all)), 0);
    let extents = chains.values().flat_map(|chain| &chain.extents);
    let (pieces, sectors): (Vec<Extent>, Vec<Extent>) = extents.partition(|extent| extent.is_piece());
    words.store(SECTORS_USED, sectors.len() as u64);
    words.store(PIECES_USED, pieces.len() as u64);
    words.begin_after(&last);
    let options = PplOptions::default();
    let store = Store::new(area, words, Pages::Scanned(chains), &superblock, &options);
    Ppl::new(store, superblock, &options)
}

/// Reads the head of a log.
pub(super) fn inspect(log: &OpenFile<'_>, bytes: &[u8]) -> Result<LogHead, LogError> {
    Ok(check(log, bytes)?.head)
}

/// Returns whether the database file has everything that the log holds.
pub(super) fn is_empty(log: &OpenFile<'_>) -> bool {
    look_at(log).is_ok_and(|log| log.is_spent())
}

fn map_log(
    access: Access,
    media: &MediaOptions,
    log: &OpenFile<'_>,
    superblock: &Superblock,
) -> Result<Arc<dyn Nvm>, LogError> {
    hooked(log.path, map_file(access, media, log, superblock)?)
}

fn map_file(
    access: Access,
    media: &MediaOptions,
    log: &OpenFile<'_>,
    superblock: &Superblock,
) -> Result<FileNvm, LogError> {
    let geometry = superblock.geometry();
    let (usual, limit) = (superblock.usual_chunks, superblock.limit_chunks);
    let reserved = Reserved {
        first: geometry.file_bytes(usual),
        capacity: geometry.file_bytes(limit),
        least: geometry.file_bytes(1),
    };
    map(access, media, log, reserved)
}

fn superblock_of(log: &OpenFile<'_>) -> Result<Superblock, LogError> {
    check(log, &log_file::first_bytes(log.path, log.file, SUPERBLOCK_BYTES)?)
}

/// Reads the superblock, and checks that the file is as long as the log's size word says.
fn check(log: &OpenFile<'_>, bytes: &[u8]) -> Result<Superblock, LogError> {
    let superblock = Superblock::decode(bytes)
        .map_err(|source| LogError::Format { log: log.path.to_path_buf(), source })?;
    let (geometry, limit) = (superblock.geometry(), superblock.limit_chunks);
    check_size(log, bytes, GROWN_OFFSET, limit, |chunks| geometry.file_bytes(chunks))?;
    Ok(superblock)
}
