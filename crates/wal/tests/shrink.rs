//! Tests that a log that is truncated gives space back. The processes that share the log find it undamaged, and so does
//! recovery after a power loss during the truncation.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, directory, for_seeds, wait, write_all};
use duralite_crashmodel::{Crashes as _, RecordingBlock, RecordingNvm};
use duralite_format::waldio::{Layout, Slot, Superblock};
use duralite_medium::block::{Access, Block, BlockOptions, FileBlock};
use duralite_medium::{FileNvm, LocalSegment, MapOptions, Nvm, Segment};
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::{Engine, LogReader as _};
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{DatabaseIdentity, EngineOptions, Log, NvwalOptions, WaldioOptions};

const PAGE: usize = 4096;
/// The size in bytes of a new log with blocks of 512 bytes. The second number is an upper bound on the space in bytes
/// that a new log in memory takes.
const NEW: u64 = 512 << 10;
const NEW_MEMORY: u64 = 2 << 20;

fn contents<E: Engine>(stream: &mut WalStream<E>) -> Vec<u8> {
    let mut bytes = vec![0; stream.size().expect("size") as usize];
    assert_eq!(stream.read(&NoDatabase, 0, &mut bytes).expect("read"), bytes.len());
    assert_eq!(find_checksum_mismatch(stream.engine_mut(), &NoDatabase).expect("readable"), None);
    bytes
}

/// Makes these writes, and waits until the transaction that they sealed is durable.
fn write<E: Engine>(stream: &mut WalStream<E>, writes: &[(u64, Vec<u8>)]) {
    let sealed = write_all(writes, |at, data| stream.write(&NoDatabase, at, data)).expect("write");
    wait(sealed, stream.engine().durability_waiter()).expect("durable");
}

fn commit<E: Engine>(stream: &mut WalStream<E>, model: &mut Model, rng: &mut Rng) {
    let transaction = model.transaction(rng, false);
    write(stream, &transaction.writes);
    model.commit(transaction);
}

fn restart<E: Engine>(stream: &mut WalStream<E>, model: &mut Model) {
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("restart");
}

/// Commits large transactions until the log has this many bytes.
fn fill<E: Engine>(stream: &mut WalStream<E>, model: &mut Model, rng: &mut Rng, bytes: usize) {
    while model.committed.len() < bytes {
        write(stream, &model.append_all_pages(rng));
    }
}

fn truncate<E: Engine>(stream: &mut WalStream<E>, model: &mut Model) {
    stream.truncate(&NoDatabase, 0).expect("truncate");
    model.truncate();
}

fn superblock(layout: Layout) -> Superblock {
    common::waldio_superblock(layout, PAGE as u32, u64::MAX)
}

fn attach(
    block: Arc<dyn Block>,
    segment: &Arc<dyn Segment>,
    layout: Layout,
    first: bool,
) -> WalStream<Waldio> {
    let options = WaldioOptions { layout, cache_bytes: 0, ..WaldioOptions::default() };
    let path = Path::new("log");
    let log = Waldio::attach(block, superblock(layout), path, &options, segment.clone(), 0, first);
    WalStream::new(log.expect("attach"))
}

fn alone(block: Arc<dyn Block>, layout: Layout) -> WalStream<Waldio> {
    let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(SHARED_BYTES));
    attach(block, &segment, layout, true)
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).expect("log")
}

fn blocks(path: &Path) -> Arc<FileBlock> {
    let options = BlockOptions { block_bytes: Some(512), access: Access::Buffered, read_only: false };
    Arc::new(FileBlock::open(open(path), path, &options).expect("blocks"))
}

#[test]
fn a_log_of_blocks_that_is_cut_is_short_for_all_who_share_it() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("log");
        Waldio::format(blocks(&path).as_ref(), &superblock(layout)).expect("format");
        let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(SHARED_BYTES));
        let mut processes = [true, false].map(|first| attach(blocks(&path), &segment, layout, first));
        let (mut model, mut rng) = (Model::new(PAGE, 40), Rng(11));
        let length = || std::fs::metadata(&path).expect("log").len();
        for round in 0..4 {
            let [one, other] = &mut processes;
            let (cutter, sleeper) = if round % 2 == 0 { (one, other) } else { (other, one) };
            restart(cutter, &mut model);
            fill(cutter, &mut model, &mut rng, 3 << 20);
            // The other process still knows the length before the truncation.
            assert!(contents(sleeper) == model.committed);
            assert!(length() > 2 << 20);
            truncate(cutter, &mut model);
            assert_eq!(length(), NEW, "{layout:?}");
            // Truncate once more, with nothing to truncate.
            let generation = cutter.engine().generation();
            cutter.truncate(&NoDatabase, 0).expect("truncate");
            assert_eq!(cutter.engine().generation(), generation);
            restart(sleeper, &mut model);
            fill(sleeper, &mut model, &mut rng, 2 << 20);
            assert!(contents(cutter) == model.committed);
            assert!(contents(sleeper) == model.committed);
            let mut again = alone(blocks(&path), layout);
            assert!(contents(&mut again) == model.committed);
        }
    }
}

