//! WALDIO: a write-ahead log in preallocated blocks, written by direct I/O (Lee et al., USENIX ATC
//! 2015), with group commit.
//!
//! The file's blocks are initialised before they are used (section 4.1), so a commit is one write
//! of whole blocks and one flush. Frames are page images with their header inside (4.2,
//! `embedded`), or differences packed into blocks (`delta`). The layout is `docs/format/waldio.md`.
//!
//! Invariants kept here: 4, 5, 7, 9, 10, 11, 12. The state that processes share is in [`crate::shared::group`]. Each process
//! rebuilds the fields of [`Waldio`] by scanning the log.

mod ahead;
mod files;
mod follow;
mod options;
mod prefetch;
mod recovery;
mod salvage;
mod transaction;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use duralite_format::sqlite_wal::WalHeader;
use duralite_format::waldio::{DATA_OFFSET, GROUP_MAGIC, Layout, Slot, Superblock, slot_offset};
use duralite_format::{FormatError, LogId, Origin};
use duralite_medium::block::{Block, Durability, Fua};
use duralite_medium::{Guarantee, LocalSegment, MediumError, Segment};

use crate::engine::home::DatabaseFile;
use crate::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
    wall_clock,
};
use crate::shared::delta_chains::DeltaChains;
use crate::shared::group::{self, Group, NewGeneration, Recovered};
use crate::{EngineOptions, LogError};
use ahead::Ahead;
pub use files::DESCRIPTOR;
use options::NAME;
pub use options::WaldioOptions;
pub use salvage::walk;
use transaction::{Open, STAGED};

/// The number of bytes of shared memory that the processes using a `waldio` log need.
pub const SHARED_BYTES: u64 = group::SHARED_BYTES;
use group::STATE_BYTES;

/// Counters of what this process has done since it attached the log.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    commits: u64,
    frames: u64,
    records: u64,
    generations: u64,
    written_past_ring: u64,
}

/// A log in blocks.
pub struct Waldio {
    group: Arc<Group>,
    superblock: Superblock,
    options: WaldioOptions,
    path: PathBuf,
    generation: u64,
    origin: Origin,
    wal_header: Option<WalHeader>,
    retired: bool,
    /// Byte position at which `generation` begins.
    start: u64,
    /// Byte position after the last transaction that this process has applied to its index.
    end: u64,
    /// Number of transactions of this generation that this process has applied.
    sequence: u32,
    /// Time of the group of the last applied transaction, in milliseconds since 1970; 0 if it is not known.
    group_ms: u64,
    clock: Clock,
    chains: DeltaChains,
    open: Open,
    payload: Vec<u8>,
    /// The bytes of the log that this process has read ahead and will apply next.
    window: Ahead,
    /// The bytes of the log around the record that was read last, while pages are read in the order of their records.
    in_order: Option<Ahead>,
    /// The number of frames acknowledged under Group Synch since this process last waited for a flush, and the time at
    /// which it acknowledged the first of them.
    unwaited: Option<(u32, Instant)>,
    activity: Activity,
}

impl Waldio {
    /// Writes an empty log without blocks for transactions, because a connection that only reads needs no blocks. The log is
    /// durable once the caller has synced the file, or once a writer has made the first blocks ([`LogWriter::harden`]).
    ///
    /// # Errors
    /// `NoSpace`, `Medium`.
    pub fn format(block: &dyn Block, superblock: &Superblock) -> Result<(), LogError> {
        recovery::format(block, superblock)
            .map_err(|source| LogError::Medium { path: PathBuf::new(), source })
    }

    /// Attaches a log. If no other process has the log attached (`first`), this process recovers the log. It then
    /// initialises the shared state in `segment` from byte `base` on, where the segment must hold zeros. Otherwise this
    /// process joins the processes that share the log.
    ///
    /// # Errors
    /// `Corrupt` for a damaged log, `Settings` if other processes use the log with other settings, `Medium`.
    pub fn attach(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        segment: Arc<dyn Segment>,
        base: u64,
        first: bool,
    ) -> Result<Self, LogError> {
        if first {
            return Self::recover(block, superblock, path, options, (segment, base), None);
        }
        Self::join(block, superblock, path, options, segment, base, None)
    }

