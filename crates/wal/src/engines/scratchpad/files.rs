//! Makes and opens the files of a `scratchpad` log: the log's own small file, and the region. The engine's descriptor
//! refers to these functions.

use std::path::Path;
use std::sync::Arc;

use duralite_format::scratchpad::{
    MAGIC, Owner, PAGE_BYTES, REFERENCE_OFFSET, REGION_SUPERBLOCK_BYTES, RegionSuperblock, SUPERBLOCK_BYTES,
    Superblock,
};
use duralite_medium::{Nvm, Segment};

use super::options::{NAME, SETTINGS};
use super::region::Region;
use super::region_file::{self, Mapping, RegionFile, told_dir};
use super::room::{self, count_log};
use super::undo::UndoLog;
use super::{Activity, Scratchpad, ScratchpadOptions, salvage};
use crate::LogError;
use crate::engine::descriptor::{
    Attaching, AttachingOutside, Descriptor, LogHead, NewLog, OpenFile, SharedBytes,
};
use crate::engine::media::{MediaOptions, Medium};
use crate::engine::{Engine, wall_clock};
use crate::shared::delta_chains::DeltaChains;
use crate::shared::generations::{InForce, SealTime};
use crate::shared::log_memory::{first_bytes, hooked};
use crate::shared::mapped_home::MappedHome;
use crate::shared::past_cache::Choice;
use crate::shared::{identity, log_file};

/// The engine for machines with persistent memory and, in addition, a small memory in which a store is durable without
/// a flush.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::Scratchpad, Medium::HomeMemory],
    settings: SETTINGS,
    // The segment holds only one word, which says who has stored in the mapped database since the last sync. Everything
    // else is in the log and the region.
    shared: SharedBytes { zeroed: 8, all: 8 },
    format,
    attach,
    attach_outside,
    open_read_only: |log| Ok(Box::new(look_at(log)?)),
    inspect,
    is_empty,
    salvage: |log, _, later| salvage::salvage(open_to_walk(log)?, later),
    release,
    walk: |log, database, visit| salvage::walk(open_to_walk(log)?, database, visit),
    rollback_journals: true,
    writes_home: false,
    flush_interval: |_| None,
};

/// Writes an empty log into a new file. Makes the log's region if there is none.
fn format(new: &NewLog<'_>) -> Result<(), LogError> {
    let options = ScratchpadOptions::of(new.options);
    let mapping = Mapping::of(new.placement, &new.options.media);
    let (region, found) = region_file::open_or_make(&new.file, &mapping, options.region_bytes)?;
    let pages = options.limit_bytes.div_ceil(PAGE_BYTES).min(u64::from(u32::MAX));
    let superblock = Superblock {
        head: new.head.clone(),
        region: found.id,
        limit_pages: pages as u32,
        region_dir: told_dir(&region),
    };
    let nvm = hooked(new.file.path, mapping.map(&new.file, SUPERBLOCK_BYTES)?)?;
    Scratchpad::format(nvm.as_ref(), &superblock)
        .map_err(|source| LogError::Medium { path: new.file.path.to_path_buf(), source })?;
    // Add the log to the region's count of logs now. The log has no name yet, and until a process attaches the log, no
    // lock shows that it exists.
    let path = region.path.clone();
    let region = hooked(&path, mapping.map(&OpenFile { path: &path, file: &region.file }, PAGE_BYTES)?)?;
    count_log(nvm.as_ref(), region.as_ref());
    Ok(())
}

/// Gives back everything that a log owns in its region. The log has no transactions and is about to be deleted. Gives
/// back nothing if the log is a copy, which owns no pages, or if a process uses another log with the same id.
fn release(log: &OpenFile<'_>) -> Result<(), LogError> {
    let opening = Opening { mapping: Mapping::flushed(), segment: None, is_kept: false };
    let (superblock, nvm, region) = match opening.open(log) {
        Err(LogError::NoRegion { .. }) => return Ok(()),
        opened => opened?,
    };
    let made_in = superblock.head.made_in;
    let is_original = made_in.is_some() && made_in == identity::of_log(log.file);
    let place = region.file.as_ref().filter(|_| is_original);
    if place.map_or(Ok(false), |place| place.hold_alone(region.owner))? {
        room::release(&region, nvm.as_ref());
    }
    Ok(())
}

/// Logs on media that the caller provides.
impl Scratchpad {
    /// Writes an empty log onto a medium of zeros. The log is durable on return, as far as the medium is durable.
    ///
    /// # Errors
    /// The medium's error if the medium cannot grow.
    pub fn format(nvm: &dyn Nvm, superblock: &Superblock) -> Result<(), duralite_medium::MediumError> {
        nvm.grow(SUPERBLOCK_BYTES)?;
        let (head, reference) = superblock.encode();
        nvm.store(0, &head);
        nvm.store(REFERENCE_OFFSET, &reference);
        InForce::first().write(nvm, superblock.head.log_id);
        nvm.flush(0, SUPERBLOCK_BYTES);
        nvm.fence();
        Ok(())
    }

