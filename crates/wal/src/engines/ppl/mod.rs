//! SQLite/PPL: a log for each page, in byte-addressable memory, so that flash wears less (Oh et al., VLDB 2015).
//!
//! A commit stores its change of each page as a record in that page's log sector. The engine writes a page to the database file
//! only when the page's log is full. Until then a read applies the records to the page. The layout is
//! `docs/format/ppl.md`.
//!
//! | module | the paper's section 3.2 |
//! | --- | --- |
//! | `writer` | log capturer |
//! | `seal`, `chain` | tid manager, log writer |
//! | `store` | log roller |
//! | `merge` | log merger |
//! | `recovery` | recovery manager |
//!
//! SQLite sees frames of a write-ahead log, as with other engines. In memory that all processes using the log share, `frames`
//! says which page each frame holds, and which transaction wrote it. SQLite's checkpoint is logical (`home`).
//!
//! Invariants kept here: 4 to 8, 10 to 12, 17.

mod area;
mod chain;
mod files;
mod frames;
mod home;
mod merge;
mod options;
mod recovery;
mod salvage;
mod seal;
mod store;
#[cfg(test)]
mod tests;
mod words;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_format::page_change::{self, ChangeKind, Scratch as Encoder};
use duralite_format::ppl::Superblock;
use duralite_format::sqlite_wal::WalHeader;
use duralite_format::{LogId, Origin};
use duralite_medium::Guarantee;

use crate::engine::home::{DatabaseFile, Home};
use crate::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
    wall_clock,
};
use crate::shared::images::Images;
use crate::{EngineOptions, LogError};
use chain::Pages;
pub use files::{DESCRIPTOR, SHARED_BYTES};
use frames::{Entry, Frames, Staged, StagedFrame};
use home::LoggedHome;
use merge::Cause;
use options::NAME;
pub use options::PplOptions;
use seal::{Buffers, Sealing};
use store::{AsOf, Scratch, Store};
use words::{
    CHECKPOINTED, DB_PAGES, FLOOR, FRAMES, GENERATION, GenerationWords, HOME_PAGES, PIECES_USED, SEALED,
    SECTORS_USED, USED_BEFORE,
};

/// A log in NVRAM with a chain of records for each page.
pub struct Ppl {
    store: Arc<Store>,
    superblock: Superblock,
    frames: Frames,
    staged: Staged,
    images: Images<u64>,
    clock: Clock,
    encoder: Encoder,
    buffers: Buffers,
    scratch: Scratch,
    image: Vec<u8>,
}

impl Ppl {
    fn new(store: Store, superblock: Superblock, options: &PplOptions) -> Result<Self, LogError> {
        let mut log = Self {
            store: Arc::new(store),
            frames: Frames::default(),
            staged: Staged::default(),
            images: Images::new(superblock.head.page_bytes as usize, options.cache_bytes),
            superblock,
            clock: wall_clock,
            encoder: Encoder::default(),
            buffers: Buffers::default(),
            scratch: Scratch::default(),
            image: Vec::new(),
        };
        log.refresh()?;
        Ok(log)
    }

    /// Returns whether the database file has everything that the log holds.
    fn is_spent(&self) -> bool {
        match &self.store.pages {
            Pages::Scanned(chains) => chains.is_empty(),
            Pages::Shared => self.store.words.load(SECTORS_USED) == 0,
        }
    }

    /// Starts the log over. If SQLite has not checkpointed a transaction by now, no reader has seen it. So this call
    /// stores records that undo the transaction.
    fn start_over(&mut self, file: &dyn DatabaseFile, header: Option<&WalHeader>) -> Result<(), LogError> {
        self.settle_open()?;
        self.refresh()?;
        self.staged.clear();
        if header.is_some_and(|header| header.page_bytes != self.superblock.head.page_bytes) {
            return Err(LogError::Unexpected("a WAL header with another page size than the log's"));
        }
        let end = match self.store.words.load(HOME_PAGES) {
            0 => u64::MAX,
            pages => pages,
        };
        let mut unseen = Vec::new();
        for (page_number, _) in self.frames.newest() {
            let is_unseen = |first| self.store.is_unseen(page_number, first, end);
            if self.store.look_at_chain(page_number, is_unseen)? == Some(true) {
                unseen.push(page_number);
            }
        }
        let changes = self.changes_to(file, &unseen, AsOf::Home)?;
        let turn = self.store.lock_for(file, &changes, 0)?;
        let words = &self.store.words;
        let is_other_size = end != u64::MAX && words.load(DB_PAGES) != end;
        if !changes.is_empty() || is_other_size {
            let db_pages = u32::try_from(words.load(HOME_PAGES)).unwrap_or(u32::MAX);
            let entry = Entry::empty(words.load(SEALED) + 1, db_pages, (self.clock)());
            self.store.seal(
                &turn,
                &Sealing { changes: &changes, entry, retired: false },
                &mut self.buffers,
            )?;
        }
        let position = words.load(SEALED);
        words.store(FLOOR, position);
        words.store(DB_PAGES, words.load(HOME_PAGES));
        let pieces = self.store.area.frame_pieces(words)?;
        let begun =
            GenerationWords { position, time_ms: (self.clock)(), header: header.map(|header| header.bytes) };
        words.begin_generation(words.load(GENERATION) + 1, &begun);
        pieces.into_iter().for_each(|piece| self.store.area.give_back(words, &turn, piece));
        words.store(USED_BEFORE, self.store.area.fill(words).0);
        drop(turn);
        store::Counts::add(&self.store.counts.generations, 1);
        // Ignore an error. A log that could not shrink has started over all the same.
        let _ = self.store.shrink();
        self.refresh()
    }

