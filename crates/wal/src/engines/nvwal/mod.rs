//! NVWAL: the write-ahead log in byte-addressable memory (Kim et al., ASPLOS 2016).
//!
//! A transaction is one header and one record per frame. A record holds the bytes in which a page differs from its last logged
//! image (section 3.2). The engine stores them in blocks of a user-level heap (3.3), and makes them durable in one of the orders
//! of section 4. The layout is `docs/format/nvwal.md`.
//!
//! Invariants kept here: 4, 7, 8, 10, 11, 12. The state that survives a crash is on the medium only. Each process rebuilds the
//! fields of [`Nvwal`] by scanning the log.

mod descriptor;
mod end;
mod files;
mod options;
mod salvage;
mod scan;
mod transaction;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use duralite_format::nvwal::{
    ACTIVE_OFFSET, GROWN_OFFSET, NO_BLOCK, Order, STATES_OFFSET, SUPERBLOCK_BYTES, Slot, Superblock,
    checked_word,
};
use duralite_format::sqlite_wal::WalHeader;
use duralite_format::{FormatError, LogId, Origin};
use duralite_medium::{Guarantee, Nvm};

use crate::engine::home::DatabaseFile;
use crate::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
    wall_clock,
};
pub use crate::engines::nvwal::salvage::walk;
use crate::shared::delta_chains::{Committed, DeltaChains, Record, apply_record};
use crate::shared::generations::InForce;
use crate::shared::heap::{self, BlockList, Heap};
use crate::{EngineOptions, LogError};
pub use descriptor::DESCRIPTOR;
pub use files::open_read_only;
use options::NAME;
pub use options::{HeapMode, NvwalOptions, SyncMode};
use scan::{Expected, FoundTransaction, Position};
use transaction::Writer;

/// Counters of what an engine has done since this process opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Transactions sealed.
    pub commits: u64,
    /// Frames in the sealed transactions.
    pub frames: u64,
    /// Records stored, including staged records that were dropped later.
    pub records: u64,
    /// Generations begun.
    pub generations: u64,
}

/// The limit in bytes of a log for which none is set, if the size of the file system is not known.
const NO_LIMIT: u64 = 1 << 40;
/// About how many blocks a log may have at most if the engine chooses their size. Each block costs a byte of the table of states,
/// which has its full size from the beginning.
const STATES: u64 = 1 << 20;
const LARGEST_BLOCK: u32 = 1 << 28;

/// A log in NVRAM.
pub struct Nvwal {
    superblock: Superblock,
    heap: Heap,
    options: NvwalOptions,
    active: u64,
    slot: Slot,
    origin: Origin,
    wal_header: Option<WalHeader>,
    /// The blocks of the committed list, in order; the last holds `tail`.
    blocks: BlockList,
    /// Place after the last committed transaction.
    tail: Position,
    /// Committed transactions in this generation.
    sequence: u32,
    /// Order of the last committed transaction.
    last_order: Order,
    /// When the last transaction was sealed, or when the generation began if it has none, in milliseconds since 1970. Meaningless
    /// if the log does not say when the generation began: see [`Nvwal::told_time`].
    time_ms: u64,
    clock: Clock,
    chains: DeltaChains,
    writer: Writer,
    /// Ranges of sealed transactions that have not been flushed.
    unforced: Vec<(u64, u64)>,
    /// Ranges that another process stored last. This process has read them, but the other one may have died before it flushed
    /// them. This process makes them durable before it marks a transaction that depends on them.
    doubtful: Vec<(u64, u64)>,
    activity: Activity,
    payload: Vec<u8>,
    record: Vec<u8>,
}

impl Nvwal {
    /// Writes an empty log onto a medium of `superblock.file_bytes(initial blocks)` bytes of zeros.
    /// Durable on return, as far as the medium is.
    ///
    /// # Errors
    /// `Medium` when the medium cannot grow to that size.
    pub fn format(nvm: &dyn Nvm, superblock: &Superblock) -> Result<(), LogError> {
        let blocks = geometry(superblock).initial_blocks();
        nvm.grow(superblock.file_bytes(blocks))
            .map_err(|source| LogError::Medium { path: PathBuf::new(), source })?;
        nvm.store(0, &superblock.encode());
        nvm.store_u64(GROWN_OFFSET, checked_word(blocks));
        InForce::first().write(nvm, superblock.head.log_id);
        nvm.flush(0, SUPERBLOCK_BYTES);
        nvm.fence();
        Ok(())
    }