    /// Recovers a log that no process has attached. Applies its groups in one pass, makes them durable (the process
    /// that wrote the newest group may have died before the group was durable), and initialises the shared state.
    /// `left` is the end of the log according to the last processes, if everything before that end is known to be
    /// durable.
    fn recover(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        (segment, base): (Arc<dyn Segment>, u64),
        left: Option<Recovered>,
    ) -> Result<Self, LogError> {
        let failed = |source| LogError::Medium { path: path.to_path_buf(), source };
        let scan = recovery::Scan::begin(block.as_ref(), &superblock, &failed)?;
        let nothing = Recovered { generation: scan.generation(), end: recovery::NEW.end };
        let mut log = Self::alone(block.clone(), superblock.clone(), path, options, nothing)?;
        log.chains.keep_images(true);
        log.enter(scan.generation())?;
        let found = scan.find_end(left, &mut |group| log.take_in_group(group))?;
        found.settle(block.as_ref(), &superblock).map_err(failed)?;
        log.group =
            Arc::new(transaction::join(segment, base, block, &superblock, options, Some(found.recovered))?);
        log.refresh()?;
        log.chains.keep_images(false);
        Ok(log)
    }

    /// Joins the processes that share the log. If `known` gives the end of the log, initialises the shared state
    /// instead of joining.
    fn join(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        segment: Arc<dyn Segment>,
        base: u64,
        known: Option<Recovered>,
    ) -> Result<Self, LogError> {
        let group = transaction::join(segment, base, block, &superblock, options, known)?;
        let mut log = Self::over(group, superblock, path, options);
        log.refresh()?;
        Ok(log)
    }

    /// Opens a log with a segment that no other process shares.
    fn alone(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        known: Recovered,
    ) -> Result<Self, LogError> {
        let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
        let group = transaction::join(segment, 0, block, &superblock, options, Some(known))?;
        Ok(Self::over(group, superblock, path, options))
    }

    /// Opens a log for inspection, as recovery would leave it. Changes nothing.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`.
    pub fn open_read_only(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
    ) -> Result<Self, LogError> {
        let failed = |source| LogError::Medium { path: path.to_path_buf(), source };
        let options = WaldioOptions::default();
        let scan = recovery::Scan::begin(block.as_ref(), &superblock, &failed)?;
        let recovered = scan.find_end(None, &mut |_| Ok(()))?.recovered;
        let mut log = Self::alone(block, superblock, path, &options, recovered)?;
        log.refresh()?;
        Ok(log)
    }

    fn over(group: Group, superblock: Superblock, path: &Path, options: &WaldioOptions) -> Self {
        let chains = DeltaChains::new(superblock.head.page_bytes, options.cache_bytes);
        Self {
            group: Arc::new(group),
            superblock,
            options: options.clone(),
            path: path.to_path_buf(),
            generation: 0,
            origin: Origin::unknown(0),
            wal_header: None,
            retired: false,
            start: 0,
            end: 0,
            sequence: 0,
            group_ms: 0,
            clock: wall_clock,
            chains,
            open: Open::default(),
            payload: Vec::new(),
            window: Ahead::default(),
            in_order: None,
            unwaited: None,
            activity: Activity::default(),
        }
    }

