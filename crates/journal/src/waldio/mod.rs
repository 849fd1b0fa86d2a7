//! WALDIO: the write-ahead log in preallocated blocks, written directly (Lee et al., USENIX ATC
//! 2015), with group commit.
//!
//! The file's blocks are initialised before they are used (section 4.1), so a commit is one write
//! of whole blocks and one flush. Frames are page images with their header inside (4.2,
//! `embedded`), or differences packed into blocks (`delta`). The layout is `docs/format/waldio.md`.
//!
//! Invariants kept here: 4, 5, 7, 9, 10, 11, 12. What processes share is in [`crate::group`]; the fields of
//! [`Waldio`] are rebuilt by scanning.

mod ahead;
mod descriptor;
mod files;
mod follow;
mod framing;
mod options;
mod prefetch;
mod recovery;
mod salvage;
mod transaction;
mod walk;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use duralite_logfmt::sqlite_wal::WalHeader;
use duralite_logfmt::waldio::{DATA_OFFSET, GROUP_MAGIC, Layout, Slot, Superblock, slot_offset};
use duralite_logfmt::{FormatError, LogId, Origin};
use duralite_medium::block::Block;
use duralite_medium::{Guarantee, LocalSegment, MediumError, Segment};

use crate::delta_chains::DeltaChains;
use crate::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
    wall_clock,
};
use crate::group::{self, Group, NewGeneration, Recovered};
use crate::home::DatabaseFile;
use crate::{EngineOptions, JournalError};
use ahead::Ahead;
pub use descriptor::DESCRIPTOR;
use options::NAME;
pub use options::WaldioOptions;
use transaction::{Open, STAGED};
pub use walk::walk;

/// Bytes of shared memory that processes with a log of this kind need.
pub const SHARED_BYTES: u64 = group::SHARED_BYTES;
use group::STATE_BYTES;

/// What this process has done since it attached.
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
    /// Position where that generation begins.
    start: u64,
    /// Position behind the last transaction taken in.
    end: u64,
    /// Transactions taken in of this generation.
    sequence: u32,
    /// Time of the group that was taken in last, in milliseconds since 1970; 0 if it is not known.
    group_ms: u64,
    clock: Clock,
    chains: DeltaChains,
    open: Open,
    payload: Vec<u8>,
    /// What was read of the log to take in what is in it.
    window: Ahead,
    /// Frames acknowledged under Group Synch since this process last waited, and since when.
    unwaited: Option<(u32, Instant)>,
    activity: Activity,
}

impl Waldio {
    /// Writes an empty log, without a block for transactions: whoever only reads needs none. What it has written is durable
    /// once the file has been synced, or with its first blocks ([`LogWriter::harden`]).
    ///
    /// # Errors
    /// `NoSpace`, `Medium`.
    pub fn format(block: &dyn Block, superblock: &Superblock) -> Result<(), JournalError> {
        recovery::format(block, superblock)
            .map_err(|source| JournalError::Medium { path: PathBuf::new(), source })
    }

    /// Attaches a log. With `first` nobody else has it: it is recovered, and the sharing begins in
    /// `segment` from byte `base` on, which holds zeros. Otherwise it joins those that share it.
    ///
    /// # Errors
    /// `Corrupt` for a damaged log, `Settings` when others use it with other settings, `Medium`.
    pub fn attach(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        segment: Arc<dyn Segment>,
        base: u64,
        first: bool,
    ) -> Result<Self, JournalError> {
        if first {
            return Self::recover(block, superblock, path, options, (segment, base), None);
        }
        Self::join(block, superblock, path, options, segment, base, None)
    }

