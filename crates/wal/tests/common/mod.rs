//! Code that the tests of engines share: a random source whose seed is printed, a writer that produces the byte
//! stream that SQLite would write, and a formatted medium.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

mod leaf;

use std::path::Path;
use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_format::nvwal::Superblock;
use duralite_format::sqlite_wal::{Checksum, WalHeader, make_wal_header};
use duralite_format::{LogHead, LogId, waldio};
use duralite_medium::Nvm;
use duralite_wal::engine::DurabilityWaiter;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::media::MediaSet;
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::log::Sealed;
use duralite_wal::log::stream::WalStream;
use duralite_wal::{Descriptor, LogError, LogPlacement, NvwalOptions};

/// A random number generator (xorshift64*). The same seed yields the same run on any machine.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// Runs `case` for each seed, or only for the seed in `DURALITE_SEED`. A failure names its seed. With
/// `DURALITE_SEEDS_PART=N` this function uses only one of N seeds, for slow, emulated processors.
pub fn for_seeds(count: u64, case: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("DURALITE_SEED") {
        return case(seed.parse().expect("DURALITE_SEED is a number"));
    }
    let part = std::env::var("DURALITE_SEEDS_PART").map_or(1, |part| part.parse().expect("a number"));
    for seed in 1..=count.div_ceil(part) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(seed)));
        if let Err(panic) = result {
            eprintln!("failed with DURALITE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Returns a placement for logs of an engine in this directory. Memory is emulated.
pub fn directory(engine: &'static Descriptor, dir: &Path) -> LogPlacement {
    LogPlacement::at(engine, dir, &MediaSet::default())
}

/// Returns a clock for this thread that starts from a fixed time, and advances by 7 ms at each call.
pub fn ticking_clock() -> fn() -> u64 {
    thread_local! { static NOW: std::cell::Cell<u64> = const { std::cell::Cell::new(0) } }
    NOW.set(1_700_000_000_000);
    || {
        NOW.set(NOW.get() + 7);
        NOW.get()
    }
}

/// Returns the head of the tests' logs, which ties a log to its database.
pub fn head(page_bytes: u32) -> LogHead {
    let (log_id, path) = (LogId([9; 16]), b"/model.db".to_vec());
    LogHead { page_bytes, log_id, db_inode: 1, db_birth_ns: 2, path, made_in: None }
}

/// Returns a superblock of `waldio`, with blocks of 512 bytes.
pub fn waldio_superblock(layout: waldio::Layout, page_bytes: u32, limit_bytes: u64) -> waldio::Superblock {
    waldio::Superblock { head: head(page_bytes), block_bytes: 512, layout, limit_bytes }
}

pub fn superblock(options: &NvwalOptions, page_bytes: u32) -> Superblock {
    let (block_bytes, limit_blocks) = Nvwal::shape(options, page_bytes);
    Superblock {
        head: head(page_bytes),
        block_bytes,
        limit_blocks,
        blocks_offset: Superblock::blocks_offset_for(limit_blocks),
    }
}

/// Returns a formatted recording medium.
pub fn fresh_medium(options: &NvwalOptions, page_bytes: u32) -> RecordingNvm {
    let superblock = superblock(options, page_bytes);
    let nvm = RecordingNvm::new(0, superblock.file_bytes(superblock.limit_blocks));
    Nvwal::format(&nvm, &superblock).expect("format");
    nvm
}

pub fn open(nvm: Arc<dyn Nvm>, options: &NvwalOptions) -> Result<WalStream<Nvwal>, LogError> {
    let mut engine = Nvwal::open(nvm, Path::new("model"), options.clone())?;
    engine.recover_heap()?;
    let mut stream = WalStream::new(engine);
    assert_eq!(
        find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?,
        None,
        "SQLite's recovery would stop here"
    );
    Ok(stream)
}

/// Returns all bytes that the stream holds.
pub fn contents(stream: &mut WalStream<Nvwal>) -> Vec<u8> {
    let size = stream.size().expect("size");
    let mut bytes = vec![0; size as usize];
    let count = stream.read(&NoDatabase, 0, &mut bytes).expect("read");
    assert_eq!(count, bytes.len());
    bytes
}

/// Makes these writes, one after another. Returns the last transaction that they sealed.
pub fn write_all(
    writes: &[(u64, Vec<u8>)],
    mut write: impl FnMut(u64, &[u8]) -> Result<Option<Sealed>, LogError>,
) -> Result<Option<Sealed>, LogError> {
    writes.iter().try_fold(None, |sealed, (at, data)| Ok(write(*at, data)?.or(sealed)))
}

/// Waits until a sealed transaction is durable, if it has a ticket.
pub fn wait(sealed: Option<Sealed>, waiter: Option<Arc<dyn DurabilityWaiter>>) -> Result<(), LogError> {
    match (sealed.and_then(|sealed| sealed.ticket), waiter) {
        (Some(ticket), Some(waiter)) => waiter.wait(ticket),
        _ => Ok(()),
    }
}

/// SQLite's write-ahead log as plain bytes, and a writer that writes it as SQLite does.
#[derive(Clone)]
pub struct Model {
    pub page_bytes: usize,
    pub committed: Vec<u8>,
    header: Option<WalHeader>,
    sum: Checksum,
    restarts: u32,
    /// The newest committed content of each page.
    pub pages: Vec<Vec<u8>>,
    /// Whether the pages are leaves of a b-tree, in which the model changes rows.
    is_tree: bool,
    /// The writes of the last committed transaction, until a caller takes them.
    writes: Vec<(u64, Vec<u8>)>,
}

/// A transaction as SQLite would write it: its writes, and the model after them.
pub struct Transaction {
    pub writes: Vec<(u64, Vec<u8>)>,
    after: Model,
}

impl Model {
    pub fn new(page_bytes: usize, pages: usize) -> Self {
        Self {
            page_bytes,
            committed: Vec::new(),
            header: None,
            sum: [0, 0],
            restarts: 0,
            pages: vec![vec![0; page_bytes]; pages],
            is_tree: false,
            writes: Vec::new(),
        }
    }

    /// Makes a model whose pages are leaves of a b-tree. The model inserts rows into them and deletes rows.
    pub fn of_leaves(page_bytes: usize, pages: usize) -> Self {
        let leaves = (0..pages).map(|index| leaf::empty(page_bytes, index)).collect();
        Self { pages: leaves, is_tree: true, ..Self::new(page_bytes, 0) }
    }

    /// Makes a model with or without b-tree pages, as the seed decides.
    pub fn of_seed(seed: u64, page_bytes: usize, pages: usize) -> Self {
        if seed.is_multiple_of(2) { Self::new(page_bytes, pages) } else { Self::of_leaves(page_bytes, pages) }
    }

    fn change(&self, page: &mut [u8], index: usize, rng: &mut Rng) {
        if !self.is_tree || rng.chance(12) || !leaf::change(page, index, rng) {
            change(page, rng);
        }
    }

    pub fn frames(&self) -> u64 {
        (self.committed.len() as u64).saturating_sub(32) / (self.page_bytes as u64 + 24)
    }

    /// Starts the log over. Returns the offset and the bytes of the new WAL header.
    pub fn restart(&mut self) -> (u64, Vec<u8>) {
        self.restarts += 1;
        let bytes = make_wal_header(self.page_bytes as u32, self.restarts, [self.restarts, 77]);
        let header = WalHeader::parse(&bytes).expect("header");
        self.sum = header.checksum;
        self.header = Some(header);
        self.committed = bytes.to_vec();
        (0, bytes.to_vec())
    }

    pub fn truncate(&mut self) {
        self.header = None;
        self.committed.clear();
    }

    pub fn has_header(&self) -> bool {
        self.header.is_some()
    }

    /// Returns a random transaction. With `spill`, the transaction overwrites pages of earlier frames in place and
    /// rewrites the checksums, as after SQLite has spilled its cache.
    pub fn transaction(&self, rng: &mut Rng, spill: bool) -> Transaction {
        let mut after = self.clone();
        let header = after.header.expect("restart first");
        let mut writes = Vec::new();
        let count = 1 + rng.below(if spill { 12 } else { 4 }) as usize;
        let mut frames: Vec<(u32, Vec<u8>)> = Vec::new();
        for _ in 0..count {
            let page_number = rng.below(after.pages.len() as u64) as usize;
            self.change(&mut after.pages[page_number], page_number, rng);
            let content = after.pages[page_number].clone();
            let earlier = frames.iter().position(|(number, _)| *number == page_number as u32 + 1);
            match earlier {
                Some(at) => frames[at].1 = content,
                None => frames.push((page_number as u32 + 1, content)),
            }
        }
        let frame_bytes = header.frame_bytes();
        let at = |i: usize| self.committed.len() as u64 + i as u64 * frame_bytes;
        let last = frames.len() - 1;
        // With `spill`, write an early version of one page first, and overwrite it later.
        let overwritten = if spill && last > 0 { Some(rng.below(last as u64) as usize) } else { None };
        let mut sum = self.sum;
        let db_pages = after.pages.len() as u32;
        let mut headers = Vec::new();
        for (i, (page_number, content)) in frames.iter().enumerate() {
            let size = if i == last { db_pages } else { 0 };
            let mut first = content.clone();
            if overwritten == Some(i) {
                self.change(&mut first, *page_number as usize - 1, rng);
                let stale = header.extend(sum, *page_number, size, &first);
                writes.push((at(i), header.frame_header(*page_number, size, stale).to_vec()));
                writes.push((at(i) + 24, first));
            }
            sum = header.extend(sum, *page_number, size, content);
            headers.push(header.frame_header(*page_number, size, sum));
            if overwritten != Some(i) {
                let shown = if overwritten.is_some_and(|o| o < i) { [1, 2] } else { sum };
                writes.push((at(i), header.frame_header(*page_number, size, shown).to_vec()));
                writes.push((at(i) + 24, content.clone()));
            }
            if let Some(o) = overwritten.filter(|o| *o + 1 == i || (i == last && *o + 1 >= i)) {
                // Insert this write before the two writes of the commit frame, because SQLite overwrites the page when
                // it spills again.
                let position = writes.len() - 2;
                writes.insert(position, (at(o) + 24, frames[o].1.clone()));
            }
        }
        if let Some(o) = overwritten {
            for (i, bytes) in headers.iter().enumerate().skip(o) {
                writes.push((at(i), bytes.to_vec()));
            }
        }
        for (i, (_, content)) in frames.iter().enumerate() {
            after.committed.extend_from_slice(&headers[i]);
            after.committed.extend_from_slice(content);
        }
        after.sum = sum;
        Transaction { writes, after }
    }

    pub fn commit(&mut self, transaction: Transaction) {
        *self = transaction.after;
        self.writes = transaction.writes;
    }

    /// Returns the writes of the last committed transaction, and forgets them.
    pub fn take_writes(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.writes)
    }

    /// Commits all pages as one transaction. The transaction changes each page throughout, and writes it twice.
    pub fn append_all_pages(&mut self, rng: &mut Rng) -> Vec<(u64, Vec<u8>)> {
        let header = self.header.expect("restart first");
        let db_pages = self.pages.len() as u32;
        let mut writes = Vec::new();
        for round in 0..2 {
            for number in 1..=db_pages {
                let page = &mut self.pages[number as usize - 1];
                page.fill_with(|| rng.next() as u8);
                let size = if round == 1 && number == db_pages { db_pages } else { 0 };
                self.sum = header.extend(self.sum, number, size, page);
                let head = header.frame_header(number, size, self.sum);
                let at = self.committed.len() as u64;
                writes.push((at, head.to_vec()));
                writes.push((at + 24, page.clone()));
                self.committed.extend_from_slice(&head);
                self.committed.extend_from_slice(page);
            }
        }
        writes
    }

    pub fn after<'a>(&self, transaction: &'a Transaction) -> &'a [u8] {
        &transaction.after.committed
    }
}

fn change(page: &mut [u8], rng: &mut Rng) {
    if rng.chance(12) {
        page.fill_with(|| rng.next() as u8);
    }
    for _ in 0..1 + rng.below(5) {
        let length = 1 + rng.below(60) as usize;
        let start = rng.below((page.len() - length) as u64) as usize;
        page[start..start + length].fill_with(|| rng.next() as u8);
    }
}
