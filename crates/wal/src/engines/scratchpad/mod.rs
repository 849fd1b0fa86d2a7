//! The log of a single-level store (Xu et al., JCST 2016). The log is in a small memory in which a store is durable without
//! a flush, and the database is in ordinary persistent memory.
//!
//! A transaction takes pages of a region that the logs of several databases share. In these pages it stores an entry for each
//! database page that it changes. The mark in the last entry commits the transaction (section 5.1). A rollback journal takes
//! pages of the region too. The layout is `docs/format/scratchpad.md`.
//!
//! | module | what it does |
//! | --- | --- |
//! | `region`, `region_file` | taking pages and giving them back; the file of a region |
//! | `writer`, `transaction` | storing a transaction; finding and reading one |
//! | `recovery` | the scan from head to tail |
//! | `undo` | rollback journals |
//!
//! Invariants kept here: 4, 7, 8, 10 to 12, 24 to 26. The state that survives a crash is on the medium only. A scan rebuilds
//! the fields of [`Scratchpad`] from it.

mod files;
mod options;
mod recovery;
mod region;
mod region_file;
mod room;
mod salvage;
mod transaction;
mod undo;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use duralite_format::scratchpad::{
    ACTIVE_OFFSET, FOLLOW_AT, PAGE_BYTES, RECORD_HEADER_BYTES, Superblock, TxHash, first_link_offset,
    first_link_tag, read_link,
};
use duralite_format::sqlite_wal::WalHeader;
use duralite_format::{LogId, Origin};
use duralite_medium::{Guarantee, Nvm};

use crate::engine::home::{DatabaseFile, Home};
use crate::engine::rollback::RollbackJournal;
use crate::engine::{
    Clock, Commit, DurabilityWaiter, Engine, Fill, Frame, LogFile, LogReader, LogWriter, Ticket, Transaction,
};
use crate::shared::delta_chains::{Committed, DeltaChains, Record, apply_record};
use crate::shared::generations::{InForce, SealTime};
use crate::shared::mapped_home::MappedHome;
use crate::shared::past_cache::{Choice, Work};
use crate::{EngineOptions, LogError};
pub use files::DESCRIPTOR;
use options::NAME;
pub use options::ScratchpadOptions;
use region::{Region, offset_of};
pub use region_file::is_region_name;
pub use room::{RegionUse, reclaim};
use transaction::{Expected, FoundTransaction, Scan};
use undo::UndoLog;

/// Counters of what this process has done since it opened the log.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    commits: u64,
    frames: u64,
    records: u64,
    whole_pages: u64,
    generations: u64,
}

/// A log in pages of a region.
pub struct Scratchpad {
    superblock: Superblock,
    /// The log's file.
    nvm: Arc<dyn Nvm>,
    region: Arc<Region>,
    in_force: InForce,
    chains: DeltaChains,
    /// The pages of the region that hold the generation's committed transactions.
    pages: Vec<u32>,
    /// The first page of the last committed transaction, and the tag that the links in this page carry; zeros without a
    /// transaction.
    newest: (u32, u32),
    /// The first page of each transaction that a scan has found, with the tag that the links in this page carry.
    firsts: Vec<(u32, u32)>,
    /// The pages where transactions begin, as a scan of the region has found them. `None` if this process has no such
    /// scan.
    scan: Option<Scan>,
    /// Number of committed transactions in this generation.
    sequence: u32,
    sealed_at: SealTime,
    clock: Clock,
    open: Option<OpenTransaction>,
    /// The page list of an earlier transaction, kept for reuse.
    spare: Vec<(u32, u32)>,
    /// Offset of the last commit's mark, if another process stored that mark. The mark is then visible, but may not be
    /// durable.
    doubtful: Option<u64>,
    /// Whether another process began the generation. The generation is then visible, but may not be durable.
    doubtful_generation: bool,
    rollback: Arc<UndoLog>,
    /// Whether to log differences instead of whole pages.
    diff: bool,
    /// The way in which cache lines of the region become durable.
    choice: Arc<Choice>,
    /// The database file in memory. `None` for a process that only inspects the log, or may only read it. Such a
    /// process reads the file itself, which has the same bytes as the mapping.
    home: Option<Arc<MappedHome>>,
    activity: Activity,
    payload: Vec<u8>,
    record: Vec<u8>,
    /// The entry that is being stored.
    entry: Vec<u8>,
}

