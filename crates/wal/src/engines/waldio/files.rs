//! Makes and opens log files of `waldio`, which are preallocated blocks. The engine's descriptor refers to these functions.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use duralite_format::waldio::{AREA_BYTES, DATA_OFFSET, MAGIC, Superblock};
use duralite_medium::MediumError;
use duralite_medium::block::{Block, BlockOptions, Durability, FileBlock};

use super::options::{NAME, SETTINGS, flush_interval};
use super::recovery::NEW;
use super::{SHARED_BYTES, STATE_BYTES, Waldio, WaldioOptions, salvage};
use crate::engine::Engine;
use crate::engine::descriptor::{
    Attaching, AttachingOutside, Descriptor, LogHead, NewLog, OpenFile, SharedBytes,
};
use crate::engine::media::Medium;
use crate::shared::{group, log_file};
use crate::{LogError, hooks};

/// The engine for disks.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogBlocks],
    settings: SETTINGS,
    rollback_journals: false,
    writes_home: false,
    shared: SharedBytes { zeroed: STATE_BYTES, all: SHARED_BYTES },
    format,
    attach,
    attach_outside,
    open_read_only: |log| Ok(Box::new(look_at(log)?)),
    inspect,
    is_empty,
    walk: |log, database, visit| {
        let (block, superblock) = blocks_read_only(log)?;
        salvage::walk(block, superblock, log.path, database, visit)
    },
    salvage: |log, _, later| {
        let (block, superblock) = blocks_read_only(log)?;
        salvage::salvage(block, superblock, log.path, later)
    },
    release: |_| Ok(()),
    flush_interval,
};

/// Writes an empty log into a new file.
fn format(new: &NewLog<'_>) -> Result<(), LogError> {
    let options = WaldioOptions::of(new.options);
    let wanted = Some(options.block_bytes).filter(|bytes| *bytes != 0);
    let block = hooked(new.file.path, blocks(&options, &new.file, wanted, false)?)?;
    let superblock = Superblock {
        head: new.head.clone(),
        block_bytes: block.block_bytes(),
        layout: options.layout,
        limit_bytes: options.limit().max(AREA_BYTES * 8),
    };
    Waldio::format(block.as_ref(), &superblock)
}

/// Attaches a log. If no other process uses the log, recovers it.
fn attach(log: Attaching<'_>) -> Result<Box<dyn Engine>, LogError> {
    let Attaching { file, segment, base, alone, is_new, left, .. } = log;
    let options = WaldioOptions::of(log.options);
    let superblock = superblock_of(file.path, file.file)?;
    let block = hooked(file.path, blocks(&options, &file, Some(superblock.block_bytes), false)?)?;
    Ok(Box::new(match (alone, is_new) {
        (true, false) => {
            // Use the words only if each group was flushed before the next group was written. Otherwise earlier groups
            // may be lost although the words say that they are durable. For example, somebody may have unplugged the
            // disk after the processes ended.
            let left = left.filter(|_| options.waits() && options.durability != Durability::Normal);
            let left = left.and_then(|words| group::left(&words, DATA_OFFSET));
            // If the file is longer than the words say, a process may have died while it preallocated space. In that
            // case the file's length may not be durable, so do not use the words.
            let left =
                left.filter(|left| left.settings == options.fingerprint() && left.file_bytes == block.len());
            let left = left.map(|left| left.end);
            Waldio::recover(block, superblock, file.path, &options, (segment, base), left)?
        }
        (false, _) => Waldio::join(block, superblock, file.path, &options, segment, base, None)?,
        (true, true) => Waldio::join(block, superblock, file.path, &options, segment, base, Some(NEW))?,
    }))
}

/// Attaches a log for a user who may only read it. With a segment the reader joins the processes that share it. Without a
/// segment it reads the log as a crash has left it.
fn attach_outside(log: AttachingOutside<'_>) -> Result<Box<dyn Engine>, LogError> {
    let AttachingOutside { file, shared, base, .. } = log;
    let options = WaldioOptions::of(log.options);
    let superblock = superblock_of(file.path, file.file)?;
    let block = hooked(file.path, blocks(&options, &file, Some(superblock.block_bytes), true)?)?;
    Ok(Box::new(match shared {
        Some(segment) => Waldio::attach(block, superblock, file.path, &options, segment, base, false)?,
        None => Waldio::open_read_only(block, superblock, file.path)?,
    }))
}

fn blocks(
    options: &WaldioOptions,
    log: &OpenFile<'_>,
    block_bytes: Option<u32>,
    read_only: bool,
) -> Result<FileBlock, LogError> {
    let OpenFile { path, file } = *log;
    let failed = |source: MediumError| LogError::Medium { path: path.to_path_buf(), source };
    let file = file.try_clone().map_err(|error| LogError::io("open", path, &error))?;
    let options = BlockOptions { block_bytes, access: options.access, read_only };
    FileBlock::open(file, path, &options).map_err(failed)
}

fn hooked(path: &Path, block: FileBlock) -> Result<Arc<dyn Block>, LogError> {
    hooks::block(path, Arc::new(block))
        .map_err(|source| LogError::Medium { path: path.to_path_buf(), source })
}

fn superblock_of(path: &Path, file: &File) -> Result<Superblock, LogError> {
    decode(path, &log_file::first_bytes(path, file, AREA_BYTES)?)
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Superblock, LogError> {
    Superblock::decode(bytes).map_err(|source| LogError::Format { log: path.to_path_buf(), source })
}

/// Reads the head of a log.
fn inspect(log: &OpenFile<'_>, bytes: &[u8]) -> Result<LogHead, LogError> {
    Ok(decode(log.path, bytes)?.head)
}

/// Opens the blocks of a log for inspection.
fn blocks_read_only(log: &OpenFile<'_>) -> Result<(Arc<dyn Block>, Superblock), LogError> {
    let superblock = superblock_of(log.path, log.file)?;
    let block = blocks(&WaldioOptions::default(), log, Some(superblock.block_bytes), true)?;
    Ok((Arc::new(block), superblock))
}

/// Opens a log for inspection. Writes nothing and takes no lock.
fn look_at(log: &OpenFile<'_>) -> Result<Waldio, LogError> {
    let (block, superblock) = blocks_read_only(log)?;
    Waldio::open_read_only(block, superblock, log.path)
}

/// Returns whether the log holds no commits. Also returns `true` if a power loss has damaged the log's head and everything
/// after the head is zeros.
fn is_empty(log: &OpenFile<'_>) -> bool {
    look_at(log).is_ok_and(|log| log.transactions() == 0)
        || log_file::has_only_zeros_from(log.file, DATA_OFFSET)
}