    /// Rebuilds every page that has records, to check that this is possible.
    fn check_pages(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        let Pages::Scanned(chains) = &self.store.pages else { return Ok(()) };
        let mut page = vec![0; self.store.page_bytes as usize];
        let mut scratch = Scratch::default();
        for page_number in chains.keys() {
            self.store.read(file, *page_number, AsOf::Home, &mut page, &mut scratch)?;
        }
        Ok(())
    }
}

impl Engine for Ppl {
    fn home(&self) -> Option<Arc<dyn Home>> {
        Some(Arc::new(LoggedHome(Arc::clone(&self.store))))
    }
}

impl LogFile for Ppl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn id(&self) -> LogId {
        self.superblock.head.log_id
    }

    fn page_bytes(&self) -> u32 {
        self.superblock.head.page_bytes
    }

    fn guarantee(&self) -> Guarantee {
        self.store.area.nvm.guarantee()
    }

    fn describe(&self) -> String {
        self.store.area.nvm.describe()
    }

    fn metrics(&self) -> Vec<(&'static str, String)> {
        let (words, counts) = (&self.store.words, &self.store.counts);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let merged = |cause: Cause| words.load(cause.counter());
        let merged_pages = merged(Cause::Full) + merged(Cause::Room) + merged(Cause::Closing);
        let saved = (words.load(FRAMES) + words.load(CHECKPOINTED)).saturating_sub(merged_pages);
        let area = &self.store.area;
        let (used, usual) = area.fill(words);
        let (sectors, pieces) = area.usual_extents();
        let limit = match area.limit_bytes() {
            u64::MAX => "none".to_owned(),
            bytes => bytes.to_string(),
        };
        let slots = u64::from(self.superblock.slots);
        let counters = area.nvm.counters();
        let rows: Vec<(&'static str, u64)> = vec![
            ("sector_bytes", u64::from(self.superblock.sector_bytes)),
            ("generation", self.frames.generation()),
            ("log_frames", u64::from(self.frames.count())),
            ("log_transactions", u64::from(self.transactions())),
            ("log_bytes", used),
            ("log_file_bytes", area.geometry.file_bytes(area.grown().unwrap_or(0))),
            ("log_usual_bytes", usual),
            ("logged_pages", self.store.logged_pages()),
            ("sectors", words.load(SECTORS_USED)),
            ("sectors_limit", sectors),
            ("pool_pieces", words.load(PIECES_USED)),
            ("pool_pieces_limit", pieces),
            ("slots_used", slots.saturating_sub(self.store.free_slots().len() as u64)),
            ("slots", slots),
            ("position", self.position()),
            ("commits", count(&counts.commits)),
            ("frames", count(&counts.frames)),
            ("records", counts.records.iter().map(count).sum()),
            ("records_cells", count(&counts.records[ChangeKind::Cells as usize])),
            ("records_moves", count(&counts.records[ChangeKind::Moves as usize])),
            ("records_ranges", count(&counts.records[ChangeKind::Ranges as usize])),
            ("records_whole", count(&counts.records[ChangeKind::Whole as usize])),
            ("record_bytes", count(&counts.record_bytes)),
            ("pages_merged", merged_pages),
            ("pages_merged_full", merged(Cause::Full)),
            ("pages_merged_room", merged(Cause::Room)),
            ("pages_merged_closing", merged(Cause::Closing)),
            ("pages_saved", saved),
            ("pages_read", count(&counts.read_pages)),
            ("pages_rolled", count(&counts.rolled_pages)),
            ("roll_forward_ns", count(&counts.rolled_ns)),
            ("log_restarts", count(&counts.generations)),
            ("stored_bytes", counters.stored_bytes),
            ("flushed_lines", counters.flushed_lines),
            ("fences", counters.fences),
            ("read_bytes", counters.read_bytes),
        ];
        let rows = rows.into_iter().map(|(name, value)| (name, value.to_string()));
        rows.chain([("log_limit", limit)]).collect()
    }

    fn configure(&mut self, options: &EngineOptions) {
        self.store.area.nvm.set_latency(options.media.latency);
    }

    fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    fn fill(&self) -> Fill {
        Fill { limit_bytes: self.store.area.limit_bytes(), ..self.room() }
    }

    fn room(&self) -> Fill {
        let (used_bytes, limit_bytes) = self.store.area.fill(&self.store.words);
        Fill { used_bytes, limit_bytes }
    }

    /// Considers only the growth since the log last started over. A checkpoint cannot free the rest: the logs of pages
    /// that were checkpointed earlier stay until other pages need the space. So a log that has not grown needs no
    /// checkpoint, even if it is full.
    fn is_short(&self) -> bool {
        let (used, limit) = self.store.area.fill(&self.store.words);
        let since = used.saturating_sub(self.store.words.load(USED_BEFORE));
        used >= limit / 2 && since >= limit / 8
    }

    fn wal_header(&self) -> Option<&WalHeader> {
        self.frames.header()
    }

    fn begin_generation(
        &mut self,
        file: &dyn DatabaseFile,
        header: Option<&WalHeader>,
    ) -> Result<(), LogError> {
        self.start_over(file, header)
    }

    fn clear(&mut self, file: &dyn DatabaseFile, _keep_bytes: u64) -> Result<(), LogError> {
        self.start_over(file, None)
    }

    /// Always returns `false`. Chains keep their sectors across generations, so there is no tail of the file to cut off.
    fn has_surplus(&self, _keep_bytes: u64) -> bool {
        false
    }

    fn retire(&mut self) -> Result<(), LogError> {
        self.settle_open()?;
        self.refresh()?;
        let turn = self.store.lock()?;
        let words = &self.store.words;
        let db_pages = u32::try_from(words.load(HOME_PAGES)).unwrap_or(u32::MAX);
        let entry = Entry::empty(words.load(SEALED) + 1, db_pages, (self.clock)());
        self.store.seal(&turn, &Sealing { changes: &[], entry, retired: true }, &mut self.buffers)
    }
}

