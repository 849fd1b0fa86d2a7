//! NVWAL: the write-ahead log in byte-addressable memory (Kim et al., ASPLOS 2016).
//!
//! A transaction is one header and one record per frame, each record the bytes in which a page
//! differs from its last logged image (section 3.2), in blocks of a user-level heap (3.3), made
//! durable by one of the orders of section 4. The layout is `docs/format/nvwal.md`.
//!
//! Invariants kept here: 4, 7, 8, 10, 11, 12. The state that survives a crash is on the medium only; the
//! fields of [`Nvwal`] are rebuilt by scanning.

mod heap;
mod images;
mod index;
mod options;
mod scan;
mod walk;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_logfmt::nvwal::{
    ACTIVE_OFFSET, Base, GENERATION_LIMIT, NO_BLOCK, Order, RECORD_HEADER_BYTES, RecordHeader, SLOT_BYTES,
    SUPERBLOCK_BYTES, Slot, Superblock, checked_word, read_checked_word, slot_offset,
};
use duralite_logfmt::sqlite_wal::{WAL_HEADER_BYTES, WalHeader};
use duralite_logfmt::{FormatError, LogId, diff};
use duralite_medium::Nvm;

use crate::JournalError;
use crate::engine::{Commit, Engine, Frame};
use heap::Heap;
use images::Images;
use index::{Index, RecordNumber};
pub use options::{HeapMode, NvwalOptions, SyncMode};
use scan::{Expected, FoundTransaction, Position};
pub use walk::{WalkSummary, WalkedRecord, WalkedTransaction, walk};
use writer::Writer;

/// What an engine has done since it was opened, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Transactions sealed.
    pub commits: u64,
    /// Frames in them.
    pub frames: u64,
    /// Records stored, staged ones that were dropped included.
    pub records: u64,
    /// Generations begun.
    pub generations: u64,
}

/// A log in NVRAM.
pub struct Nvwal {
    heap: Heap,
    options: NvwalOptions,
    active: u64,
    slot: Slot,
    wal_header: Option<WalHeader>,
    /// The blocks of the committed list, in order; the last holds `tail`.
    blocks: Vec<u32>,
    /// Behind the last committed transaction.
    tail: Position,
    /// Committed transactions in this generation.
    sequence: u32,
    /// Order of the last one.
    last_order: Order,
    index: Index,
    images: Images,
    writer: Writer,
    /// Ranges sealed without being flushed.
    unhardened: Vec<(u64, u64)>,
    activity: Activity,
    zeros: Box<[u8]>,
    payload: Vec<u8>,
}

impl Nvwal {
    /// Writes an empty log onto a medium of `superblock.file_bytes(initial blocks)` bytes of zeros.
    /// Durable on return, as far as the medium is.
    ///
    /// # Errors
    /// `Medium` when the medium cannot grow to that size.
    pub fn format(nvm: &dyn Nvm, superblock: &Superblock) -> Result<(), JournalError> {
        let blocks = Heap::initial_blocks(superblock);
        nvm.grow(superblock.file_bytes(blocks))
            .map_err(|source| JournalError::Medium { path: PathBuf::new(), source })?;
        let slot =
            Slot { generation: 1, first_block: NO_BLOCK, wal_header: [0; WAL_HEADER_BYTES], retired: false };
        nvm.store(0, &superblock.encode());
        nvm.store(slot_offset(1), &slot.encode(superblock.log_id));
        nvm.store_u64(duralite_logfmt::nvwal::GROWN_OFFSET, checked_word(blocks));
        nvm.store_u64(ACTIVE_OFFSET, checked_word(1));
        nvm.flush(0, SUPERBLOCK_BYTES);
        nvm.fence();
        Ok(())
    }

    /// The shape of a new log for a database.
    #[must_use]
    pub fn shape(options: &NvwalOptions, page_bytes: u32) -> (u32, u32) {
        let least = page_bytes.next_multiple_of(4096) + 4096;
        let block_bytes = match (options.block_bytes, options.heap) {
            (0, HeapMode::User) => (2 * page_bytes + 4096).max(65536),
            (0, HeapMode::System) => least,
            (size, _) => size.next_multiple_of(4096).max(least),
        };
        let limit = (options.limit_bytes / u64::from(block_bytes)).clamp(4, 1 << 24);
        (block_bytes, limit as u32)
    }

