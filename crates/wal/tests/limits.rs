//! Tests that no commit is lost at the log's limit and on a full file system, and that the log works afterwards.
//! Also tests that the cost of reading an old frame does not depend on the log's length.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, contents, for_seeds, fresh_medium, open};
use duralite_crashmodel::RecordingNvm;
use duralite_format::sqlite_wal::{Checksum, WalHeader, make_wal_header};
use duralite_medium::{MediumError, Nvm};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::log::stream::WalStream;
use duralite_wal::{HeapMode, LogError, NvwalOptions, SyncMode};

const PAGE: usize = 512;

fn options(sync: SyncMode, heap: HeapMode) -> NvwalOptions {
    NvwalOptions { sync, diff: true, heap, block_bytes: 8192, limit_bytes: 256 << 10, cache_bytes: 0 }
}

/// Commits random transactions until one fails. Returns the error. The failed transaction leaves nothing in the model.
fn fill(stream: &mut WalStream<Nvwal>, model: &mut Model, rng: &mut Rng) -> LogError {
    for _ in 0..10_000 {
        let spill = rng.chance(3);
        let transaction = model.transaction(rng, spill);
        let failed = transaction
            .writes
            .iter()
            .find_map(|(offset, data)| stream.write(&NoDatabase, *offset, data).err());
        match failed {
            Some(error) => return error,
            None => model.commit(transaction),
        }
    }
    panic!("the log never filled up");
}

fn commit_one(stream: &mut WalStream<Nvwal>, model: &mut Model, rng: &mut Rng) {
    let transaction = model.transaction(rng, false);
    for (offset, data) in &transaction.writes {
        stream.write(&NoDatabase, *offset, data).expect("write");
    }
    model.commit(transaction);
}

#[test]
fn inv10_at_the_limit_writes_fail_and_everything_committed_stays() {
    for sync in [SyncMode::Lazy, SyncMode::Eager, SyncMode::Checksum] {
        for heap in [HeapMode::User, HeapMode::System] {
            for_seeds(6, |seed| {
                let options = options(sync, heap);
                let nvm = Arc::new(fresh_medium(&options, PAGE as u32));
                let limit = nvm.capacity();
                let mut stream = open(nvm.clone(), &options).expect("open");
                let mut rng = Rng(seed * 7 + 1);
                let mut model = Model::new(PAGE, 30);
                // The log becomes full, starts over, and becomes full again. It must hold as much each time, because
                // no space may be lost from one generation to the next.
                let mut frames = Vec::new();
                for _ in 0..4 {
                    let (offset, data) = model.restart();
                    stream.write(&NoDatabase, offset, &data).expect("restart");
                    for _ in 0..3 {
                        let error = fill(&mut stream, &mut model, &mut rng);
                        assert!(
                            matches!(error, LogError::LimitReached { limit_bytes } if limit_bytes == limit),
                            "{error}"
                        );
                        assert!(contents(&mut stream) == model.committed, "content differs at the limit");
                    }
                    assert!(nvm.len() <= limit);
                    let crashed: Arc<dyn Nvm> = Arc::new(nvm.crash(rng.next()));
                    let mut recovered = open(crashed, &options).expect("recovery");
                    assert!(contents(&mut recovered) == model.committed, "recovered content differs");
                    frames.push(model.frames());
                }
                let (least, most) = (frames.iter().min(), frames.iter().max());
                let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
                assert!(least > 20 && least * 2 > most, "frames per generation: {frames:?}");
            });
        }
    }
}

#[test]
fn inv10_a_full_file_system_fails_the_write_and_space_that_returns_is_used() {
    for_seeds(20, |seed| {
        let options = NvwalOptions { limit_bytes: 8 << 20, ..options(SyncMode::Lazy, HeapMode::User) };
        let nvm = Arc::new(fresh_medium(&options, PAGE as u32));
        let mut stream = open(nvm.clone(), &options).expect("open");
        let mut rng = Rng(seed * 13 + 5);
        let mut model = Model::new(PAGE, 30);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        // There is space for a few single blocks, but not for a whole chunk.
        nvm.set_grow_limit(Some(nvm.len() + rng.below(9) * 8192 + 100));
        for _ in 0..3 {
            let error = fill(&mut stream, &mut model, &mut rng);
            assert!(matches!(error, LogError::NoSpace { .. }), "{error}");
            assert!(contents(&mut stream) == model.committed, "content differs without space");
        }
        let crashed: Arc<dyn Nvm> = Arc::new(nvm.crash(rng.next()));
        let mut recovered = open(crashed, &options).expect("recovery");
        assert!(contents(&mut recovered) == model.committed, "recovered content differs");
        if rng.chance(2) {
            // A checkpoint makes space in the log without taking any from the file system.
            let (offset, data) = model.restart();
            stream.write(&NoDatabase, offset, &data).expect("restart");
        } else {
            nvm.set_grow_limit(None);
        }
        for _ in 0..40 {
            commit_one(&mut stream, &mut model, &mut rng);
        }
        assert!(contents(&mut stream) == model.committed, "content differs with space again");
        assert!(contents(&mut open(nvm.clone(), &options).expect("reopen")) == model.committed);
    });
}

#[test]
fn inv10_a_log_that_cannot_be_made_for_lack_of_space_says_so() {
    let options = options(SyncMode::Lazy, HeapMode::User);
    let superblock = common::superblock(&options, PAGE as u32);
    let nvm = RecordingNvm::new(0, superblock.file_bytes(superblock.limit_blocks));
    nvm.set_grow_limit(Some(20_000));
    let error = Nvwal::format(&nvm, &superblock).expect_err("no space");
    assert!(matches!(error, LogError::Medium { source: MediumError::NoSpace, .. }), "{error}");
}