impl Scratchpad {
    fn active_now(&self) -> u64 {
        self.nvm.load_u64(ACTIVE_OFFSET)
    }

    /// Returns the number of committed transactions in this generation.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.sequence
    }

    /// Returns whether the log was retired and has not been used since.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.in_force.slot.retired
    }

    fn enter(&mut self, in_force: InForce) {
        self.in_force = in_force;
        self.sealed_at = SealTime::at_begin(&in_force.origin);
        self.chains.clear();
        self.pages.clear();
        self.firsts.clear();
        self.newest = (0, 0);
        self.sequence = 0;
        self.open = None;
        self.doubtful = None;
        self.doubtful_generation = false;
    }

    fn load_generation(&mut self, active: u64) -> Result<(), LogError> {
        let page_bytes = self.superblock.head.page_bytes;
        let in_force = InForce::read(self.nvm.as_ref(), self.superblock.head.log_id, page_bytes, active)?;
        self.enter(in_force);
        self.doubtful_generation = true;
        if self.scan.is_some() {
            self.scan = Some(Scan::of(&self.region, in_force.slot.generation));
        }
        Ok(())
    }

    /// Does one step of [`LogReader::refresh`]: applies the next committed transaction of the generation that the word
    /// `active` identifies. Returns that transaction, if there is one.
    fn follow(&mut self, active: u64) -> Result<Option<FoundTransaction>, LogError> {
        // Until a generation is loaded, `in_force` has its initial value. A damaged `active` may equal the initial one,
        // so check the generation's number as well.
        if active != self.in_force.active || self.in_force.slot.generation == 0 {
            self.load_generation(active)?;
        }
        if self.in_force.wal_header.is_none() {
            return Ok(None);
        }
        let Some(found) = self.next_transaction()? else { return Ok(None) };
        self.drop_staged();
        let commit = found.commit.header;
        self.chains.found(found.last, &found.records, found.first_frame, commit.last_frame)?;
        self.sealed_at.advance(commit.elapsed_ms);
        self.sequence += 1;
        self.chains.commit(&Committed {
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            checksum: Some(commit.wal_checksum),
            sequence: self.sequence,
            time_ms: self.sealed_at.told(),
        });
        // The process that stored this transaction's mark had first made everything before the mark durable.
        self.doubtful_generation = false;
        self.doubtful = Some(found.last);
        let first = found.pages.first().copied().unwrap_or_default();
        self.newest = (first, self.region.header(first).map_or(0, |(_, tag)| tag));
        if self.scan.is_some() {
            self.firsts.push(self.newest);
        }
        self.pages.extend(&found.pages);
        Ok(Some(found))
    }

    /// Returns the next transaction to apply. If this process has scanned the region, finds the transaction in the
    /// scan. Otherwise follows the link in the last transaction.
    fn next_transaction(&self) -> Result<Option<FoundTransaction>, LogError> {
        let expected = Expected {
            generation: self.in_force.slot.generation,
            sequence: self.sequence + 1,
            frames: self.chains.frames(),
            page_bytes: self.superblock.head.page_bytes,
        };
        if let Some(scan) = &self.scan {
            let mut damage = None;
            for head in scan.heads(expected.sequence) {
                match transaction::read(&self.region, *head, &expected) {
                    Ok(None) => {}
                    Ok(found) => return Ok(found),
                    // This page may be left from an uncommitted transaction of a dead process. A later transaction may
                    // have the same number, and the page's link may lead into it. So look for the later transaction
                    // before reporting the error.
                    Err(error) => damage = damage.or(Some(error)),
                }
            }
            return damage.map_or(Ok(None), Err);
        }
        match self.linked_next() {
            Some(first) => transaction::read(&self.region, first, &expected),
            None => Ok(None),
        }
    }

    fn linked_next(&self) -> Option<u32> {
        let (page, tag) = self.newest;
        let limit = self.region.superblock.limit_pages;
        if page == 0 {
            let generation = self.in_force.slot.generation;
            let word = self.nvm.load_u64(first_link_offset(generation));
            return read_link(word, first_link_tag(self.superblock.head.log_id, generation), limit);
        }
        read_link(self.region.nvm.load_u64(offset_of(page) + FOLLOW_AT), tag, limit)
    }

    fn drop_staged(&mut self) {
        self.chains.discard();
        if let Some(open) = self.open.take() {
            self.region.give_back(open.pages());
        }
    }
}

