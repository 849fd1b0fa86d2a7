//! Test engines. They are `nvwal` with more files beside the log:
//!
//! - `side` has a *home*: files of its own that keep all pages, including the header. When the engine drains
//!   the home, it copies the pages to the database file. Until then, the database file stays as it was when
//!   it received the guard.
//! - `undo` keeps rollback journals.
//! - `sideundo` does both.
//!
//! Their logs are those of `nvwal`, but each engine has its own magic number.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use duralite_format::nvwal::Superblock;
use duralite_format::sqlite_wal::WalHeader;
use duralite_format::{LogId, Origin};
use duralite_medium::{FileNvm, Guarantee, MapOptions, Nvm};
use duralite_wal::engine::descriptor::{Attaching, Descriptor, HEAD_BYTES, NewLog, OpenFile};
use duralite_wal::engine::home::{DatabaseFile, Home};
use duralite_wal::engine::media::MediaOptions;
use duralite_wal::engine::rollback::RollbackJournal;
use duralite_wal::engine::walk::{WalkSummary, WalkedTransaction};
use duralite_wal::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
};
use duralite_wal::engines::nvwal::{self, Nvwal, NvwalOptions};
use duralite_wal::placement::hooked_nvm;
use duralite_wal::{EngineOptions, LogError};

use crate::disguise::Disguised;
use crate::side_file::SideFile;
use crate::undo_file::UndoFile;

const MAGIC_BYTES: usize = 8;

/// One of these engines.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    magic: [u8; MAGIC_BYTES],
    has_home: bool,
    keeps_journals: bool,
}

const KINDS: [Kind; 3] = [
    Kind { name: "side", magic: *b"DURALSID", has_home: true, keeps_journals: false },
    Kind { name: "undo", magic: *b"DURALUND", has_home: false, keeps_journals: true },
    Kind { name: "sideundo", magic: *b"DURALSIU", has_home: true, keeps_journals: true },
];

pub static DESCRIPTORS: [Descriptor; 3] = [descriptor::<0>(), descriptor::<1>(), descriptor::<2>()];

const fn descriptor<const KIND: usize>() -> Descriptor {
    Descriptor {
        name: KINDS[KIND].name,
        magic: KINDS[KIND].magic,
        rollback_journals: KINDS[KIND].keeps_journals,
        writes_home: false,
        format: |new| {
            format(new, KINDS[KIND].magic)?;
            UndoFile::beside(new.file.path).delete()?;
            if KINDS[KIND].has_home { beside(new.file.path).make() } else { Ok(()) }
        },
        attach: attach::<KIND>,
        attach_outside: |log| Ok(Box::new(open(KINDS[KIND], &log.file, log.options, false)?)),
        open_read_only: |file| Ok(Box::new(open(KINDS[KIND], file, &EngineOptions::default(), false)?)),
        inspect: |file, bytes| (nvwal::DESCRIPTOR.inspect)(file, &as_nvwal(bytes, KINDS[KIND].magic)),
        is_empty: |file| {
            let log = open(KINDS[KIND], file, &EngineOptions::default(), false);
            log.is_ok_and(|log| log.is_empty())
        },
        walk,
        ..nvwal::DESCRIPTOR
    }
}

/// Makes a log of `nvwal` with this magic number.
pub(crate) fn format(new: &NewLog<'_>, magic: [u8; MAGIC_BYTES]) -> Result<(), LogError> {
    (nvwal::DESCRIPTOR.format)(new)?;
    let nvm = map(&new.file, new.options, false)?;
    nvm.store(0, &magic);
    nvm.flush(0, magic.len() as u64);
    nvm.fence();
    Ok(())
}

pub(crate) fn walk(
    file: &OpenFile<'_>,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let nvm = map(file, &EngineOptions::default(), true)?;
    nvwal::walk(nvm, file.path, database, visit)
}

fn beside(log: &Path) -> SideFile {
    SideFile::beside(log, true)
}

fn attach<const KIND: usize>(log: Attaching<'_>) -> Result<Box<dyn Engine>, LogError> {
    let mut side = open(KINDS[KIND], &log.file, log.options, true)?;
    if log.alone {
        side.log.recover_heap()?;
    }
    Ok(Box::new(side))
}

fn open(
    kind: Kind,
    file: &OpenFile<'_>,
    options: &EngineOptions,
    write: bool,
) -> Result<MoreThanNvwal, LogError> {
    let mut log = MoreThanNvwal::open(kind.name, file, options, write)?;
    if kind.has_home {
        let side = Arc::new(beside(file.path));
        log.home = Some(side.clone());
        log.side = Some(side);
    }
    log.undo = kind.keeps_journals.then(|| Arc::new(UndoFile::beside(file.path)));
    Ok(log)
}

/// Returns the first bytes of a log. If they begin with this engine's magic number, the result has the magic
/// number of `nvwal` in its place.
pub(crate) fn as_nvwal(bytes: &[u8], magic: [u8; MAGIC_BYTES]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.starts_with(&magic) {
        bytes[..magic.len()].copy_from_slice(&nvwal::DESCRIPTOR.magic);
    }
    bytes
}

fn superblock_of(log: &OpenFile<'_>) -> Result<Superblock, LogError> {
    let failed = |error| LogError::io("read", log.path, &error);
    let mut bytes = vec![0; HEAD_BYTES as usize];
    log.file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    bytes[..MAGIC_BYTES].copy_from_slice(&nvwal::DESCRIPTOR.magic);
    Superblock::decode(&bytes).map_err(|source| LogError::Format { log: log.path.to_path_buf(), source })
}

