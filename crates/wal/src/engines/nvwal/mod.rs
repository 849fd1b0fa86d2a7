//! NVWAL: the write-ahead log in byte-addressable memory (Kim et al., ASPLOS 2016).
//!
//! A transaction is one header and one record per frame. A record holds the bytes in which a page differs from its last
//! logged image (section 3.2). The engine stores transactions in blocks of a user-level heap (3.3), and makes them durable
//! in one of the orders of section 4. The layout is `docs/format/nvwal.md`.
//!
//! Invariants kept here: 4, 7, 8, 10, 11, 12. The state that survives a crash is on the medium only. Each process rebuilds the
//! fields of [`Nvwal`] by scanning the log.

mod end;
mod files;
mod options;
mod salvage;
mod scan;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use duralite_format::nvwal::{
    ACTIVE_OFFSET, GROWN_OFFSET, NO_BLOCK, Order, STATES_OFFSET, SUPERBLOCK_BYTES, Superblock, TxHash,
    checked_word,
};
use duralite_format::sqlite_wal::WalHeader;
use duralite_format::{LogId, Origin};
use duralite_medium::{Guarantee, Nvm};

use crate::engine::home::DatabaseFile;
use crate::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
    wall_clock,
};
use crate::shared::delta_chains::{Committed, DeltaChains, Record, apply_record};
use crate::shared::generations::{InForce, SealTime};
use crate::shared::heap::{self, BlockList, Heap};
use crate::shared::log_memory::first_bytes;
use crate::{EngineOptions, LogError};
pub use files::{DESCRIPTOR, open_read_only};
use options::NAME;
pub use options::{HeapMode, NvwalOptions, SyncMode};
pub use salvage::walk;
use scan::{Expected, FoundTransaction, Position};

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

/// The limit of a log in bytes, if the options set none and the size of the file system is not known.
const NO_LIMIT: u64 = 1 << 40;
/// If the engine chooses the block size, a log has at most about this many blocks. Each block costs a byte of the table
/// of states, which has its full size from the beginning.
const STATES: u64 = 1 << 20;
const LARGEST_BLOCK: u32 = 1 << 28;

/// A log in NVRAM.
pub struct Nvwal {
    superblock: Superblock,
    heap: Heap,
    options: NvwalOptions,
    in_force: InForce,
    /// The blocks of the committed list, in order. The last block contains `tail`.
    blocks: BlockList,
    /// The place after the last committed transaction.
    tail: Position,
    /// Number of committed transactions in this generation.
    sequence: u32,
    /// Order of the last committed transaction.
    last_order: Order,
    sealed_at: SealTime,
    clock: Clock,
    chains: DeltaChains,
    writer: Writer,
    /// Ranges of sealed transactions that have not been flushed yet.
    unforced: Vec<(u64, u64)>,
    /// Ranges of the newest transaction, if another process stored it: the whole transaction, or, with the order
    /// `Async`, only its mark. This process has read these ranges, but the other process may have died before it
    /// flushed them. So this process flushes them before it stores the mark of a transaction that depends on them.
    doubtful: Vec<(u64, u64)>,
    activity: Activity,
    payload: Vec<u8>,
    record: Vec<u8>,
}

impl Nvwal {
    /// Makes the medium large enough for a new log, and writes an empty log onto it. The medium holds only zeros before
    /// this call. The log is durable on return, as far as the medium is durable.
    ///
    /// # Errors
    /// `Medium` if the medium cannot grow to that size.
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

    /// Returns the block size in bytes and the largest number of blocks, for a new log of a database with this page
    /// size.
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

    /// Reads the superblock, but no generation. [`Nvwal::follow`] reads the generation later.
    fn load(nvm: Arc<dyn Nvm>, path: &Path, options: NvwalOptions) -> Result<Self, LogError> {
        let superblock = Superblock::decode(&first_bytes(nvm.as_ref(), SUPERBLOCK_BYTES))
            .map_err(|source| LogError::Format { log: path.to_path_buf(), source })?;
        let heap = Heap::open(nvm, geometry(&superblock), path.to_path_buf(), options.heap)?;
        Ok(Self {
            heap,
            chains: DeltaChains::new(superblock.head.page_bytes, options.cache_bytes),
            superblock,
            options,
            in_force: InForce::none(),
            blocks: BlockList::default(),
            tail: Position { block: 0, offset: 0 },
            sequence: 0,
            last_order: Order::Ordered,
            sealed_at: SealTime::default(),
            clock: wall_clock,
            writer: Writer::default(),
            unforced: Vec::new(),
            doubtful: Vec::new(),
            activity: Activity::default(),
            payload: Vec::new(),
            record: Vec::new(),
        })
    }

    /// Erases what a crash has left after the end of the log, and corrects the states of the blocks. No other process may
    /// have the log open.
    ///
    /// # Errors
    /// `Corrupt`, also if transactions may follow the end that recovery has found, because freeing their blocks would
    /// destroy them.
    pub fn recover_heap(&mut self) -> Result<(), LogError> {
        self.check_end()?;
        self.erase_behind_end()?;
        self.cut_behind_tail()?;
        // The heap frees the blocks that are not in this process's list. A dead process may have linked some of the
        // listed blocks without flushing the links, so flush the links first.
        self.settle_doubtful();
        self.heap.flush_link(self.tail.block);
        self.heap.reconcile(&self.blocks);
        Ok(())
    }