#[test]
fn journal_size_limit_is_what_the_file_keeps_when_the_log_starts_over() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let dir = tempfile::tempdir().expect("directory");
        let database = dir.path().join("app.db");
        std::fs::write(&database, [0; 4096]).expect("database");
        let placement = directory(engine, dir.path());
        let identity = DatabaseIdentity::of(&database).expect("identity");
        let mut log = Log::create(&NoDatabase, &placement, &EngineOptions::default(), &identity, PAGE as u32)
            .expect("create");
        let path = log.path().to_path_buf();
        let space = || std::fs::metadata(&path).expect("log").blocks() * 512;
        let (mut model, mut rng) = (Model::new(PAGE, 40), Rng(12));
        let mut used = Vec::new();
        for limit in [None, Some(6 << 20), Some(0), None] {
            let (offset, data) = model.restart();
            log.write(&NoDatabase, offset, &data).expect("restart");
            while model.committed.len() < 12 << 20 {
                let writes = model.append_all_pages(&mut rng);
                let written = write_all(&writes, |at, data| log.write(&NoDatabase, at, data));
                wait(written.expect("write"), log.durability_waiter()).expect("durable");
            }
            log.limit_size(limit);
            let (offset, data) = model.restart();
            log.write(&NoDatabase, offset, &data).expect("restart");
            used.push(space());
        }
        assert!(used[0] > 8 << 20 && used[3] > 8 << 20, "{engine:?}: {used:?}");
        // On a large file system, an emulated log begins with a table of up to one mebibyte.
        assert!((4 << 20..8 << 20).contains(&used[1]), "{engine:?}: {used:?}");
        assert!(used[2] <= 6 << 20 && used[2] < used[1], "{engine:?}: {used:?}");
    }
}

/// Finds the slot of the generation in force in the contents of the device, and returns the file length that the slot
/// promises.
fn promised(bytes: &[u8]) -> u64 {
    let slots = [4096, 8192].map(|at| Slot::decode(&bytes[at..at + 4096], duralite_format::LogId([9; 16])));
    slots.into_iter().flatten().max_by_key(|slot| slot.generation).expect("a slot").file_bytes
}

#[test]
fn inv07_power_fails_at_each_step_of_giving_blocks_back() {
    for layout in Layout::ALL {
        let block = Arc::new(RecordingBlock::new(512));
        Waldio::format(block.as_ref(), &superblock(layout)).expect("format");
        let mut stream = alone(block.clone(), layout);
        let (mut before, mut rng) = (Model::new(PAGE, 20), Rng(13));
        restart(&mut stream, &mut before);
        fill(&mut stream, &mut before, &mut rng, 1 << 20);
        let filled = block.to_bytes();
        assert!(filled.len() as u64 > NEW);
        drop(stream);
        for_seeds(60, |seed| {
            let block = Arc::new(RecordingBlock::from_bytes(filled.clone(), 512));
            let mut stream = alone(block.clone(), layout);
            block.crash_before(seed / 3, seed);
            let (mut model, mut rng) = (before.clone(), Rng(seed));
            truncate(&mut stream, &mut model);
            let mut possible = vec![before.committed.clone(), Vec::new()];
            restart(&mut stream, &mut model);
            possible.push(model.committed.clone());
            // Commit more than fits into the space that the file has kept, so that the file grows again.
            while model.committed.len() < 700 << 10 {
                commit(&mut stream, &mut model, &mut rng);
                possible.push(model.committed.clone());
            }
            let left = block.image().unwrap_or_else(|| block.crash_at_random(seed));
            assert!(promised(&left) <= left.len() as u64);
            let found = contents(&mut alone(Arc::new(RecordingBlock::from_bytes(left, 512)), layout));
            assert!(possible.contains(&found), "{layout:?}: {} bytes", found.len());
        });
    }
}