    /// Opens a formatted medium and reads every committed transaction. Stores nothing.
    ///
    /// # Errors
    /// `Format` for something else than a log of this version, `Corrupt` for a damaged one.
    pub fn open(nvm: Arc<dyn Nvm>, path: &Path, options: NvwalOptions) -> Result<Self, JournalError> {
        let mut log = Self::load(nvm, path, options)?;
        log.refresh()?;
        Ok(log)
    }

    /// Reads the superblock; the generation is still to be followed.
    fn load(nvm: Arc<dyn Nvm>, path: &Path, options: NvwalOptions) -> Result<Self, JournalError> {
        let mut bytes = vec![0; nvm.len().min(SUPERBLOCK_BYTES) as usize];
        nvm.read(0, &mut bytes);
        let superblock = Superblock::decode(&bytes)
            .map_err(|source| JournalError::Format { log: path.to_path_buf(), source })?;
        let page_bytes = superblock.page_bytes as usize;
        let heap = Heap::open(nvm, superblock, path.to_path_buf(), options.heap)?;
        Ok(Self {
            heap,
            images: Images::new(page_bytes, options.cache_bytes),
            options,
            active: 0,
            slot: Slot {
                generation: 0,
                first_block: NO_BLOCK,
                wal_header: [0; WAL_HEADER_BYTES],
                retired: false,
            },
            wal_header: None,
            blocks: Vec::new(),
            tail: Position { block: 0, offset: 0 },
            sequence: 0,
            last_order: Order::Ordered,
            index: Index::default(),
            writer: Writer::default(),
            unhardened: Vec::new(),
            activity: Activity::default(),
            zeros: vec![0; page_bytes].into_boxed_slice(),
            payload: Vec::new(),
        })
    }

