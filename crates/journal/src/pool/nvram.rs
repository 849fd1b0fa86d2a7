//! Log files of `nvwal`: mapped memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use duralite_logfmt::nvwal::{
    ACTIVE_OFFSET, NO_BLOCK, SLOT_BYTES, SUPERBLOCK_BYTES, Slot, Superblock, read_active_word,
    read_checked_word, slot_offset,
};
use duralite_logfmt::{FormatError, LogId};
use duralite_medium::process::OwnFile;
use duralite_medium::{FileNvm, MapOptions, MediumError, Nvm};

use super::{DatabaseIdentity, PoolConfig, PoolKind, files, head, identity, tap};
use crate::engine::Engine;
use crate::nvwal::{Nvwal, NvwalOptions};
use crate::{EngineOptions, JournalError};

/// Writes an empty log into a new file.
pub(super) fn format(
    pool: &PoolConfig,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    path: &Path,
    file: &OwnFile,
    log_id: LogId,
    page_bytes: u32,
) -> Result<(), JournalError> {
    let (block_bytes, limit_blocks) = Nvwal::shape(&within_file_system(&options.nvwal, file), page_bytes);
    let superblock = Superblock {
        page_bytes,
        log_id,
        db_inode: db.inode,
        db_birth_ns: db.birth_ns,
        block_bytes,
        limit_blocks,
        blocks_offset: Superblock::blocks_offset_for(limit_blocks),
        path: db.path_hint().to_vec(),
        file: identity::of_log(file),
    };
    let nvm = tapped(path, map(pool.kind, options, path, file, &superblock, false)?)?;
    Nvwal::format(nvm.as_ref(), &superblock)
}

/// Maps and opens a log; whoever is alone repairs its heap.
pub(super) fn open(
    pool: &PoolConfig,
    options: &EngineOptions,
    path: &Path,
    file: &OwnFile,
    alone: bool,
) -> Result<Box<dyn Engine>, JournalError> {
    let superblock = check(path, file, &head::first_bytes(path, file, SUPERBLOCK_BYTES)?)?;
    let nvm = tapped(path, map(pool.kind, options, path, file, &superblock, false)?)?;
    let mut engine = Nvwal::open(nvm, path, options.nvwal.clone())?;
    if alone {
        engine.recover_heap()?;
    }
    Ok(Box::new(engine))
}

/// The options, with the size of the file system for a limit where there is none.
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
    kind: PoolKind,
    options: &EngineOptions,
    path: &Path,
    file: &OwnFile,
    superblock: &Superblock,
    read_only: bool,
) -> Result<FileNvm, JournalError> {
    let io = |error| JournalError::io("open", path, &error);
    let length = file.metadata().map_err(io)?.len();
    let mut options = MapOptions {
        capacity: superblock.file_bytes(superblock.limit_blocks),
        dax: kind == PoolKind::Dax,
        latency: options.latency,
        persistency: options.persistency,
        read_only,
    };
    loop {
        match FileNvm::map(file.try_clone().map_err(io)?, path, &options) {
            // Only address space is reserved, but of that too a process may be given little.
            Err(MediumError::Io { op: "mmap", source }) if source == rustix::io::Errno::NOMEM => {
                let less = options.capacity / 2;
                if less < length.max(superblock.file_bytes(1)) {
                    let source = MediumError::Io { op: "mmap", source };
                    return Err(JournalError::Medium { path: path.to_path_buf(), source });
                }
                options.capacity = less;
            }
            done => {
                return done.map_err(|source| JournalError::Medium { path: path.to_path_buf(), source });
            }
        }
    }
}

fn tapped(path: &Path, nvm: FileNvm) -> Result<Arc<dyn Nvm>, JournalError> {
    tap::nvm(path, Arc::new(nvm)).map_err(|source| JournalError::Medium { path: path.to_path_buf(), source })
}

/// Opens a log as a user who may only read it. What others commit is seen: it is in the log's own memory.
pub(super) fn open_outside(
    options: &EngineOptions,
    path: &Path,
    file: &OwnFile,
) -> Result<Box<dyn Engine>, JournalError> {
    let superblock = check(path, file, &head::first_bytes(path, file, SUPERBLOCK_BYTES)?)?;
    let nvm = tapped(path, map(PoolKind::Emulate, options, path, file, &superblock, true)?)?;
    Ok(Box::new(Nvwal::open(nvm, path, options.nvwal.clone())?))
}

/// Opens a log to look at it: nothing is stored, no lock is taken.
///
/// # Errors
/// As for attaching, but whatever database it belongs to.
pub fn open_read_only(path: &Path) -> Result<Nvwal, JournalError> {
    let (nvm, _) = map_read_only(path)?;
    Nvwal::open(nvm, path, NvwalOptions::default())
}

/// Maps a log to look at it, without reading its transactions.
///
/// # Errors
/// `Io`, `Format`, `Medium`.
pub fn map_read_only(path: &Path) -> Result<(Arc<dyn Nvm>, Superblock), JournalError> {
    let file = files::open(path, false)?;
    let superblock = check(path, &file, &head::first_bytes(path, &file, SUPERBLOCK_BYTES)?)?;
    let nvm = map(PoolKind::Emulate, &EngineOptions::default(), path, &file, &superblock, true)?;
    Ok((Arc::new(nvm), superblock))
}

/// Reads the superblock and checks that the file is as long as it says.
pub(super) fn check(path: &Path, file: &File, bytes: &[u8]) -> Result<Superblock, JournalError> {
    let format = |source| JournalError::Format { log: path.to_path_buf(), source };
    let length = file.metadata().map_err(|error| JournalError::io("examine", path, &error))?.len();
    let superblock = Superblock::decode(bytes).map_err(format)?;
    let word = u64::from_le_bytes(bytes[1344..1352].try_into().unwrap_or_default());
    let grown = read_checked_word(word, "the log's size").map_err(format)?;
    if grown > superblock.limit_blocks || superblock.file_bytes(grown) > length {
        return Err(format(FormatError::Short { what: "the log file" }));
    }
    Ok(superblock)
}

/// Whether the log says without being read that it holds no commits.
pub(super) fn is_spent(file: &File, superblock: &Superblock) -> bool {
    slot_of(file, superblock).is_some_and(|slot| slot.retired || slot.first_block == NO_BLOCK)
}

fn slot_of(file: &File, superblock: &Superblock) -> Option<Slot> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, ACTIVE_OFFSET).ok()?;
    let generation = read_active_word(u64::from_le_bytes(word));
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot_offset(generation)).ok()?;
    Slot::decode(&bytes, superblock.log_id, generation).ok()
}
