//! Log files of `waldio`: preallocated blocks.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use duralite_logfmt::LogId;
use duralite_logfmt::waldio::{AREA_BYTES, Superblock};
use duralite_medium::block::{Block, BlockOptions, FileBlock};
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError};

use super::{DatabaseIdentity, files, head, identity, tap};
use crate::engine::Engine;
use crate::waldio::Waldio;
use crate::{EngineOptions, JournalError};

/// Writes an empty log into a new file.
pub(super) fn format(
    options: &EngineOptions,
    db: &DatabaseIdentity,
    path: &Path,
    file: &OwnFile,
    log_id: LogId,
    page_bytes: u32,
) -> Result<(), JournalError> {
    let wanted = Some(options.waldio.block_bytes).filter(|bytes| *bytes != 0);
    let block = tapped(path, blocks(options, path, file, wanted, false)?)?;
    let superblock = Superblock {
        page_bytes,
        log_id,
        db_inode: db.inode,
        db_birth_ns: db.birth_ns,
        block_bytes: block.block_bytes(),
        layout: options.waldio.layout,
        limit_bytes: options.waldio.limit().max(AREA_BYTES * 8),
        path: db.path_hint().to_vec(),
        file: identity::of_log(file),
    };
    Waldio::format(block.as_ref(), &superblock)
}

/// Opens a log; whoever is alone recovers it.
pub(super) fn open(
    options: &EngineOptions,
    path: &Path,
    file: &OwnFile,
    segment: Arc<FileSegment>,
    base: u64,
    alone: bool,
) -> Result<Box<dyn Engine>, JournalError> {
    let superblock = superblock_of(path, file)?;
    let block = tapped(path, blocks(options, path, file, Some(superblock.block_bytes), false)?)?;
    let engine = Waldio::attach(block, superblock, path, &options.waldio, segment, base, alone)?;
    Ok(Box::new(engine))
}

/// Opens a log as a user who may only read it, along with those who share the segment or, without one, as a
/// crash has left it.
pub(super) fn open_outside(
    options: &EngineOptions,
    path: &Path,
    file: &OwnFile,
    shared: Option<Arc<FileSegment>>,
    base: u64,
) -> Result<Box<dyn Engine>, JournalError> {
    let superblock = superblock_of(path, file)?;
    let block = tapped(path, blocks(options, path, file, Some(superblock.block_bytes), true)?)?;
    Ok(Box::new(match shared {
        Some(segment) => Waldio::attach(block, superblock, path, &options.waldio, segment, base, false)?,
        None => Waldio::open_read_only(block, superblock, path)?,
    }))
}

fn blocks(
    options: &EngineOptions,
    path: &Path,
    file: &OwnFile,
    block_bytes: Option<u32>,
    read_only: bool,
) -> Result<FileBlock, JournalError> {
    let failed = |source: MediumError| JournalError::Medium { path: path.to_path_buf(), source };
    let file = file.try_clone().map_err(|error| JournalError::io("open", path, &error))?;
    let options = BlockOptions { block_bytes, access: options.waldio.access, read_only };
    FileBlock::open(file, path, &options).map_err(failed)
}

fn tapped(path: &Path, block: FileBlock) -> Result<Arc<dyn Block>, JournalError> {
    tap::block(path, Arc::new(block))
        .map_err(|source| JournalError::Medium { path: path.to_path_buf(), source })
}

fn superblock_of(path: &Path, file: &File) -> Result<Superblock, JournalError> {
    let bytes = head::first_bytes(path, file, AREA_BYTES)?;
    Superblock::decode(&bytes).map_err(|source| JournalError::Format { log: path.to_path_buf(), source })
}

/// Opens the blocks of a log to look at them.
///
/// # Errors
/// `Io`, `Format`, `Medium`.
pub fn open_blocks_read_only(path: &Path) -> Result<(Arc<dyn Block>, Superblock), JournalError> {
    let file = files::open(path, false)?;
    let superblock = superblock_of(path, &file)?;
    let block = blocks(&EngineOptions::default(), path, &file, Some(superblock.block_bytes), true)?;
    Ok((Arc::new(block), superblock))
}

/// Opens a log to look at it: nothing is written, no lock is taken.
///
/// # Errors
/// As for attaching, but whatever database it belongs to.
pub fn open_disk_read_only(path: &Path) -> Result<Waldio, JournalError> {
    let (block, superblock) = open_blocks_read_only(path)?;
    Waldio::open_read_only(block, superblock, path)
}