/// Writes frames as SQLite does, and keeps only what a test needs.
struct Appender {
    header: WalHeader,
    sum: Checksum,
    frames: u32,
}

impl Appender {
    fn start(stream: &mut WalStream<Nvwal>) -> Self {
        let bytes = make_wal_header(PAGE as u32, 1, [3, 4]);
        stream.write(&NoDatabase, 0, &bytes).expect("restart");
        let header = WalHeader::parse(&bytes).expect("header");
        Self { header, sum: header.checksum, frames: 0 }
    }

    /// Appends a frame. If `db_pages` is not 0, the frame commits.
    fn append(&mut self, stream: &mut WalStream<Nvwal>, page_number: u32, db_pages: u32, page: &[u8]) {
        let at = 32 + u64::from(self.frames) * self.header.frame_bytes();
        self.sum = self.header.extend(self.sum, page_number, db_pages, page);
        let header = self.header.frame_header(page_number, db_pages, self.sum);
        stream.write(&NoDatabase, at, &header).expect("header");
        stream.write(&NoDatabase, at + 24, page).expect("page");
        self.frames += 1;
    }
}

/// The most bytes of the medium that an engine reads for a frame's page, however often SQLite wrote the page. At most,
/// the engine reads a whole image, differences of two pages in total, one last difference, which exceeds this total,
/// and headers.
const DEAREST_READ: u64 = 4 * PAGE as u64 + 2 * 65 * 16;

fn read_cost(stream: &mut WalStream<Nvwal>, nvm: &dyn Nvm, frame: u32, page: &mut [u8]) -> u64 {
    let before = nvm.counters().read_bytes;
    stream.engine_mut().read_page(&NoDatabase, frame, page).expect("read");
    nvm.counters().read_bytes - before
}

/// A reader that pins the log makes it grow, while the cache of page images keeps its limit of eight pages.
#[test]
fn a_log_of_a_hundred_thousand_frames_serves_every_one_of_them() {
    let options = NvwalOptions {
        block_bytes: 65536,
        limit_bytes: 256 << 20,
        ..options(SyncMode::Lazy, HeapMode::User)
    };
    let nvm = Arc::new(fresh_medium(&options, PAGE as u32));
    let mut stream =
        WalStream::new(Nvwal::open(nvm.clone(), Path::new("long"), options.clone()).expect("open"));
    let mut appender = Appender::start(&mut stream);
    let mut rng = Rng(100_000);
    let mut pages = vec![vec![0; PAGE]; 300];
    let mut samples = Vec::new();
    for frame in 1..=100_000_u32 {
        let number = rng.below(pages.len() as u64) as usize;
        let page = &mut pages[number];
        let start = rng.below(PAGE as u64 - 24) as usize;
        page[start..start + 24].fill_with(|| rng.next() as u8);
        let db_pages = if frame.is_multiple_of(20) { 300 } else { 0 };
        appender.append(&mut stream, number as u32 + 1, db_pages, page);
        if rng.chance(64) {
            samples.push((frame, page.clone()));
        }
    }
    let check = |stream: &mut WalStream<Nvwal>, rng: &mut Rng| {
        let mut page = vec![0; PAGE];
        for _ in 0..3000 {
            let (frame, expected) = &samples[rng.below(samples.len() as u64) as usize];
            let cost = read_cost(stream, nvm.as_ref(), *frame, &mut page);
            assert!(page == *expected, "frame {frame} differs");
            assert!(cost <= DEAREST_READ, "frame {frame} took {cost} bytes");
        }
    };
    check(&mut stream, &mut rng);
    let mut reopened = open(nvm.clone(), &options).expect("reopen");
    assert_eq!(reopened.engine().committed(), 100_000);
    check(&mut reopened, &mut rng);
}

#[test]
fn a_page_written_a_thousand_times_is_cheap_to_read() {
    // Chains of one-byte differences are limited by their number, and chains of 100-byte differences by their size.
    for width in [1, 100] {
        let options = NvwalOptions { limit_bytes: 4 << 20, ..options(SyncMode::Lazy, HeapMode::User) };
        let nvm = Arc::new(fresh_medium(&options, PAGE as u32));
        let mut stream = open(nvm.clone(), &options).expect("open");
        let mut appender = Appender::start(&mut stream);
        let mut rng = Rng(width as u64 + 1);
        let mut page = vec![0; PAGE];
        page.fill_with(|| rng.next() as u8);
        let mut versions = Vec::new();
        for _ in 0..1000 {
            let start = rng.below((PAGE - width) as u64) as usize;
            page[start..start + width].fill_with(|| rng.next() as u8);
            appender.append(&mut stream, 1, 1, &page);
            versions.push(page.clone());
        }
        let mut reopened = open(nvm.clone(), &options).expect("reopen");
        let mut dearest = 0;
        // Read from the newest version to the oldest, so that the image that was just read never helps to build the
        // next one.
        for (i, expected) in versions.iter().enumerate().rev() {
            let mut found = vec![0; PAGE];
            dearest = dearest.max(read_cost(&mut reopened, nvm.as_ref(), i as u32 + 1, &mut found));
            assert!(found == *expected, "version {i} differs");
        }
        assert!(dearest <= DEAREST_READ, "the dearest read took {dearest} bytes");
        assert!(dearest > PAGE as u64, "no chain was read: {dearest} bytes");
    }
}