    /// Puts the block states right after a crash. Only for the one process that has the log.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn recover_heap(&mut self) -> Result<(), JournalError> {
        self.cut_behind_tail()?;
        self.heap.reconcile(&self.blocks);
        Ok(())
    }

    /// Declares that everything is in the database file and synced. Durable on return.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn retire(&mut self) -> Result<(), JournalError> {
        self.refresh()?;
        self.switch_generation(None, NO_BLOCK, true)
    }

    /// Whether the log was retired and never used again.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.slot.retired
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.heap.superblock
    }

    /// The medium.
    #[must_use]
    pub fn nvm(&self) -> &Arc<dyn Nvm> {
        &self.heap.nvm
    }

    /// Work done so far.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.activity
    }

    /// Settings in force.
    #[must_use]
    pub fn options(&self) -> &NvwalOptions {
        &self.options
    }

    /// Changes the order of write-back from the next transaction on.
    pub fn set_sync_mode(&mut self, mode: SyncMode) {
        self.options.sync = mode;
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
    pub fn generation(&self) -> u32 {
        self.slot.generation
    }

    /// The pages with committed frames, each with the number of its newest one.
    #[must_use]
    pub fn newest_frames(&self) -> Vec<(u32, u32)> {
        let mut pages: Vec<_> = self.index.newest_frames().into_iter().collect();
        pages.sort_unstable();
        pages
    }

    fn log_id(&self) -> LogId {
        self.heap.superblock.log_id
    }

    fn load_generation(&mut self, active: u64) -> Result<(), JournalError> {
        let damaged = |offset, what| JournalError::Corrupt { offset, what };
        let generation = read_checked_word(active, "the log's active generation")
            .ok()
            .filter(|generation| (1..GENERATION_LIMIT).contains(generation))
            .ok_or_else(|| {
                damaged(ACTIVE_OFFSET, FormatError::Damaged { what: "the log's active generation" })
            })?;
        let at = slot_offset(generation);
        let mut bytes = [0; SLOT_BYTES];
        self.heap.nvm.read(at, &mut bytes);
        let slot = Slot::decode(&bytes, self.log_id(), generation).map_err(|e| damaged(at, e))?;
        let wal_header = if slot.first_block == NO_BLOCK {
            None
        } else {
            let header = WalHeader::parse(&slot.wal_header).map_err(|e| damaged(at, e))?;
            if header.page_bytes != self.heap.superblock.page_bytes {
                return Err(damaged(at, FormatError::Damaged { what: "the log's page size" }));
            }
            self.heap.check_block(slot.first_block, generation)?;
            Some(header)
        };
        self.enter_generation(active, slot, wal_header);
        Ok(())
    }

    fn enter_generation(&mut self, active: u64, slot: Slot, wal_header: Option<WalHeader>) {
        self.active = active;
        self.slot = slot;
        self.wal_header = wal_header;
        self.blocks.clear();
        if wal_header.is_some() {
            self.blocks.push(slot.first_block);
        }
        self.tail = Position::start_of(slot.first_block);
        self.sequence = 0;
        self.last_order = Order::Ordered;
        self.index = Index::default();
        self.images.clear();
        self.writer = Writer::default();
        self.unhardened.clear();
    }

    /// One step of [`Engine::refresh`]: the next committed transaction of the generation that the
    /// `active` word names, if there is one.
    fn follow(&mut self, active: u64) -> Result<Option<FoundTransaction>, JournalError> {
        // Before the first one is loaded there is nothing that a damaged word may be equal to.
        if active != self.active || self.slot.generation == 0 {
            self.load_generation(active)?;
        }
        if self.wal_header.is_none() {
            return Ok(None);
        }
        let expected = Expected {
            generation: self.slot.generation,
            sequence: self.sequence + 1,
            after: self.last_order,
            frames: self.index.frames(),
        };
        let Some(found) = scan::next_transaction(&mut self.heap, self.tail, expected)? else {
            return Ok(None);
        };
        self.drop_staged();
        let header = found.header;
        for record in &found.records {
            let RecordHeader { record_bytes, frame, page_number, base, .. } = record.header;
            let staged = self.index.stage(frame, page_number, record.at, record_bytes, base);
            if staged.is_none() {
                let what = FormatError::Damaged { what: "a transaction's frame numbers" };
                return Err(JournalError::Corrupt { offset: record.at, what });
            }
            self.images.remove(page_number);
        }
        let (first, count) = self.index.staged_frames();
        if first != header.first_frame || header.last_frame - first >= count {
            let what = FormatError::Damaged { what: "a transaction's frame numbers" };
            return Err(self.heap.corrupt(found.start.block, found.start.offset, what));
        }
        self.index.commit(header.last_frame, header.db_pages, header.wal_checksum);
        if found.order == Order::Async {
            self.unhardened.extend(found.extents(&self.heap));
        }
        self.blocks.extend(&found.blocks);
        self.tail = found.end;
        self.sequence += 1;
        self.last_order = found.order;
        Ok(Some(found))
    }

    fn drop_staged(&mut self) {
        let images = &mut self.images;
        self.index.discard(|page_number| images.remove(page_number));
        self.writer = Writer::default();
    }

    /// Rebuilds the image of `page` as of `record`.
    fn rebuild(&mut self, record: RecordNumber, page: &mut [u8]) -> Result<(), JournalError> {
        let missing = JournalError::Unexpected("a record number");
        let mut chain = Vec::with_capacity(8);
        let mut next = Some(record);
        while let Some(number) = next {
            let record = *self.index.record(number).ok_or_else(|| missing.clone())?;
            chain.push(record);
            next = record.previous;
        }
        page.fill(0);
        let mut bytes = std::mem::take(&mut self.payload);
        let mut result = Ok(());
        for record in chain.iter().rev() {
            bytes.resize(record.record_bytes as usize, 0);
            self.heap.nvm.read(record.at, &mut bytes);
            result =
                apply_record(page, &bytes).map_err(|what| JournalError::Corrupt { offset: record.at, what });
            if result.is_err() {
                break;
            }
        }
        self.payload = bytes;
        result
    }
}

fn apply_record(page: &mut [u8], bytes: &[u8]) -> Result<(), FormatError> {
    let short = FormatError::Short { what: "a log record" };
    let (head, payload) = bytes.split_at_checked(RECORD_HEADER_BYTES as usize).ok_or(short)?;
    let header = RecordHeader::decode(head.try_into().map_err(|_| short)?)?;
    diff::apply(page, header.ranges, payload)
}

impl Engine for Nvwal {
    fn wal_header(&self) -> Option<&WalHeader> {
        self.wal_header.as_ref()
    }