    /// Returns the superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns whether the log was retired ([`LogFile::retire`]) and has not been used since.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Returns the generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of committed transactions in this generation.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.sequence
    }

    /// Returns how many bytes of the file the log uses, as of the generation that this process read last. The log may
    /// have started over since then.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        DATA_OFFSET + (self.end - self.start)
    }

    fn log_id(&self) -> LogId {
        self.superblock.head.log_id
    }

    fn failed(&self, source: MediumError) -> LogError {
        LogError::Medium { path: self.path.clone(), source }
    }

    fn damaged(&self, position: u64, what: &'static str) -> LogError {
        let offset = self.group.offset_of(self.generation, position);
        LogError::Corrupt { offset, what: FormatError::Damaged { what } }
    }

    fn enter(&mut self, generation: u64) -> Result<(), LogError> {
        let failed = |source| self.failed(source);
        let slot = recovery::load_slot(self.group.block(), &self.superblock, generation, &failed)?;
        self.begin(&slot)
    }

    /// Starts the log over, and continues with the new generation.
    fn start_over(&mut self, new: NewGeneration) -> Result<(), LogError> {
        let generation = self.group.switch(&new)?;
        let NewGeneration { wal_header, retired, position, time_ms, .. } = new;
        // The switch has just written this slot, so there is no need to read it. `begin` ignores `file_bytes`.
        self.begin(&Slot { generation, wal_header, retired, file_bytes: 0, position, time_ms })?;
        self.refresh()
    }

    /// Resets this process's view of the log to the beginning of a generation.
    fn begin(&mut self, slot: &Slot) -> Result<(), LogError> {
        let header = match slot.wal_header {
            Some(bytes) => {
                let header = WalHeader::parse(&bytes);
                Some(header.map_err(|what| LogError::Corrupt { offset: 0, what })?)
            }
            None => None,
        };
        if header.is_some_and(|header| header.page_bytes != self.superblock().head.page_bytes) {
            return Err(self.damaged(0, "the log's page size"));
        }
        self.drop_staged();
        self.chains.clear();
        self.window.clear();
        self.in_order = None;
        self.generation = slot.generation;
        self.origin = slot.origin();
        self.wal_header = header;
        self.retired = slot.retired;
        self.start = self.group.start_of(slot.generation);
        self.end = self.start;
        self.sequence = 0;
        self.group_ms = 0;
        Ok(())
    }

    /// Returns the parameters of an empty generation that can follow the present one.
    fn empty_generation(&self) -> NewGeneration {
        NewGeneration {
            wal_header: None,
            retired: false,
            keep_bytes: None,
            position: self.position(),
            time_ms: (self.clock)(),
        }
    }

    fn drop_staged(&mut self) {
        self.chains.discard();
        self.open.clear();
    }
}

impl Engine for Waldio {}