fn map(log: &OpenFile<'_>, options: &EngineOptions, read_only: bool) -> Result<Arc<dyn Nvm>, LogError> {
    let superblock = superblock_of(log)?;
    let MediaOptions { latency, persistency, .. } = options.media;
    let file = log.file.try_clone().map_err(|error| LogError::io("open", log.path, &error))?;
    let options = MapOptions {
        capacity: superblock.file_bytes(superblock.limit_blocks),
        read_only,
        latency,
        persistency,
        ..MapOptions::default()
    };
    let nvm = FileNvm::map(file, log.path, &options)
        .map_err(|source| LogError::Medium { path: log.path.to_path_buf(), source })?;
    let nvm = Arc::new(Disguised::new(nvm, nvwal::DESCRIPTOR.magic));
    // Like the product's engines, puts the fault-injection hook only before logs that are opened for writing.
    let hooked = if read_only { Ok(nvm as Arc<dyn Nvm>) } else { hooked_nvm(log.path, nvm) };
    hooked.map_err(|source| LogError::Medium { path: log.path.to_path_buf(), source })
}

/// A log of `nvwal` to which a test engine adds a home, rollback journals, or both.
pub(crate) struct MoreThanNvwal {
    name: &'static str,
    pub(crate) log: Nvwal,
    pub(crate) home: Option<Arc<dyn Home>>,
    /// The files in which the home keeps pages beside the log.
    side: Option<Arc<SideFile>>,
    undo: Option<Arc<UndoFile>>,
}

impl MoreThanNvwal {
    pub(crate) fn open(
        name: &'static str,
        file: &OpenFile<'_>,
        options: &EngineOptions,
        write: bool,
    ) -> Result<Self, LogError> {
        let nvm = map(file, options, !write)?;
        let own = options.own::<NvwalOptions>();
        let own = NvwalOptions { cache_bytes: options.cache_bytes.unwrap_or(own.cache_bytes), ..own };
        Ok(Self { name, log: Nvwal::open(nvm, file.path, own)?, home: None, side: None, undo: None })
    }

    fn is_empty(&self) -> bool {
        let holds_pages = self.side.as_ref().is_some_and(|side| !side.is_empty().is_ok_and(|empty| empty));
        let holds_journal =
            self.undo.as_ref().is_some_and(|undo| undo.size().is_ok_and(|size| size.is_some()));
        self.log.transactions() == 0 && !holds_pages && !holds_journal
    }
}

impl Engine for MoreThanNvwal {
    fn home(&self) -> Option<Arc<dyn Home>> {
        self.home.clone()
    }

    fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        self.undo.clone().map(|undo| undo as Arc<dyn RollbackJournal>)
    }
}

macro_rules! of_the_log {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $arg: $type)*) -> $result { self.log.$name($($arg),*) })*
    };
    ($(fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&mut self $(, $arg: $type)*) -> $result { self.log.$name($($arg),*) })*
    };
}

impl LogFile for MoreThanNvwal {
    fn name(&self) -> &'static str {
        self.name
    }

    fn retire(&mut self) -> Result<(), LogError> {
        self.log.retire()?;
        self.undo.as_ref().map_or(Ok(()), |undo| undo.delete())?;
        self.side.as_ref().map_or(Ok(()), |side| side.release())
    }

    of_the_log! {
        fn id(&self) -> LogId;
        fn page_bytes(&self) -> u32;
        fn guarantee(&self) -> Guarantee;
        fn describe(&self) -> String;
        fn metrics(&self) -> Vec<(&'static str, String)>;
        fn wal_header(&self) -> Option<&WalHeader>;
        fn has_surplus(&self, keep_bytes: u64) -> bool;
        fn fill(&self) -> Fill;
    }
    of_the_log! {
        fn configure(&mut self, options: &EngineOptions) -> ();
        fn set_clock(&mut self, clock: Clock) -> ();
        fn begin_generation(
            &mut self, file: &dyn DatabaseFile, header: Option<&WalHeader>
        ) -> Result<(), LogError>;
        fn clear(&mut self, file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), LogError>;
    }
}

impl LogReader for MoreThanNvwal {
    of_the_log! {
        fn version(&self) -> u64;
        fn committed(&self) -> u32;
        fn frame(&self, number: u32) -> Option<Frame>;
        fn newest_frames(&self) -> Vec<(u32, u32)>;
        fn origin(&self) -> Origin;
        fn transactions(&self) -> u32;
        fn transaction_after(&self, sequence: u32) -> Option<Transaction>;
        fn is_durable(&self, frame: u32) -> bool;
        fn is_current(&self) -> bool;
    }
    of_the_log! {
        fn refresh(&mut self) -> Result<(), LogError>;
        fn read_page(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError>;
    }
}

impl LogWriter for MoreThanNvwal {
    of_the_log! {
        fn has_staged(&self) -> bool;
        fn outgrows(&self, bytes: usize) -> bool;
        fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>>;
    }
    of_the_log! {
        fn stage(
            &mut self, file: &dyn DatabaseFile, frame: u32, page_number: u32, page: &[u8]
        ) -> Result<(), LogError>;
        fn discard_staged(&mut self) -> Result<(), LogError>;
        fn seal(&mut self, file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, LogError>;
        fn force(&mut self) -> Result<(), LogError>;
    }
}