    fn refresh(&mut self) -> Result<(), JournalError> {
        loop {
            let active = self.heap.nvm.load_u64(ACTIVE_OFFSET);
            match self.follow(active) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // The generation changed under the scan: what it read was being recycled.
                Err(_) if self.heap.nvm.load_u64(ACTIVE_OFFSET) != active => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn version(&self) -> u64 {
        u64::from(self.slot.generation) << 32 | u64::from(self.sequence)
    }

    fn committed(&self) -> u32 {
        self.index.frames()
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.index.frame(number)
    }

    fn read_page(&mut self, frame: u32, page: &mut [u8]) -> Result<(), JournalError> {
        let missing = JournalError::Unexpected("a read of a frame that does not exist");
        let number = self.index.record_of_frame(frame).ok_or_else(|| missing.clone())?;
        let page_number = self.index.record(number).ok_or(missing)?.page_number;
        if let Some(image) = self.images.get(page_number, number) {
            page.copy_from_slice(image);
            return Ok(());
        }
        self.rebuild(number, page)?;
        if self.index.head(page_number).is_some_and(|head| head.record == number) {
            self.images.put(page_number, number, page);
        }
        Ok(())
    }

    fn begin_generation(&mut self, header: Option<&WalHeader>) -> Result<(), JournalError> {
        self.start_over(header)
    }

    fn has_staged(&self) -> bool {
        self.index.has_staged()
    }

    fn stage(&mut self, frame: u32, page_number: u32, page: &[u8]) -> Result<(), JournalError> {
        let mut payload = std::mem::take(&mut self.payload);
        let result = self.stage_record(frame, page_number, page, &mut payload);
        self.payload = payload;
        result
    }

    fn discard_staged(&mut self) -> Result<(), JournalError> {
        self.drop_staged();
        Ok(())
    }

    fn seal(&mut self, commit: &Commit) -> Result<(), JournalError> {
        self.seal_staged(commit)
    }

    fn harden(&mut self) {
        if self.unhardened.is_empty() {
            return;
        }
        for (from, to) in std::mem::take(&mut self.unhardened) {
            self.heap.nvm.flush(from, to - from);
        }
        self.heap.nvm.fence();
    }
}

impl Nvwal {
    /// Finds what to log for a page, appends it, and moves the page's cached image on.
    fn stage_record(
        &mut self,
        frame: u32,
        page_number: u32,
        page: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<(), JournalError> {
        payload.clear();
        let (base, ranges) = self.difference(page_number, page, payload)?;
        let header = RecordHeader {
            record_bytes: RECORD_HEADER_BYTES + payload.len() as u32,
            frame,
            page_number,
            ranges,
            base,
        };
        let at = self.append(&header, payload)?;
        let staged = self.index.stage(frame, page_number, at, header.record_bytes, base);
        let number = staged.ok_or(JournalError::Unexpected("a gap in the frame numbers"))?;
        self.activity.records += 1;
        match base {
            Base::Previous => {
                let previous = self.index.record(number).and_then(|record| record.previous);
                if let Some(image) = previous.and_then(|previous| self.images.get(page_number, previous)) {
                    image.copy_from_slice(page);
                    self.images.advance(page_number, number);
                }
            }
            Base::Zeros => self.images.put(page_number, number, page),
        }
        Ok(())
    }

    /// Encodes the page against its last logged image, or whole where there is none, the chain
    /// has grown long, or the difference would be no smaller.
    fn difference(
        &mut self,
        page_number: u32,
        page: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<(Base, u16), JournalError> {
        if !self.options.diff {
            return Ok((Base::Zeros, diff::encode_whole(page, payload)));
        }
        let head = self.index.head(page_number).copied();
        let Some(head) = head.filter(|head| !head.is_long(page.len() as u32)) else {
            return Ok((Base::Zeros, diff::encode(&self.zeros, page, payload)));
        };
        let ranges = match self.images.get(page_number, head.record) {
            Some(image) => diff::encode(image, page, payload),
            None => {
                let mut image = vec![0; page.len()];
                self.rebuild_into_cache(page_number, head.record, &mut image)?;
                diff::encode(&image, page, payload)
            }
        };
        if payload.len() > page.len() / 2 {
            let mut whole = Vec::new();
            let whole_ranges = diff::encode(&self.zeros, page, &mut whole);
            if whole.len() <= payload.len() {
                *payload = whole;
                return Ok((Base::Zeros, whole_ranges));
            }
        }
        Ok((Base::Previous, ranges))
    }

    fn rebuild_into_cache(
        &mut self,
        page_number: u32,
        record: RecordNumber,
        image: &mut [u8],
    ) -> Result<(), JournalError> {
        self.rebuild(record, image)?;
        self.images.put(page_number, record, image);
        Ok(())
    }
}