    /// The shape of a new log for a database: bytes in a block, and most blocks.
    #[must_use]
    pub fn shape(options: &NvwalOptions, page_bytes: u32) -> (u32, u32) {
        let least = page_bytes.next_multiple_of(4096) + 4096;
        let limit_bytes = if options.limit_bytes == 0 { NO_LIMIT } else { options.limit_bytes };
        // A log that may become long has long blocks, so that its table of states stays small.
        let long = (limit_bytes / STATES).min(u64::from(LARGEST_BLOCK)).next_power_of_two() as u32;
        let block_bytes = match (options.block_bytes, options.heap) {
            (0, HeapMode::User) => (2 * page_bytes + 4096).max(65536).max(long),
            (0, HeapMode::System) => least,
            (size, _) => size.next_multiple_of(4096).max(least),
        };
        let states = if options.limit_bytes == 0 { 4 * STATES } else { 1 << 24 };
        let limit = (limit_bytes / u64::from(block_bytes)).clamp(4, states);
        (block_bytes, limit as u32)
    }

    /// Opens a formatted medium and reads every committed transaction. Stores nothing.
    ///
    /// # Errors
    /// `Format` if the medium holds no log of this version, `Corrupt` for a damaged log.
    pub fn open(nvm: Arc<dyn Nvm>, path: &Path, options: NvwalOptions) -> Result<Self, LogError> {
        let mut log = Self::load(nvm, path, options)?;
        log.refresh()?;
        Ok(log)
    }

    /// Reads the superblock, but no generation yet: [`Nvwal::follow`] does that.
    fn load(nvm: Arc<dyn Nvm>, path: &Path, options: NvwalOptions) -> Result<Self, LogError> {
        let mut bytes = vec![0; nvm.len().min(SUPERBLOCK_BYTES) as usize];
        nvm.read(0, &mut bytes);
        let superblock = Superblock::decode(&bytes)
            .map_err(|source| LogError::Format { log: path.to_path_buf(), source })?;
        let heap = Heap::open(nvm, geometry(&superblock), path.to_path_buf(), options.heap)?;
        let none = InForce::none();
        Ok(Self {
            heap,
            chains: DeltaChains::new(superblock.head.page_bytes, options.cache_bytes),
            superblock,
            options,
            active: none.active,
            slot: none.slot,
            origin: none.origin,
            wal_header: none.wal_header,
            blocks: BlockList::default(),
            tail: Position { block: 0, offset: 0 },
            sequence: 0,
            last_order: Order::Ordered,
            time_ms: 0,
            clock: wall_clock,
            writer: Writer::default(),
            unforced: Vec::new(),
            doubtful: Vec::new(),
            activity: Activity::default(),
            payload: Vec::new(),
            record: Vec::new(),
        })
    }

    /// Corrects the states of the blocks after a crash. The caller must be the only process that has the log.
    ///
    /// # Errors
    /// `Corrupt`, also if the log continues after its end: the blocks there would be freed otherwise.
    pub fn recover_heap(&mut self) -> Result<(), LogError> {
        self.check_end()?;
        self.cut_behind_tail()?;
        // The heap frees blocks by the list as this process sees it. A dead process may not have flushed the list: flush it
        // first.
        self.settle_doubtful();
        self.heap.flush_link(self.tail.block);
        self.heap.reconcile(&self.blocks);
        Ok(())
    }

    /// Whether the log was retired ([`LogFile::retire`]) and has not been used since.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.slot.retired
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Blocks in the committed list.
    #[must_use]
    pub fn blocks_used(&self) -> usize {
        self.blocks.len()
    }