    /// Returns whether the log was retired ([`LogFile::retire`]) and has not been used since.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.in_force.slot.retired
    }

    /// Returns the superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the number of blocks in the committed list.
    #[must_use]
    pub fn blocks_used(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of committed transactions in this generation.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.sequence
    }

    /// Returns the generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.in_force.slot.generation
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
        self.in_force = found;
        self.sealed_at = SealTime::at_begin(&found.origin);
        self.blocks.clear();
        if found.wal_header.is_some() {
            self.blocks.extend(&[found.slot.first_block]);
        }
        self.tail = Position::start_of(found.slot.first_block);
        self.sequence = 0;
        self.last_order = Order::Ordered;
        self.chains.clear();
        self.writer = Writer::default();
        self.unforced.clear();
        self.doubtful.clear();
    }

    /// Does one step of [`LogReader::refresh`]: applies the next committed transaction of the generation that the word
    /// `active` identifies. Returns that transaction, if there is one.
    fn follow(&mut self, active: u64) -> Result<Option<FoundTransaction>, LogError> {
        // Until a generation is loaded, `in_force.active` is 0. A damaged `active` may be 0 too, so check the
        // generation's number as well.
        if active != self.in_force.active || self.in_force.slot.generation == 0 {
            self.load_generation(active)?;
        }
        if self.in_force.wal_header.is_none() {
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
        let at = self.heap.at(found.start.block, found.start.offset);
        self.chains.found(at, &found.records, found.first_frame, header.last_frame)?;
        self.sealed_at.advance(header.elapsed_ms);
        self.chains.commit(&Committed {
            last_frame: header.last_frame,
            db_pages: header.db_pages,
            checksum: Some(header.wal_checksum),
            sequence: self.sequence + 1,
            time_ms: self.sealed_at.told(),
        });
        // The other process made durable everything that this transaction depends on before it stored the transaction's
        // mark.
        self.doubtful.clear();
        let waits = match found.order {
            Order::Async => {
                // Flush this mark before storing the mark of the next transaction, so that marks become durable in
                // order.
                self.doubtful.push((at, at + 8));
                &mut self.unforced
            }
            Order::Ordered | Order::Fenced => &mut self.doubtful,
        };
        found.extents(&self.heap, waits);
        self.blocks.extend(found.blocks.as_slice());
        self.tail = found.end;
        self.sequence += 1;
        self.last_order = found.order;
        Ok(Some(found))
    }

    /// Returns what the scan needs to recognise the transaction with this number in this generation.
    fn expected(&self, sequence: u32) -> Expected {
        Expected {
            id: self.log_id(),
            generation: self.in_force.slot.generation,
            sequence,
            after: self.last_order,
            frames: self.chains.frames(),
        }
    }

    fn drop_staged(&mut self) {
        self.chains.discard();
        self.writer.open = None;
    }
}

/// The transaction that the writer is storing after the log's tail.
#[derive(Default)]
struct Writer {
    open: Option<OpenTransaction>,
    /// The buffer that held the last transaction's ranges, for reuse.
    spare: Vec<(u64, u64)>,
}

/// The open transaction in the log.
struct OpenTransaction {
    /// Place of the transaction's header.
    start: Position,
    /// Place of the transaction's next record.
    end: Position,
    hash: TxHash,
    records: u32,
    /// Blocks that were linked to the list for the transaction.
    blocks: Vec<u32>,
    /// Stored ranges that are not flushed yet. Adjacent ranges are merged.
    dirty: Vec<(u64, u64)>,
}

impl OpenTransaction {
    /// Adds a stored range to the ranges that have to be flushed. Within a block the writer stores from low to high addresses.
    fn touch(&mut self, from: u64, to: u64) {
        match self.dirty.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => self.dirty.push((from, to)),
        }
    }
}

/// Returns where the parts of a log's heap are.
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
        self.in_force.wal_header.as_ref()
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
        self.in_force.origin
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
        // Make this load happen after the caller's reads.
        fence(Ordering::SeqCst);
        self.heap.nvm.load_u64(ACTIVE_OFFSET) == self.in_force.active
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        loop {
            let active = self.heap.nvm.load_u64(ACTIVE_OFFSET);
            match self.follow(active) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // The generation changed during the scan, which may have read recycled blocks. So scan again.
                Err(_) if self.heap.nvm.load_u64(ACTIVE_OFFSET) != active => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn version(&self) -> u64 {
        self.in_force.slot.generation.rotate_left(32) ^ u64::from(self.sequence)
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

    fn read_in_order(&mut self) {
        self.chains.read_in_order();
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
        // No mark is stored between the two flushes, so one fence is enough for both.
        self.doubtful.append(&mut self.unforced);
        self.settle_doubtful();
        Ok(())
    }
}