    /// Writes an empty region onto a medium of zeros. The region is durable on return, as far as the medium is durable.
    ///
    /// # Errors
    /// The medium's error if the medium cannot grow.
    pub fn format_region(
        nvm: &dyn Nvm,
        superblock: &RegionSuperblock,
    ) -> Result<(), duralite_medium::MediumError> {
        nvm.grow((2 * PAGE_BYTES).min(superblock.limit_bytes()))?;
        nvm.store(0, &superblock.encode());
        nvm.flush(0, REGION_SUPERBLOCK_BYTES as u64);
        nvm.fence();
        Ok(())
    }

    /// Opens a log and its region. If no other process uses the log (`alone`), recovers the log. Without a segment,
    /// opens the log read-only, as recovery would leave it, and stores nothing.
    ///
    /// # Errors
    /// `Format` and `Corrupt`.
    pub fn attach(
        nvm: Arc<dyn Nvm>,
        region: Arc<dyn Nvm>,
        path: &Path,
        options: &ScratchpadOptions,
        segment: Option<Arc<dyn Segment>>,
        alone: bool,
    ) -> Result<Self, LogError> {
        let superblock = decode(path, &first_bytes(nvm.as_ref(), SUPERBLOCK_BYTES))?;
        let bytes = first_bytes(region.as_ref(), REGION_SUPERBLOCK_BYTES as u64);
        let of_region = RegionSuperblock::decode(&bytes)
            .map_err(|source| LogError::Format { log: path.to_path_buf(), source })?;
        if of_region.id != superblock.region {
            let searched = path.display().to_string();
            return Err(LogError::NoRegion { log: path.to_path_buf(), region: superblock.region, searched });
        }
        let is_kept = segment.is_none();
        let id = superblock.head.log_id;
        let region = Region::new(region, of_region, id, segment, path.to_path_buf(), is_kept);
        let role = if is_kept { Role::Looks } else { Role::of(alone) };
        Self::begin(superblock, nvm, region, options, role)
    }

    fn begin(
        superblock: Superblock,
        nvm: Arc<dyn Nvm>,
        region: Region,
        options: &ScratchpadOptions,
        role: Role,
    ) -> Result<Self, LogError> {
        let region = Arc::new(region);
        let needs_flush = !region.nvm.is_durable_on_store();
        let choice = Arc::new(if needs_flush { Choice::new(options.sync) } else { Choice::write_back() });
        let rollback = UndoLog::new(Arc::clone(&nvm), Arc::clone(&region), Arc::clone(&choice));
        let mut log = Self {
            chains: DeltaChains::new(superblock.head.page_bytes, options.cache_bytes),
            superblock,
            nvm,
            region,
            in_force: InForce::none(),
            pages: Vec::new(),
            newest: (0, 0),
            firsts: Vec::new(),
            scan: None,
            sequence: 0,
            sealed_at: SealTime::default(),
            clock: wall_clock,
            open: None,
            spare: Vec::new(),
            doubtful: None,
            doubtful_generation: false,
            rollback: Arc::new(rollback),
            diff: options.diff,
            choice,
            home: None,
            activity: Activity::default(),
            payload: Vec::new(),
            record: Vec::new(),
            entry: Vec::new(),
        };
        match role {
            Role::Recovers => log.recover()?,
            Role::Joins => {
                use crate::engine::LogReader as _;
                log.refresh()?;
                log.collect_own();
            }
            Role::ReadsAlong => {
                use crate::engine::LogReader as _;
                log.refresh()?;
            }
            Role::Looks => log.look_through()?,
            Role::Walks => {}
        }
        Ok(log)
    }
}

/// What a process does with a log right after mapping it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Recovers,
    Joins,
    ReadsAlong,
    Looks,
    Walks,
}

impl Role {
    fn of(alone: bool) -> Self {
        if alone { Self::Recovers } else { Self::Joins }
    }
}