    /// Committed transactions in this generation.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.sequence
    }

    /// The generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.slot.generation
    }

    fn log_id(&self) -> LogId {
        self.superblock.head.log_id
    }

    fn load_generation(&mut self, active: u64) -> Result<(), LogError> {
        let page_bytes = self.superblock.head.page_bytes;
        let found = InForce::read(self.heap.nvm.as_ref(), self.log_id(), page_bytes, active)?;
        if found.wal_header.is_some() {
            self.heap.check_block(found.slot.first_block, found.slot.generation)?;
        }
        self.enter_generation(found);
        self.doubtful = found.extents().to_vec();
        Ok(())
    }

    fn enter_generation(&mut self, found: InForce) {
        let InForce { active, slot, origin, wal_header } = found;
        self.active = active;
        self.slot = slot;
        self.origin = origin;
        self.time_ms = origin.time_ms;
        self.wal_header = wal_header;
        self.blocks.clear();
        if wal_header.is_some() {
            self.blocks.extend(&[slot.first_block]);
        }
        self.tail = Position::start_of(slot.first_block);
        self.sequence = 0;
        self.last_order = Order::Ordered;
        self.chains.clear();
        self.writer = Writer::default();
        self.unforced.clear();
        self.doubtful.clear();
    }

    /// One step of [`LogReader::refresh`]: applies the next committed transaction of the generation that the `active` word names.
    /// Returns it, if there is one.
    fn follow(&mut self, active: u64) -> Result<Option<FoundTransaction>, LogError> {
        // Until a generation is loaded, `self.active` is 0. A damaged word of 0 must not pass for it.
        if active != self.active || self.slot.generation == 0 {
            self.load_generation(active)?;
        }
        if self.wal_header.is_none() {
            return Ok(None);
        }
        let expected = self.expected(self.sequence + 1);
        let Some(found) =
            scan::next_transaction(&mut self.heap, &self.blocks, self.tail, expected, &mut self.record)?
        else {
            return Ok(None);
        };
        self.drop_staged();
        let header = found.header;
        for record in &found.records {
            if !self.chains.found(record.at, &record.header) {
                let what = FormatError::Damaged { what: "a transaction's frame numbers" };
                return Err(LogError::Corrupt { offset: record.at, what });
            }
        }
        let (first, count) = self.chains.staged_frames();
        if first != found.first_frame || header.last_frame - first >= count {
            let what = FormatError::Damaged { what: "a transaction's frame numbers" };
            return Err(self.heap.corrupt(found.start.block, found.start.offset, what));
        }
        self.advance_time(header.elapsed_ms);
        self.chains.commit(&Committed {
            last_frame: header.last_frame,
            db_pages: header.db_pages,
            checksum: Some(header.wal_checksum),
            sequence: self.sequence + 1,
            time_ms: self.told_time(),
        });
        // The process that marked this transaction had made durable what it depends on.
        self.doubtful.clear();
        let waits = match found.order {
            Order::Async => &mut self.unforced,
            Order::Ordered | Order::Fenced => &mut self.doubtful,
        };
        found.extents(&self.heap, waits);
        self.blocks.extend(found.blocks.as_slice());
        self.tail = found.end;
        self.sequence += 1;
        self.last_order = found.order;
        Ok(Some(found))
    }

    /// What the scan needs to recognise the transaction of this number in this generation.
    fn expected(&self, sequence: u32) -> Expected {
        Expected {
            id: self.log_id(),
            generation: self.slot.generation,
            sequence,
            after: self.last_order,
            frames: self.chains.frames(),
        }
    }

    fn drop_staged(&mut self) {
        self.chains.discard();
        self.writer.open = None;
    }

    /// Advances the time to that of a transaction which was sealed so many milliseconds after the one before.
    fn advance_time(&mut self, elapsed_ms: u32) {
        self.time_ms = self.time_ms.saturating_add(u64::from(elapsed_ms));
    }

    /// When the last transaction was sealed, in milliseconds since 1970; 0 if the log does not say when the generation began.
    fn told_time(&self) -> u64 {
        if self.origin.time_ms > 0 { self.time_ms } else { 0 }
    }
}

/// Where the blocks of a log are.
fn geometry(superblock: &Superblock) -> heap::Geometry {
    let Superblock { block_bytes, limit_blocks, blocks_offset, .. } = *superblock;
    let (states_offset, grown_offset) = (STATES_OFFSET, GROWN_OFFSET);
    heap::Geometry { block_bytes, limit_blocks, blocks_offset, states_offset, grown_offset }
}

/// Returns a function that reads a record from the medium and applies it to a page.
fn apply_from<'a>(
    nvm: &'a dyn Nvm,
    bytes: &'a mut Vec<u8>,
) -> impl FnMut(&Record, &mut [u8]) -> Result<(), LogError> + 'a {
    move |record, page| {
        bytes.resize(record.record_bytes as usize, 0);
        nvm.read(record.at, bytes);
        apply_record(page, bytes).map_err(|what| LogError::Corrupt { offset: record.at, what })
    }
}

impl Engine for Nvwal {}