impl LogReader for Ppl {
    fn refresh(&mut self) -> Result<(), LogError> {
        if self.frames.refresh(&self.store.area, &self.store.words)? {
            self.staged.clear();
        }
        Ok(())
    }

    fn version(&self) -> u64 {
        self.frames.generation().rotate_left(32) ^ (self.frames.known() & 0xffff_ffff)
    }

    fn committed(&self) -> u32 {
        self.frames.count()
    }

    fn frame(&self, number: u32) -> Option<Frame> {
        self.frames.frame(number)
    }

    fn newest_frames(&self) -> Vec<(u32, u32)> {
        self.frames.newest()
    }

    fn origin(&self) -> Origin {
        let (position, time_ms) = self.frames.origin();
        Origin { generation: self.frames.generation(), position, time_ms }
    }

    fn transactions(&self) -> u32 {
        u32::try_from(self.frames.known().saturating_sub(self.frames.origin().0)).unwrap_or(u32::MAX)
    }

    fn transaction_after(&self, sequence: u32) -> Option<Transaction> {
        self.frames.after(self.frames.origin().0.saturating_add(u64::from(sequence)))
    }

    fn is_durable(&self, frame: u32) -> bool {
        frame <= self.frames.count()
    }

    fn is_current(&self) -> bool {
        self.store.words.fence();
        self.frames.is_current(&self.store.words)
    }

    fn read_page(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        if self.staged.get(frame).is_some() {
            return self.read_staged(file, frame, page);
        }
        let missing = LogError::Unexpected("a read of a frame that does not exist");
        let page_number = self.frames.page_of(frame).ok_or_else(|| missing.clone())?;
        let number = self.frames.number_of(frame).ok_or(missing)?;
        self.read_after(file, page_number, number, page)?;
        self.store.recent.note(page_number, number, page);
        Ok(())
    }
}

impl LogWriter for Ppl {
    fn stage(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError> {
        self.stage_frame(file, frame, page_number, page)
    }

    fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    fn outgrows(&self, _bytes: usize) -> bool {
        false
    }

    fn discard_staged(&mut self) -> Result<(), LogError> {
        self.staged.clear();
        Ok(())
    }

    fn seal(&mut self, file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, LogError> {
        self.seal_staged(file, commit).map(|()| None)
    }

    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        None
    }

    fn force(&mut self) -> Result<(), LogError> {
        Ok(())
    }
}

impl Ppl {
    /// Reads the page as it is after a transaction.
    fn read_after(
        &mut self,
        file: &dyn DatabaseFile,
        page_number: u32,
        number: u64,
        page: &mut [u8],
    ) -> Result<(), LogError> {
        if self.store.last_of(page_number)?.is_some_and(|last| last <= number) {
            return self.committed_page(file, page_number, page);
        }
        let as_of = AsOf::Transaction(number);
        self.store.read(file, page_number, as_of, page, &mut Scratch::default()).map(|_| ())
    }

    /// Reads the page of a frame of the open transaction.
    fn read_staged(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError> {
        let Some(page_number) = self.staged.get(frame).map(|staged| staged.page_number) else {
            return Ok(());
        };
        // A whole page needs no earlier version. A page beyond the end of the database may not even have one.
        let is_whole = |staged: &StagedFrame| page_change::kind(&staged.payload) == Ok(ChangeKind::Whole);
        if !self.staged.get(frame).is_some_and(is_whole) {
            self.committed_page(file, page_number, page)?;
        }
        let Some(staged) = self.staged.get(frame) else { return Ok(()) };
        page_change::apply(page, &staged.payload).map_err(|what| LogError::Corrupt { offset: 0, what })
    }
}