/// Maps and opens a log. If no other process uses the log, recovers it.
fn attach(log: Attaching<'_>) -> Result<Box<dyn Engine>, LogError> {
    let Attaching { placement, options, database, file, segment, base, alone, of_another, .. } = log;
    let mapping = Mapping::of(placement, &options.media);
    let segment: Arc<dyn Segment> = segment;
    let opening = Opening { mapping, segment: Some(Arc::clone(&segment)), is_kept: of_another };
    let (superblock, nvm, region) = opening.open(&file)?;
    if alone
        && mapping.is_dax()
        && let Some(place) = &region.file
    {
        // Sync the region like the log's own file, because it may have been used as emulated memory before.
        place.file.sync_all().map_err(|error| LogError::io("sync", &place.path, &error))?;
    }
    let memory = database.map(placement.home_kind())?;
    memory.set_latency(options.media.latency);
    let home = MappedHome::new(memory, superblock.head.page_bytes, options.media.home_sync);
    let own = ScratchpadOptions::of(options);
    let home = home.sharing(segment, base).with_whole_pages(!own.home_diff);
    let mut log = Scratchpad::begin(superblock, nvm, region, &own, Role::of(alone))?;
    if alone {
        home.recover(database)?;
    }
    log.home = Some(Arc::new(home));
    Ok(Box::new(log))
}

/// Opens a log for a user who may only read it. With shared memory, this user sees what others commit from now on.
fn attach_outside(log: AttachingOutside<'_>) -> Result<Box<dyn Engine>, LogError> {
    let AttachingOutside { options, file, shared, .. } = log;
    let mapping = Mapping::read_only(&options.media);
    let opening = Opening { mapping, segment: None, is_kept: true };
    let (superblock, nvm, region) = opening.open(&file)?;
    let role = if shared.is_some() { Role::ReadsAlong } else { Role::Looks };
    let options = ScratchpadOptions::of(options);
    Ok(Box::new(Scratchpad::begin(superblock, nvm, region, &options, role)?))
}

/// Opens a log read-only. Stores nothing and takes no lock.
fn look_at(log: &OpenFile<'_>) -> Result<Scratchpad, LogError> {
    open_to_read(log, Role::Looks)
}

/// Opens a log read-only, without reading a transaction yet.
fn open_to_walk(log: &OpenFile<'_>) -> Result<Scratchpad, LogError> {
    open_to_read(log, Role::Walks)
}

fn open_to_read(log: &OpenFile<'_>, role: Role) -> Result<Scratchpad, LogError> {
    let media = MediaOptions::default();
    let opening = Opening { mapping: Mapping::read_only(&media), segment: None, is_kept: true };
    let (superblock, nvm, region) = opening.open(log)?;
    Scratchpad::begin(superblock, nvm, region, &ScratchpadOptions::default(), role)
}

/// The way in which a log and its region are opened.
struct Opening {
    mapping: Mapping,
    segment: Option<Arc<dyn Segment>>,
    is_kept: bool,
}

impl Opening {
    fn open(self, log: &OpenFile<'_>) -> Result<(Superblock, Arc<dyn Nvm>, Region), LogError> {
        let superblock = superblock_of(log)?;
        let is_read_only = self.mapping.is_read_only();
        let (place, found): (RegionFile, RegionSuperblock) =
            region_file::find(log, &superblock, !is_read_only)?;
        if !is_read_only {
            place.hold(Owner::of(superblock.head.log_id))?;
        }
        let nvm = self.map(log, SUPERBLOCK_BYTES)?;
        let region_nvm = self.map(&OpenFile { path: &place.path, file: &place.file }, found.limit_bytes())?;
        let id = superblock.head.log_id;
        let path = place.path.clone();
        let own = || log.file.try_clone().map_err(|error| LogError::io("open", log.path, &error));
        let log_file = if is_read_only { None } else { Some(own()?) };
        let mut region = Region::new(region_nvm, found, id, self.segment, path, self.is_kept);
        (region.file, region.log_file) = (Some(place), log_file);
        Ok((superblock, nvm, region))
    }

    fn map(&self, file: &OpenFile<'_>, capacity: u64) -> Result<Arc<dyn Nvm>, LogError> {
        hooked(file.path, self.mapping.map(file, capacity)?)
    }
}

/// Reads the head of a log.
fn inspect(log: &OpenFile<'_>, bytes: &[u8]) -> Result<LogHead, LogError> {
    Ok(decode(log.path, bytes)?.head)
}

/// Returns whether the log holds no commits and no rollback journal.
fn is_empty(log: &OpenFile<'_>) -> bool {
    look_at(log).is_ok_and(|log| log.transactions() == 0 && log.rollback.is_gone())
}

fn superblock_of(log: &OpenFile<'_>) -> Result<Superblock, LogError> {
    decode(log.path, &log_file::first_bytes(log.path, log.file, SUPERBLOCK_BYTES)?)
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Superblock, LogError> {
    debug_assert_eq!(MAGIC.len(), 8);
    Superblock::decode(bytes).map_err(|source| LogError::Format { log: path.to_path_buf(), source })
}