impl LogFile for Nvwal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn id(&self) -> LogId {
        self.log_id()
    }

    fn page_bytes(&self) -> u32 {
        self.superblock.head.page_bytes
    }

    fn guarantee(&self) -> Guarantee {
        self.heap.nvm.guarantee()
    }

    fn describe(&self) -> String {
        self.heap.nvm.describe()
    }

    fn metrics(&self) -> Vec<(&'static str, String)> {
        let (activity, counters) = (self.activity, self.heap.nvm.counters());
        let block_bytes = self.superblock.block_bytes;
        vec![
            ("sync", self.options.sync.as_str().to_owned()),
            ("diff", if self.options.diff { "on" } else { "off" }.to_owned()),
            ("heap", self.options.heap.as_str().to_owned()),
            ("generation", self.generation().to_string()),
            ("retired", self.is_retired().to_string()),
            ("log_frames", self.committed().to_string()),
            ("log_transactions", self.transactions().to_string()),
            ("log_bytes", (self.blocks.len() as u64 * u64::from(block_bytes)).to_string()),
            ("log_file_bytes", self.heap.file_bytes().to_string()),
            ("log_limit", self.heap.nvm.capacity().to_string()),
            ("block_bytes", block_bytes.to_string()),
            ("commits", activity.commits.to_string()),
            ("frames", activity.frames.to_string()),
            ("records", activity.records.to_string()),
            ("log_restarts", activity.generations.to_string()),
            ("stored_bytes", counters.stored_bytes.to_string()),
            ("flushed_lines", counters.flushed_lines.to_string()),
            ("fences", counters.fences.to_string()),
            ("read_bytes", counters.read_bytes.to_string()),
        ]
    }

    fn configure(&mut self, options: &EngineOptions) {
        self.options.sync = options.own::<NvwalOptions>().sync;
        self.heap.nvm.set_latency(options.media.latency);
    }

    fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    fn fill(&self) -> Fill {
        let used_bytes = self.blocks.len() as u64 * u64::from(self.superblock.block_bytes);
        Fill { used_bytes, limit_bytes: self.heap.limit_bytes() }
    }

    fn retire(&mut self) -> Result<(), LogError> {
        self.refresh()?;
        self.switch_generation(None, NO_BLOCK, true)
    }

    fn wal_header(&self) -> Option<&WalHeader> {
        self.wal_header.as_ref()
    }

    fn begin_generation(
        &mut self,
        _file: &dyn DatabaseFile,
        header: Option<&WalHeader>,
    ) -> Result<(), LogError> {
        self.start_over(header)
    }

    fn clear(&mut self, _file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), LogError> {
        self.start_over(None)?;
        self.heap.shrink(keep_bytes);
        Ok(())
    }

    fn has_surplus(&self, keep_bytes: u64) -> bool {
        self.heap.grown() > self.heap.kept_blocks(keep_bytes)
    }
}

impl LogReader for Nvwal {
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
        // A visible frame is durable, or as durable as `SyncMode::Async` makes it.
        frame <= self.committed()
    }

    fn is_current(&self) -> bool {
        // Orders the load of the active word after the reads that the caller has made.
        fence(Ordering::SeqCst);
        self.heap.nvm.load_u64(ACTIVE_OFFSET) == self.active
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        loop {
            let active = self.heap.nvm.load_u64(ACTIVE_OFFSET);
            match self.follow(active) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // The generation changed during the scan, which may have read recycled blocks: read again.
                Err(_) if self.heap.nvm.load_u64(ACTIVE_OFFSET) != active => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn version(&self) -> u64 {
        self.slot.generation.rotate_left(32) ^ u64::from(self.sequence)
    }

    fn committed(&self) -> u32 {
        self.chains.frames()
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.chains.frame(number)
    }

    fn read_page(&mut self, _file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        let mut apply = apply_from(self.heap.nvm.as_ref(), &mut self.record);
        self.chains.read_page(frame, page, &mut apply)
    }
}

impl LogWriter for Nvwal {
    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        None
    }

    fn has_staged(&self) -> bool {
        self.chains.has_staged()
    }

    fn outgrows(&self, _bytes: usize) -> bool {
        false
    }

    fn stage(
        &mut self,
        _file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError> {
        let mut payload = std::mem::take(&mut self.payload);
        let result = self.stage_record(frame, page_number, page, &mut payload);
        self.payload = payload;
        result
    }

    fn discard_staged(&mut self) -> Result<(), LogError> {
        self.drop_staged();
        Ok(())
    }

    fn seal(&mut self, _file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, LogError> {
        self.seal_staged(commit).map(|()| None)
    }

    fn force(&mut self) -> Result<(), LogError> {
        // No mark is stored in between, so one fence is enough for both.
        self.doubtful.append(&mut self.unforced);
        self.settle_doubtful();
        Ok(())
    }
}