/// The transaction that is being stored, and is not sealed yet.
struct OpenTransaction {
    /// The pages of the transaction, each with the tag that the links in this page carry.
    pages: Vec<(u32, u32)>,
    /// The offset of the next entry in the last page.
    offset: u64,
    hash: TxHash,
    records: u32,
    /// The way in which the cache lines of the transaction become durable.
    work: Work,
}

impl OpenTransaction {
    /// Returns the pages of the transaction, in order.
    fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// Returns the last page of the transaction.
    fn last(&self) -> u32 {
        self.pages.last().map_or(0, |(page, _)| *page)
    }
}

/// Returns a function that reads a record from the region and applies it to a page.
fn apply_from<'a>(
    region: &'a Region,
    bytes: &'a mut Vec<u8>,
) -> impl FnMut(&Record, &mut [u8]) -> Result<(), LogError> + 'a {
    move |record, page| {
        bytes.resize(record.record_bytes.max(RECORD_HEADER_BYTES) as usize, 0);
        region.read_stream(record.at, bytes)?;
        apply_record(page, bytes).map_err(|what| LogError::Corrupt { offset: record.at, what })
    }
}

/// Gives back the pages of a transaction that is staged and not sealed, because nobody needs them when this process closes
/// the log.
impl Drop for Scratchpad {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.region.give_back(open.pages());
        }
    }
}

impl Engine for Scratchpad {
    fn home(&self) -> Option<Arc<dyn Home>> {
        self.home.clone().map(|home| home as Arc<dyn Home>)
    }

    fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        Some(Arc::clone(&self.rollback) as Arc<dyn RollbackJournal>)
    }
}