impl LogFile for Waldio {
    fn name(&self) -> &'static str {
        NAME
    }

    fn id(&self) -> LogId {
        self.log_id()
    }

    fn page_bytes(&self) -> u32 {
        self.superblock().head.page_bytes
    }

    fn guarantee(&self) -> Guarantee {
        use Guarantee::{Ordered, PowerLoss, SystemCrash};
        let block = self.group.block();
        match (block.guarantee(), self.options.durability) {
            (PowerLoss, _) if !self.options.waits() => Ordered,
            (PowerLoss, Durability::Normal) if block.writes_reach_device() => SystemCrash,
            (PowerLoss, Durability::Normal) => Ordered,
            (guarantee, _) => guarantee,
        }
    }

    fn describe(&self) -> String {
        self.group.block().describe()
    }

    fn metrics(&self) -> Vec<(&'static str, String)> {
        let (activity, counters) = (self.activity, self.group.block().counters());
        let group = &self.group.activity;
        let limit = match self.superblock().limit_bytes {
            u64::MAX => "none".to_owned(),
            limit => limit.to_string(),
        };
        let shared = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed).to_string();
        let mut metrics = vec![
            ("layout", self.superblock().layout.as_str().to_owned()),
            ("generation", self.generation.to_string()),
            ("retired", self.is_retired().to_string()),
            ("log_frames", self.committed().to_string()),
            ("log_transactions", self.sequence.to_string()),
            ("log_bytes", self.used_bytes().to_string()),
            ("log_file_bytes", self.group.block().len().to_string()),
            ("log_limit", limit),
            ("block_bytes", self.superblock().block_bytes.to_string()),
            ("commits", activity.commits.to_string()),
            ("frames", activity.frames.to_string()),
            ("records", activity.records.to_string()),
            ("log_restarts", activity.generations.to_string()),
            ("groups_led", shared(&group.groups)),
            ("commits_led", shared(&group.led_transactions)),
            ("sleeps", shared(&group.sleeps)),
            ("large_transactions", activity.written_past_ring.to_string()),
            ("device_writes", counters.writes.to_string()),
            ("device_bytes", counters.written_bytes.to_string()),
            ("device_flushes", counters.flushes.to_string()),
            ("preallocated_bytes", counters.preallocated_bytes.to_string()),
            ("read_bytes", counters.read_bytes.to_string()),
        ];
        if self.options.durability == Durability::Fua {
            let how = self.group.block().fua().map_or("unknown", Fua::in_words);
            metrics.push(("fua", how.to_owned()));
        }
        metrics
    }

    fn configure(&mut self, _options: &EngineOptions) {}

    fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    fn fill(&self) -> Fill {
        Fill { used_bytes: self.used_bytes(), limit_bytes: self.superblock.limit_bytes }
    }

    fn retire(&mut self) -> Result<(), LogError> {
        self.refresh()?;
        self.drop_staged();
        self.start_over(NewGeneration { retired: true, ..self.empty_generation() })
    }

    fn wal_header(&self) -> Option<&WalHeader> {
        self.wal_header.as_ref()
    }

    fn begin_generation(
        &mut self,
        _file: &dyn DatabaseFile,
        header: Option<&WalHeader>,
    ) -> Result<(), LogError> {
        self.refresh()?;
        if header.is_some_and(|header| header.page_bytes != self.superblock().head.page_bytes) {
            return Err(LogError::Unexpected("a WAL header with another page size than the log's"));
        }
        self.drop_staged();
        let wal_header = header.map(|header| header.bytes);
        self.activity.generations += 1;
        self.start_over(NewGeneration { wal_header, ..self.empty_generation() })
    }

    fn clear(&mut self, _file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), LogError> {
        self.refresh()?;
        self.drop_staged();
        self.activity.generations += 1;
        self.start_over(NewGeneration { keep_bytes: Some(keep_bytes), ..self.empty_generation() })
    }

    fn has_surplus(&self, keep_bytes: u64) -> bool {
        // Another process may have made the file longer. Ignore an error here, because the next read reports it.
        let _ = self.group.block().refresh_len();
        self.group.block().len() > self.group.kept_bytes(keep_bytes)
    }
}

impl LogReader for Waldio {
    fn newest_frames(&self) -> Vec<(u32, u32)> {
        self.chains.newest_frames()
    }

    fn origin(&self) -> Origin {
        self.origin
    }

    fn transactions(&self) -> u32 {
        self.sequence
    }

    fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        self.chains.transaction_after(sequence)
    }

    fn is_durable(&self, frame: u32) -> bool {
        // A group becomes durable as a whole, so the position of the frame's record shows whether the frame is durable.
        let record = self.chains.record_of_frame(frame);
        record.is_some_and(|record| record.at & STAGED == 0 && record.at < self.group.durable_end())
    }

    fn is_current(&self) -> bool {
        // Load the generation after the reads that the caller has made.
        self.group.fence();
        self.group.generation() == self.generation
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        loop {
            self.group.check()?;
            self.group.adopt_switch()?;
            let generation = self.group.generation();
            let followed = if generation == self.generation { Ok(()) } else { self.enter(generation) };
            let followed = followed.and_then(|()| self.follow());
            match followed {
                _ if self.group.generation() != generation => {
                    // The log started over during the reads, and what was read may have been overwritten. So begin again.
                    self.generation = 0;
                }
                result => return result,
            }
        }
    }

    fn version(&self) -> u64 {
        self.generation.rotate_left(32) ^ u64::from(self.sequence)
    }

    fn committed(&self) -> u32 {
        self.chains.frames()
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.chains.frame(number)
    }

    fn read_page(&mut self, _file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        let (log, open, generation) = ((&*self.group, &self.superblock), &self.open, self.generation);
        let (mut bytes, in_order) = (std::mem::take(&mut self.payload), &mut self.in_order);
        let result = self.chains.read_page(frame, page, &mut |record, page| {
            open.apply(log, generation, record, (&mut bytes, in_order.as_mut()), page)
        });
        self.payload = bytes;
        result
    }

    fn read_in_order(&mut self) {
        self.chains.read_in_order();
        self.in_order = Some(Ahead::default());
    }
}