/// A process that dies in the middle of shrinking the log leaves a log that others can use.
#[test]
fn inv11_a_process_dies_between_the_slot_and_the_cut() {
    #[derive(Debug)]
    struct NeverCut(Arc<FileBlock>);
    impl Block for NeverCut {
        fn block_bytes(&self) -> u32 {
            self.0.block_bytes()
        }
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn preallocate(&self, len: u64) -> Result<(), duralite_medium::MediumError> {
            self.0.preallocate(len)
        }
        fn refresh_len(&self) -> Result<(), duralite_medium::MediumError> {
            self.0.refresh_len()
        }
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), duralite_medium::MediumError> {
            self.0.read(at, buf)
        }
        fn write(&self, at: u64, blocks: &[u8]) -> Result<(), duralite_medium::MediumError> {
            self.0.write(at, blocks)
        }
        fn write_durably(
            &self,
            at: u64,
            blocks: &[u8],
            durability: duralite_medium::block::Durability,
        ) -> Result<(), duralite_medium::MediumError> {
            self.0.write_durably(at, blocks, durability)
        }
        fn flush(&self) -> Result<(), duralite_medium::MediumError> {
            self.0.flush()
        }
        fn counters(&self) -> duralite_medium::block::BlockCounters {
            self.0.counters()
        }
        fn guarantee(&self) -> duralite_medium::Guarantee {
            self.0.guarantee()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("log");
    let layout = Layout::Delta;
    Waldio::format(blocks(&path).as_ref(), &superblock(layout)).expect("format");
    let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(SHARED_BYTES));
    let mut dies = attach(Arc::new(NeverCut(blocks(&path))), &segment, layout, true);
    let mut lives = attach(blocks(&path), &segment, layout, false);
    let (mut model, mut rng) = (Model::new(PAGE, 40), Rng(14));
    restart(&mut dies, &mut model);
    fill(&mut dies, &mut model, &mut rng, 2 << 20);
    let long = std::fs::metadata(&path).expect("log").len();
    truncate(&mut dies, &mut model);
    drop(dies);
    restart(&mut lives, &mut model);
    fill(&mut lives, &mut model, &mut rng, 1 << 20);
    assert!(contents(&mut lives) == model.committed);
    assert_eq!(std::fs::metadata(&path).expect("log").len(), long);
    assert!(contents(&mut alone(blocks(&path), layout)) == model.committed);
    truncate(&mut lives, &mut model);
    assert_eq!(std::fs::metadata(&path).expect("log").len(), NEW);
}

fn memory_options() -> NvwalOptions {
    NvwalOptions { block_bytes: 65536, limit_bytes: 64 << 20, cache_bytes: 0, ..NvwalOptions::default() }
}

#[test]
fn a_log_in_memory_that_is_cut_gives_space_back_and_faults_nobody() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("log");
    let options = memory_options();
    let superblock = common::superblock(&options, PAGE as u32);
    let capacity = superblock.file_bytes(superblock.limit_blocks);
    let map = || -> Arc<dyn Nvm> {
        let options = MapOptions { capacity, ..MapOptions::default() };
        Arc::new(FileNvm::map(open(&path), &path, &options).expect("map"))
    };
    Nvwal::format(map().as_ref(), &superblock).expect("format");
    let mut processes =
        [0; 2].map(|_| WalStream::new(Nvwal::open(map(), &path, options.clone()).expect("open")));
    let (mut model, mut rng) = (Model::new(PAGE, 40), Rng(15));
    let space = || std::fs::metadata(&path).expect("log").blocks() * 512;
    for round in 0..4 {
        let [one, other] = &mut processes;
        let (cutter, sleeper) = if round % 2 == 0 { (one, other) } else { (other, one) };
        restart(cutter, &mut model);
        fill(cutter, &mut model, &mut rng, 12 << 20);
        assert!(contents(sleeper) == model.committed);
        let full = space();
        assert!(full > 8 << 20);
        truncate(cutter, &mut model);
        assert!(space() < NEW_MEMORY, "{} of {full} bytes are still there", space());
        // Read a frame of the old content, where the file now has holes. SQLite does not use such a frame, but the read
        // must not fault.
        let mut page = vec![0; PAGE];
        let _ = sleeper.engine_mut().read_page(&NoDatabase, 1, &mut page);
        assert!(contents(sleeper).is_empty());
        restart(sleeper, &mut model);
        fill(sleeper, &mut model, &mut rng, 6 << 20);
        assert!(contents(cutter) == model.committed);
        assert!(space() > 4 << 20);
        let mut again = common::open(map(), &options).expect("open");
        assert!(contents(&mut again) == model.committed);
    }
}

#[test]
fn inv07_power_fails_at_each_step_of_giving_memory_back() {
    let options = NvwalOptions { block_bytes: 8192, ..memory_options() };
    let nvm = Arc::new(common::fresh_medium(&options, PAGE as u32));
    let mut stream = common::open(nvm.clone(), &options).expect("open");
    let (mut before, mut rng) = (Model::new(PAGE, 20), Rng(16));
    restart(&mut stream, &mut before);
    fill(&mut stream, &mut before, &mut rng, 2 << 20);
    let filled = nvm.to_bytes();
    drop(stream);
    for_seeds(80, |seed| {
        let nvm = Arc::new(RecordingNvm::from_bytes(filled.clone(), nvm.capacity()));
        let mut stream = common::open(nvm.clone(), &options).expect("open");
        nvm.crash_before(seed * 9, seed);
        let (mut model, mut rng) = (before.clone(), Rng(seed));
        truncate(&mut stream, &mut model);
        let mut possible = vec![before.committed.clone(), Vec::new()];
        restart(&mut stream, &mut model);
        possible.push(model.committed.clone());
        while model.committed.len() < 1500 << 10 {
            commit(&mut stream, &mut model, &mut rng);
            possible.push(model.committed.clone());
        }
        let left: Arc<dyn Nvm> = Arc::new(nvm.image().map_or_else(|| nvm.crash(seed), |left| nvm.over(left)));
        let found = contents(&mut common::open(left, &options).expect("recovery"));
        assert!(possible.contains(&found), "{} bytes", found.len());
    });
}