impl LogFile for Scratchpad {
    fn name(&self) -> &'static str {
        NAME
    }

    fn id(&self) -> LogId {
        self.superblock.head.log_id
    }

    fn page_bytes(&self) -> u32 {
        self.superblock.head.page_bytes
    }

    /// Considers the database file too, because a page that a checkpoint has written is only as safe as that file.
    fn guarantee(&self) -> Guarantee {
        let region = self.region.nvm.guarantee();
        match &self.home {
            Some(home) if region == Guarantee::PowerLoss => home.nvm().guarantee(),
            _ => region,
        }
    }

    fn describe(&self) -> String {
        self.region.nvm.describe()
    }

    fn metrics(&self) -> Vec<(&'static str, String)> {
        let (activity, counters) = (self.activity, self.region.nvm.counters());
        let limit = u64::from(self.region.superblock.limit_pages).saturating_sub(1) * PAGE_BYTES;
        let used = self.region.used() * PAGE_BYTES;
        let flush = if self.region.nvm.is_durable_on_store() { "no" } else { "yes" };
        let mut rows = vec![
            ("stores_need_flush", flush.to_owned()),
            ("persistence_domain", self.region.persistence_domain().as_str().to_owned()),
            ("region_bytes", limit.to_string()),
            ("region_bytes_used", used.to_string()),
            ("region_bytes_free", limit.saturating_sub(used).to_string()),
            ("generation", self.in_force.slot.generation.to_string()),
            ("retired", self.is_retired().to_string()),
            ("log_frames", self.committed().to_string()),
            ("log_transactions", self.sequence.to_string()),
            ("log_bytes", (self.pages.len() as u64 * PAGE_BYTES).to_string()),
            ("log_limit", self.own_limit().to_string()),
            ("commits", activity.commits.to_string()),
            ("frames", activity.frames.to_string()),
            ("records", activity.records.to_string()),
            ("whole_pages", activity.whole_pages.to_string()),
            ("log_restarts", activity.generations.to_string()),
            ("stored_bytes", counters.stored_bytes.to_string()),
            ("flushed_lines", counters.flushed_lines.to_string()),
            ("fences", counters.fences.to_string()),
            ("read_bytes", counters.read_bytes.to_string()),
        ];
        if let Some(home) = &self.home {
            let (counts, memory) = (home.counts(), home.nvm().counters());
            rows.extend([
                ("home_memory", home.nvm().describe()),
                ("home_writes", counts.writes.to_string()),
                ("home_writes_through", counts.through.to_string()),
                ("home_flushed_lines", memory.flushed_lines.to_string()),
                ("home_streamed_lines", memory.streamed_lines.to_string()),
                ("home_fences", memory.fences.to_string()),
            ]);
        }
        rows
    }

    fn configure(&mut self, options: &EngineOptions) {
        self.region.nvm.set_latency(options.media.latency);
        self.nvm.set_latency(options.media.latency);
        if let Some(home) = &self.home {
            home.nvm().set_latency(options.media.latency);
        }
    }

    fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Counts only this log's pages and the free ones. This log cannot use the pages of other logs, and its checkpoints
    /// do not give those pages back.
    fn fill(&self) -> Fill {
        let used_bytes = self.pages.len() as u64 * PAGE_BYTES;
        let pages = u64::from(self.region.superblock.limit_pages).saturating_sub(1);
        let free_bytes = pages.saturating_sub(self.region.used()) * PAGE_BYTES;
        let limit_bytes = match self.own_limit() {
            0 => used_bytes + free_bytes,
            limit => limit.min(used_bytes + free_bytes),
        };
        Fill { used_bytes, limit_bytes }
    }

    /// Returns `false` for an empty log, because a checkpoint would free nothing.
    fn is_short(&self) -> bool {
        let fill = self.fill();
        fill.used_bytes > 0 && fill.used_bytes >= fill.limit_bytes / 2
    }

    fn retire(&mut self) -> Result<(), LogError> {
        self.refresh()?;
        self.switch_generation(None, true);
        // A journal that still exists here is not hot. SQLite has left it in the journal mode PERSIST, so delete it.
        self.rollback.delete()?;
        // No other process uses the log, so the log can give all its pages back.
        room::release(&self.region, &*self.nvm);
        Ok(())
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

    fn clear(&mut self, _file: &dyn DatabaseFile, _keep_bytes: u64) -> Result<(), LogError> {
        self.start_over(None)
    }

    /// Always returns `false`, because the log gives its pages back to the region whenever it starts over.
    fn has_surplus(&self, _keep_bytes: u64) -> bool {
        false
    }
}

impl Scratchpad {
    /// Returns the most bytes of the region that the log may have; 0 for all.
    fn own_limit(&self) -> u64 {
        u64::from(self.superblock.limit_pages) * PAGE_BYTES
    }
}

impl LogReader for Scratchpad {
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
        frame <= self.committed()
    }

    fn is_current(&self) -> bool {
        // Load the word after all other reads, because it has to confirm that they were current.
        fence(Ordering::SeqCst);
        self.active_now() == self.in_force.active
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        loop {
            let active = self.active_now();
            match self.follow(active) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // The generation changed during the scan, so the pages that the scan read may have been reused. So scan
                // again.
                Err(_) if self.active_now() != active => {}
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
        let mut apply = apply_from(&self.region, &mut self.record);
        self.chains.read_page(frame, page, &mut apply)
    }

    fn read_in_order(&mut self) {
        self.chains.read_in_order();
    }
}

impl LogWriter for Scratchpad {
    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>> {
        None
    }

    fn has_staged(&self) -> bool {
        // If there was no space for a frame, there may be an open transaction that has pages but no frames.
        self.chains.has_staged() || self.open.is_some()
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
        self.settle_doubtful();
        Ok(())
    }
}