impl LogWriter for Waldio {
    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        Some(self.group.clone())
    }

    fn has_staged(&self) -> bool {
        self.chains.has_staged()
    }

    fn stage(
        &mut self,
        _file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError> {
        match self.superblock().layout {
            Layout::Delta => self.stage_difference(frame, page_number, page),
            Layout::Embedded => self.stage_frame(frame, page_number, page),
        }
    }

    fn discard_staged(&mut self) -> Result<(), LogError> {
        self.drop_staged();
        Ok(())
    }

    fn seal(&mut self, _file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, LogError> {
        let ticket = match self.superblock().layout {
            Layout::Delta => self.seal_differences(commit)?,
            Layout::Embedded => self.seal_frames(commit)?,
        };
        self.sequence += 1;
        let frames = commit.last_frame + 1 - commit.first_frame;
        self.activity.commits += 1;
        self.activity.frames += u64::from(frames);
        Ok(self.must_wait(frames).then_some(ticket))
    }

    fn outgrows(&self, bytes: usize) -> bool {
        self.open.outgrows(bytes, self.superblock().block_bytes as usize)
    }

    fn force(&mut self) -> Result<(), LogError> {
        self.group.force()
    }

    fn harden(&mut self) -> Result<bool, LogError> {
        self.refresh()?;
        let group = Arc::clone(&self.group);
        let failed = |source| self.failed(source);
        // Write the head again, because the process that wrote it may have died, or its sync may have failed.
        let mut head = vec![0; DATA_OFFSET as usize];
        group.block().read(0, &mut head).map_err(failed)?;
        if !group.has_blocks() {
            // Write the slot with the length that the file will have with its first blocks. From then on recovery takes
            // a shorter file for a truncated one. A crash before the blocks exist does no harm, because the guard stays
            // provisional until they exist. The same holds if there is no space for the blocks.
            let slot = recovery::load_slot(group.block(), &self.superblock, self.generation, &failed)?;
            let slot = Slot { file_bytes: group.first_bytes(), ..slot }.encode(self.log_id());
            let at = slot_offset(self.generation) as usize;
            head[at..at + slot.len()].copy_from_slice(&slot);
        }
        group.block().write_later(0, &head).map_err(failed)?;
        if group.has_blocks() {
            return Ok(false);
        }
        group.make_first_blocks().map(|()| true)
    }
}

impl Waldio {
    /// Returns whether the committer has to wait for the flush. Without Group Synch, always returns `true`. With Group
    /// Synch, returns `true` if too many frames wait for a flush, or the first one has waited too long (section 4.3).
    fn must_wait(&mut self, frames: u32) -> bool {
        let options = &self.options;
        if options.waits() {
            return true;
        }
        let (count, since) = self.unwaited.unwrap_or((0, Instant::now()));
        if count + frames >= options.group_synch || since.elapsed() >= options.group_interval {
            self.unwaited = None;
            return true;
        }
        self.unwaited = Some((count + frames, since));
        false
    }
}

const _: () = assert!(STAGED > 1 << 62);
const _: () = assert!(GROUP_MAGIC != 0);
