//! Makes and opens log files of `nvwal`, which are mapped memory. The engine's descriptor refers to these functions.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use duralite_format::nvwal::{
    ACTIVE_OFFSET, GROWN_OFFSET, MAGIC, NO_BLOCK, SLOT_BYTES, SUPERBLOCK_BYTES, Slot, Superblock,
    read_active_word, slot_offset,
};
use duralite_medium::{FileNvm, Nvm};

use super::options::{NAME, SETTINGS};
use super::{Nvwal, NvwalOptions, salvage};
use crate::LogError;
use crate::engine::Engine;
use crate::engine::descriptor::{
    Attaching, AttachingOutside, Descriptor, LogHead, NewLog, OpenFile, SharedBytes,
};
use crate::engine::media::{MediaOptions, Medium};
use crate::shared::log_file;
use crate::shared::log_memory::{self, Access, Reserved, check_size, hooked};

/// The engine for byte-addressable memory.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogMemory],
    settings: SETTINGS,
    rollback_journals: false,
    writes_home: false,
    // Processes share no part of the segment, because all state that they share is in the log itself.
    shared: SharedBytes { zeroed: 0, all: 0 },
    format,
    attach,
    attach_outside,
    open_read_only: |log| Ok(Box::new(look_at(log)?)),
    inspect,
    is_empty,
    salvage: |log, _, later| salvage::salvage(map_read_only(log)?, log.path, later),
    walk: |log, database, visit| salvage::walk(map_read_only(log)?, log.path, database, visit),
    release: |_| Ok(()),
    flush_interval: |_| None,
};

/// Writes an empty log into a new file.
fn format(new: &NewLog<'_>) -> Result<(), LogError> {
    let options = within_file_system(&NvwalOptions::of(new.options), new.file.file);
    let (block_bytes, limit_blocks) = Nvwal::shape(&options, new.head.page_bytes);
    let superblock = Superblock {
        head: new.head.clone(),
        block_bytes,
        limit_blocks,
        blocks_offset: Superblock::blocks_offset_for(limit_blocks),
    };
    let access = Access::Write { dax: new.placement.is_dax() };
    let nvm = hooked(new.file.path, map(access, &new.options.media, &new.file, &superblock)?)?;
    Nvwal::format(nvm.as_ref(), &superblock)
}

/// Maps and opens a log. If no other process uses the log, repairs its heap.
fn attach(log: Attaching<'_>) -> Result<Box<dyn Engine>, LogError> {
    let Attaching { placement, options, file, alone, .. } = log;
    let superblock = superblock_of(&file)?;
    let access = Access::Write { dax: placement.is_dax() };
    let nvm = hooked(file.path, map(access, &options.media, &file, &superblock)?)?;
    let mut engine = Nvwal::open(nvm, file.path, NvwalOptions::of(options))?;
    if alone {
        engine.recover_heap()?;
    }
    Ok(Box::new(engine))
}

/// Opens a log for a user who may only read it. The reader sees what other processes commit, because it maps
/// the same memory as they do.
fn attach_outside(log: AttachingOutside<'_>) -> Result<Box<dyn Engine>, LogError> {
    let AttachingOutside { options, file, .. } = log;
    let superblock = superblock_of(&file)?;
    let nvm = hooked(file.path, map(Access::Read, &options.media, &file, &superblock)?)?;
    Ok(Box::new(Nvwal::open(nvm, file.path, NvwalOptions::of(options))?))
}

/// Opens a log for inspection. Stores nothing and takes no lock.
///
/// # Errors
/// As for attaching, except that the log may belong to any database.
pub fn open_read_only(path: &Path) -> Result<Nvwal, LogError> {
    look_at(&OpenFile { path, file: &log_file::open(path, false, |bytes| bytes.starts_with(&MAGIC))? })
}

/// Does what [`open_read_only`] does, for a file that is open already.
fn look_at(log: &OpenFile<'_>) -> Result<Nvwal, LogError> {
    let mut engine = Nvwal::open(map_read_only(log)?, log.path, NvwalOptions::default())?;
    engine.check_end()?;
    Ok(engine)
}

/// Maps a log for inspection, without reading its transactions.
fn map_read_only(log: &OpenFile<'_>) -> Result<Arc<dyn Nvm>, LogError> {
    let superblock = superblock_of(log)?;
    Ok(Arc::new(map(Access::Read, &MediaOptions::default(), log, &superblock)?))
}

/// Reads the head of a log.
fn inspect(log: &OpenFile<'_>, bytes: &[u8]) -> Result<LogHead, LogError> {
    Ok(check(log, bytes)?.head)
}

/// Returns whether the log holds no commits.
fn is_empty(log: &OpenFile<'_>) -> bool {
    // The slot in force may show that the log is empty, even if its transactions cannot be read.
    superblock_of(log).is_ok_and(|superblock| is_spent(log.file, &superblock))
        || look_at(log).is_ok_and(|log| log.transactions() == 0)
}

/// Returns the options. If they set no limit, the limit becomes the size of the file system.
fn within_file_system(options: &NvwalOptions, file: &File) -> NvwalOptions {
    let mut options = options.clone();
    if options.limit_bytes == 0
        && let Ok(stat) = rustix::fs::fstatvfs(file)
    {
        options.limit_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
    }
    options
}

fn map(
    access: Access,
    media: &MediaOptions,
    log: &OpenFile<'_>,
    superblock: &Superblock,
) -> Result<FileNvm, LogError> {
    let capacity = superblock.file_bytes(superblock.limit_blocks);
    let reserved = Reserved { first: capacity, capacity, least: superblock.file_bytes(1) };
    log_memory::map(access, media, log, reserved)
}

fn superblock_of(log: &OpenFile<'_>) -> Result<Superblock, LogError> {
    check(log, &log_file::first_bytes(log.path, log.file, SUPERBLOCK_BYTES)?)
}

/// Reads the superblock. Checks that the file is as long as the log's size word says.
fn check(log: &OpenFile<'_>, bytes: &[u8]) -> Result<Superblock, LogError> {
    let superblock = Superblock::decode(bytes)
        .map_err(|source| LogError::Format { log: log.path.to_path_buf(), source })?;
    let limit = superblock.limit_blocks;
    check_size(log, bytes, GROWN_OFFSET, limit, |blocks| superblock.file_bytes(blocks))?;
    Ok(superblock)
}

/// Returns whether the slot of the generation in force says that the log holds no commits.
fn is_spent(file: &File, superblock: &Superblock) -> bool {
    slot_of(file, superblock).is_some_and(|slot| slot.retired || slot.first_block == NO_BLOCK)
}

fn slot_of(file: &File, superblock: &Superblock) -> Option<Slot> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, ACTIVE_OFFSET).ok()?;
    let generation = read_active_word(u64::from_le_bytes(word));
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot_offset(generation)).ok()?;
    Slot::decode(&bytes, superblock.head.log_id, generation).ok()
}