    /// Begins the sharing of a log that nobody has with what it holds, in one pass over it, and makes that durable: whoever
    /// wrote it may have died before it was.
    fn recover(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        (segment, base): (Arc<dyn Segment>, u64),
        left: Option<Recovered>,
    ) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Medium { path: path.to_path_buf(), source };
        let scan = recovery::Scan::begin(block.as_ref(), &superblock, &failed)?;
        let nothing = Recovered { generation: scan.generation(), end: recovery::NEW.end };
        let mut log = Self::alone(block.clone(), superblock.clone(), path, options, nothing)?;
        log.chains.keep_images(true);
        log.enter(scan.generation())?;
        let found = scan.find_end(left, &mut |group| log.take_in_group(group))?;
        found.settle(block.as_ref(), &superblock).map_err(failed)?;
        log.group =
            Arc::new(framing::join(segment, base, block, &superblock, options, Some(found.recovered))?);
        log.refresh()?;
        log.chains.keep_images(false);
        Ok(log)
    }

    /// Begins the sharing of a log with what it is known to hold, or joins those that share it.
    fn join(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        segment: Arc<dyn Segment>,
        base: u64,
        known: Option<Recovered>,
    ) -> Result<Self, JournalError> {
        let group = framing::join(segment, base, block, &superblock, options, known)?;
        let mut log = Self::over(group, superblock, path, options);
        log.refresh()?;
        Ok(log)
    }

    /// A log that nobody is joined with.
    fn alone(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
        options: &WaldioOptions,
        known: Recovered,
    ) -> Result<Self, JournalError> {
        let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
        let group = framing::join(segment, 0, block, &superblock, options, Some(known))?;
        Ok(Self::over(group, superblock, path, options))
    }

    /// Opens a log to look at it, as recovery would find it. Changes nothing.
    ///
    /// # Errors
    /// `Corrupt`, `Medium`.
    pub fn open_read_only(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
    ) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Medium { path: path.to_path_buf(), source };
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
            unwaited: None,
            activity: Activity::default(),
        }
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether the log was retired and never used again.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// The generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Committed transactions in this generation.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.sequence
    }

    /// Bytes of the file that the generation takes which was taken in last: it may be over.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        DATA_OFFSET + (self.end - self.start)
    }

    fn log_id(&self) -> LogId {
        self.superblock.head.log_id
    }

    fn failed(&self, source: MediumError) -> JournalError {
        JournalError::Medium { path: self.path.clone(), source }
    }

    fn damaged(&self, position: u64, what: &'static str) -> JournalError {
        let offset = self.group.offset_of(self.generation, position);
        JournalError::Corrupt { offset, what: FormatError::Damaged { what } }
    }

    fn enter(&mut self, generation: u64) -> Result<(), JournalError> {
        let failed = |source| self.failed(source);
        let slot = recovery::load_slot(self.group.block(), &self.superblock, generation, &failed)?;
        self.begin(&slot)
    }

    /// Starts the log over, and goes on with the generation that begins.
    fn start_over(&mut self, new: NewGeneration) -> Result<(), JournalError> {
        let generation = self.group.switch(&new)?;
        let NewGeneration { wal_header, retired, position, time_ms, .. } = new;
        // As it was written just now, unread.
        self.begin(&Slot { generation, wal_header, retired, file_bytes: 0, position, time_ms })?;
        self.refresh()
    }

    /// Takes in a generation from its beginning on.
    fn begin(&mut self, slot: &Slot) -> Result<(), JournalError> {
        let header = match slot.wal_header {
            Some(bytes) => {
                let header = WalHeader::parse(&bytes);
                Some(header.map_err(|what| JournalError::Corrupt { offset: 0, what })?)
            }
            None => None,
        };
        if header.is_some_and(|header| header.page_bytes != self.superblock().head.page_bytes) {
            return Err(self.damaged(0, "the log's page size"));
        }
        self.drop_staged();
        self.chains.clear();
        self.window.clear();
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

    /// An empty generation behind this one.
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
        use duralite_medium::block::Durability;
        match self.group.block().guarantee() {
            Guarantee::PowerLoss if !self.options.waits() => Guarantee::Ordered,
            Guarantee::PowerLoss if self.options.durability == Durability::Normal => Guarantee::SystemCrash,
            guarantee => guarantee,
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
        vec![
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
        ]
    }

    fn configure(&mut self, _options: &EngineOptions) {}

    fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    fn fill(&self) -> Fill {
        Fill { used_bytes: self.used_bytes(), limit_bytes: self.superblock.limit_bytes }
    }

    fn retire(&mut self) -> Result<(), JournalError> {
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
    ) -> Result<(), JournalError> {
        self.refresh()?;
        if header.is_some_and(|header| header.page_bytes != self.superblock().head.page_bytes) {
            return Err(JournalError::Unexpected("a WAL header with another page size than the log's"));
        }
        self.drop_staged();
        let wal_header = header.map(|header| header.bytes);
        self.activity.generations += 1;
        self.start_over(NewGeneration { wal_header, ..self.empty_generation() })
    }

    fn clear(&mut self, _file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), JournalError> {
        self.refresh()?;
        self.drop_staged();
        self.activity.generations += 1;
        self.start_over(NewGeneration { keep_bytes: Some(keep_bytes), ..self.empty_generation() })
    }

    fn has_surplus(&self, keep_bytes: u64) -> bool {
        // Another process may have made the file longer; an error shows when something is read.
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
        // A group is durable with all of its transactions.
        let record = self.chains.record_of_frame(frame);
        record.is_some_and(|record| record.at & STAGED == 0 && record.at < self.group.durable_end())
    }

    fn is_current(&self) -> bool {
        // After what was read.
        self.group.fence();
        self.group.generation() == self.generation
    }

    fn refresh(&mut self) -> Result<(), JournalError> {
        loop {
            self.group.check()?;
            self.group.adopt_switch()?;
            let generation = self.group.generation();
            let followed = if generation == self.generation { Ok(()) } else { self.enter(generation) };
            let followed = followed.and_then(|()| self.follow());
            match followed {
                _ if self.group.generation() != generation => {
                    // What was read was being recycled.
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

    fn read_page(
        &mut self,
        _file: &dyn DatabaseFile,
        frame: u32,
        page: &mut [u8],
    ) -> Result<(), JournalError> {
        let (log, open, generation) = ((&*self.group, &self.superblock), &self.open, self.generation);
        let mut bytes = std::mem::take(&mut self.payload);
        let result = self.chains.read_page(frame, page, &mut |record, page| {
            open.apply(log, generation, record, &mut bytes, page)
        });
        self.payload = bytes;
        result
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
    ) -> Result<(), JournalError> {
        match self.superblock().layout {
            Layout::Delta => self.stage_difference(frame, page_number, page),
            Layout::Embedded => self.stage_frame(frame, page_number, page),
        }
    }

    fn discard_staged(&mut self) -> Result<(), JournalError> {
        self.drop_staged();
        Ok(())
    }

    fn seal(&mut self, _file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, JournalError> {
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

    fn force(&mut self) -> Result<(), JournalError> {
        self.group.force()
    }

    fn harden(&mut self) -> Result<bool, JournalError> {
        self.refresh()?;
        let group = Arc::clone(&self.group);
        let failed = |source| self.failed(source);
        // Anew: whoever wrote it may have seen its sync fail, and have died.
        let mut head = vec![0; DATA_OFFSET as usize];
        group.block().read(0, &mut head).map_err(failed)?;
        if !group.has_blocks() {
            // From now on a file that is shorter has been cut. Until the blocks are there the guard is provisional, and stays so
            // where there is no room for them.
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
    /// Whether the committer has to wait: always, except under Group Synch while its buffer is
    /// neither full nor old (section 4.3).
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
