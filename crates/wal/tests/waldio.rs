//! Compares `waldio` with a model: random histories of one or two processes, interrupted by power losses and deaths at
//! any operation. Also tests failing devices and damage.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::{Model, Rng, for_seeds, write_all};
use duralite_crashmodel::{BlockOp, Crashes as _, OverBlock, RecordingBlock, Through};
use duralite_format::waldio::{DATA_OFFSET, Layout, Superblock};
use duralite_medium::block::{Block, Durability};
use duralite_medium::{LocalSegment, MediumError, Segment};
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::log::Sealed;
use duralite_wal::log::stream::WalStream;
use duralite_wal::{ErrorKind, LogError, WaldioOptions};

const PAGES: usize = 20;
const BLOCK: u32 = 512;

fn superblock(layout: Layout, page_bytes: usize, limit_bytes: u64) -> Superblock {
    common::waldio_superblock(layout, page_bytes as u32, limit_bytes)
}

fn options(layout: Layout, durability: Durability) -> WaldioOptions {
    WaldioOptions { layout, durability, cache_bytes: 0, ..WaldioOptions::default() }
}

/// What the processes that share a log have in common: the segment, the device and the settings.
struct World {
    block: Arc<dyn Block>,
    segment: Arc<dyn Segment>,
    superblock: Superblock,
    options: WaldioOptions,
}

impl World {
    fn new(block: Arc<dyn Block>, superblock: Superblock, options: WaldioOptions) -> Self {
        Self { block, segment: Arc::new(LocalSegment::new(SHARED_BYTES)), superblock, options }
    }

    fn process(&self, first: bool) -> Result<WalStream<Waldio>, LogError> {
        let engine = Waldio::attach(
            self.block.clone(),
            self.superblock.clone(),
            Path::new("model"),
            &self.options,
            self.segment.clone(),
            0,
            first,
        )?;
        let mut stream = WalStream::new(engine);
        assert_eq!(
            find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?,
            None,
            "SQLite's recovery would stop here"
        );
        Ok(stream)
    }
}

fn contents(stream: &mut WalStream<Waldio>) -> Result<Vec<u8>, LogError> {
    let mut bytes = vec![0; stream.size()? as usize];
    let count = stream.read(&NoDatabase, 0, &mut bytes)?;
    assert_eq!(count, bytes.len());
    Ok(bytes)
}

fn wait(stream: &WalStream<Waldio>, sealed: Option<Sealed>) -> Result<(), LogError> {
    match sealed.and_then(|sealed| sealed.ticket) {
        Some(ticket) => stream.engine().durability_waiter().expect("a waiter").wait(ticket),
        None => Ok(()),
    }
}

/// The state of a history so far.
struct History {
    world: World,
    block: Arc<RecordingBlock>,
    processes: Vec<WalStream<Waldio>>,
    model: Model,
    /// The contents that a power loss may leave, from that of the last acknowledged transaction to that of the last
    /// sealed one.
    possible: Vec<Model>,
}

impl History {
    fn begin(
        image: Vec<u8>,
        superblock: &Superblock,
        options: &WaldioOptions,
        operations: u64,
        seed: u64,
    ) -> Self {
        let block = Arc::new(RecordingBlock::from_bytes(image, BLOCK));
        block.crash_before(operations, seed);
        let world = World::new(block.clone(), superblock.clone(), options.clone());
        let model = Model::of_seed(seed, superblock.head.page_bytes as usize, PAGES);
        let processes = vec![world.process(true).expect("recovery"), world.process(false).expect("join")];
        Self { world, block, processes, model: model.clone(), possible: vec![model] }
    }

    /// Records that everything in the model so far is durable, so that a later power loss must leave all of it. Does
    /// nothing for a log without blocks, because a power loss may destroy the header of such a log.
    fn settle(&mut self) {
        if !self.block.has_crashed() && self.block.len() > DATA_OFFSET {
            self.possible = vec![self.model.clone()];
        }
    }

    /// Makes one step of the history, by a random process.
    fn step(&mut self, rng: &mut Rng) {
        let which = rng.below(2) as usize;
        let stream = &mut self.processes[which];
        match rng.below(14) {
            0 if self.model.frames() > 20 => {
                self.model.truncate();
                self.possible.push(self.model.clone());
                stream.truncate(&NoDatabase, 0).expect("truncate");
                self.settle();
            }
            1 | 2 if self.model.has_header() => {
                // Roll a transaction back: SQLite writes only a part of it.
                let transaction = self.model.transaction(rng, false);
                let keep = rng.below(transaction.writes.len() as u64) as usize;
                for (offset, data) in &transaction.writes[..keep] {
                    stream.write(&NoDatabase, *offset, data).expect("write");
                }
            }
            3 => *stream = self.world.process(false).expect("another process"),
            4 => {
                stream.engine_mut().refresh().and_then(|()| stream.engine_mut().force()).expect("force");
                self.settle();
            }
            _ => {
                if !self.model.has_header() || self.model.frames() > 150 {
                    let (offset, data) = self.model.restart();
                    self.possible.push(self.model.clone());
                    stream.write(&NoDatabase, offset, &data).expect("restart");
                    self.settle();
                }
                let stream = &mut self.processes[which];
                let spill = rng.chance(3);
                let transaction = self.model.transaction(rng, spill);
                // One of these writes seals the transaction. So both outcomes are possible from the first write on.
                let mut after = self.model.clone();
                after.commit(transaction);
                let transaction_writes = after.take_writes();
                self.possible.push(after.clone());
                let written = write_all(&transaction_writes, |at, data| stream.write(&NoDatabase, at, data));
                let sealed = written.expect("write");
                self.model = after;
                if rng.chance(2) {
                    wait(stream, sealed).expect("wait");
                    if self.world.options.durability != Durability::Normal {
                        self.settle();
                    }
                }
            }
        }
    }

    /// Continues after a power loss that left `image` on the device.
    fn recover(self, image: Vec<u8>, operations: u64, seed: u64, context: &str) -> Self {
        let Self { world, possible, .. } = self;
        let mut next = Self::begin(image.clone(), &world.superblock, &world.options, operations, seed);
        let found = contents(&mut next.processes[0]).expect("contents");
        let index = possible.iter().rposition(|model| model.committed == found);
        let lengths: Vec<_> = possible.iter().map(|model| model.committed.len()).collect();
        let index = index.unwrap_or_else(|| panic!("{context}: recovered {} of {lengths:?}", found.len()));
        assert!(contents(&mut next.processes[1]).expect("contents") == found, "{context}: processes differ");
        // A second recovery restores the same content, whether or not the writes of the first recovery reached the
        // device.
        for image in [image, next.block.crash_at_random(seed)] {
            let world = World::new(
                Arc::new(RecordingBlock::from_bytes(image, BLOCK)),
                world.superblock.clone(),
                world.options.clone(),
            );
            let again = contents(&mut world.process(true).expect("second recovery")).expect("contents");
            assert!(again == found, "{context}: recovering twice differs");
        }
        next.model = possible[index].clone();
        next.possible = vec![next.model.clone()];
        next
    }
}

fn history(seed: u64, layout: Layout, durability: Durability, page_bytes: usize, losses: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let superblock = superblock(layout, page_bytes, 256 << 20);
    let options = options(layout, durability);
    let fresh = RecordingBlock::new(BLOCK);
    Waldio::format(&fresh, &superblock).expect("format");
    let cut = |rng: &mut Rng| rng.below(120);
    let first = if losses == 0 { u64::MAX } else { cut(&mut rng) };
    let mut now = History::begin(fresh.to_bytes(), &superblock, &options, first, rng.next());
    let mut left = losses;
    for step in 0..60 + 40 * losses {
        let context = format!("seed {seed}, {layout:?} {durability:?}, step {step}");
        now.step(&mut rng);
        if let Some(image) = now.block.image() {
            left -= 1;
            let next = if left == 0 { u64::MAX } else { cut(&mut rng) };
            now = now.recover(image, next, rng.next(), &context);
            continue;
        }
        let expected = now.model.committed.clone();
        for stream in &mut now.processes {
            assert!(contents(stream).expect("contents") == expected, "{context}: live content differs");
        }
    }
    let image = now.block.crash_at_random(rng.next());
    now.recover(image, u64::MAX, rng.next(), &format!("seed {seed}, at the end"));
}

#[test]
fn inv07_every_acknowledged_commit_survives_a_power_loss_anywhere() {
    for layout in Layout::ALL {
        for durability in [Durability::Full, Durability::Fua] {
            for_seeds(60, |seed| history(seed, layout, durability, 512, 4));
        }
    }
}

#[test]
fn inv07_without_flushes_a_power_loss_leaves_a_prefix() {
    for layout in Layout::ALL {
        for_seeds(80, |seed| history(seed + 1000, layout, Durability::Normal, 512, 4));
    }
}

#[test]
fn inv07_histories_match_the_model_at_every_page_size() {
    for layout in Layout::ALL {
        for page_bytes in [512, 1024, 4096, 65536] {
            for_seeds(3, |seed| history(seed + 2000, layout, Durability::Full, page_bytes, 1));
        }
    }
}

/// A transaction that is larger than its share of the ring bypasses the ring, spills while it is open, and is read
/// back while it is open.
#[test]
fn inv07_large_transactions_are_committed_whole_or_not_at_all() {
    for layout in Layout::ALL {
        for_seeds(6, |seed| {
            let mut rng = Rng(seed * 7 + 1);
            let superblock = superblock(layout, 65536, 256 << 20);
            let options = options(layout, Durability::Full);
            let fresh = RecordingBlock::new(BLOCK);
            Waldio::format(&fresh, &superblock).expect("format");
            let cut = rng.below(40);
            let mut now = History::begin(fresh.to_bytes(), &superblock, &options, cut, rng.next());
            for page in &mut now.model.pages {
                page.fill_with(|| rng.next() as u8);
            }
            for round in 0..6 {
                if round % 3 == 0 {
                    let (offset, data) = now.model.restart();
                    now.possible.push(now.model.clone());
                    now.processes[0].write(&NoDatabase, offset, &data).expect("restart");
                    now.settle();
                }
                let mut after = now.model.clone();
                let writes = after.append_all_pages(&mut rng);
                now.possible.push(after.clone());
                let mut sealed = None;
                for (offset, data) in &writes {
                    let written = now.processes[0].write(&NoDatabase, *offset, data);
                    sealed = written.expect("write").or(sealed);
                    if rng.chance(8) && data.len() > 24 {
                        let mut back = vec![0; data.len()];
                        now.processes[0].read(&NoDatabase, *offset, &mut back).expect("read");
                        assert!(back == *data, "an open transaction's page differs");
                    }
                }
                now.model = after;
                if rng.chance(2) {
                    wait(&now.processes[0], sealed).expect("wait");
                    now.settle();
                }
                if let Some(image) = now.block.image() {
                    now = now.recover(image, u64::MAX, rng.next(), &format!("seed {seed}, round {round}"));
                    now.model.truncate();
                    let (offset, data) = now.model.restart();
                    now.processes[0].write(&NoDatabase, offset, &data).expect("restart");
                    now.settle();
                    continue;
                }
                let expected = now.model.committed.clone();
                assert!(contents(&mut now.processes[1]).expect("contents") == expected, "round {round}");
            }
        });
    }
}

/// Runs transactions on a medium that fails once. Returns the contents that the medium may hold, and the error.
fn run_until_failure(stream: &mut WalStream<Waldio>, rng: &mut Rng) -> (Vec<Vec<u8>>, Option<LogError>) {
    let mut model = Model::new(512, PAGES);
    let mut possible = vec![Vec::new()];
    for round in 0..12 {
        if round % 5 == 0 {
            let (offset, data) = model.restart();
            possible.push(model.committed.clone());
            if let Err(error) = stream.write(&NoDatabase, offset, &data) {
                return (possible, Some(error));
            }
            // The first header becomes durable together with the first blocks.
            possible.drain(..if round > 0 { possible.len() - 1 } else { 0 });
        }
        let mut after = model.clone();
        let transaction = after.transaction(rng, false);
        after.commit(transaction);
        possible.push(after.committed.clone());
        let written = write_all(&after.take_writes(), |at, data| stream.write(&NoDatabase, at, data));
        if let Err(error) = written.and_then(|sealed| wait(stream, sealed)) {
            return (possible, Some(error));
        }
        model = after;
        possible = vec![model.committed.clone()];
    }
    (possible, None)
}

#[test]
fn inv09_a_failing_write_or_flush_stops_every_process_and_loses_nothing_acknowledged() {
    let io = || MediumError::Unsupported { what: "an injected failure" };
    for layout in Layout::ALL {
        for operation in [BlockOp::Write, BlockOp::Flush] {
            let mut failures = 0;
            for nth in 0..40 {
                let mut rng = Rng(nth * 31 + 7);
                let superblock = superblock(layout, 512, 1 << 20);
                let block = Arc::new(RecordingBlock::new(BLOCK));
                Waldio::format(block.as_ref(), &superblock).expect("format");
                let world = World::new(block.clone(), superblock, options(layout, Durability::Full));
                let mut stream = world.process(true).expect("attach");
                let mut other = world.process(false).expect("join");
                block.fail(operation, nth, io());
                let (possible, error) = run_until_failure(&mut stream, &mut rng);
                let Some(error) = error else { break };
                failures += 1;
                assert!(error.to_string().contains("injected"), "{operation:?} {nth}: {error}");
                // No process may continue, even if the device works again.
                for stream in [&mut stream, &mut other] {
                    let refused = stream.write(&NoDatabase, 0, &Model::new(512, PAGES).restart().1);
                    assert!(
                        matches!(refused, Err(LogError::Poisoned(_))),
                        "{operation:?} {nth}: {refused:?}"
                    );
                }
                assert!(other.size().is_err());
                // The processes end. Check what the operating system still has, and what a power loss leaves of that.
                // From both, recovery must restore a possible content, which must survive another power loss.
                for image in [block.to_bytes(), block.crash(|_, states| rng.below(states as u64) as usize)] {
                    let block = Arc::new(RecordingBlock::from_bytes(image, BLOCK));
                    let world = World::new(block.clone(), world.superblock.clone(), world.options.clone());
                    let found = contents(&mut world.process(true).expect("recovery")).expect("contents");
                    assert!(possible.contains(&found), "{operation:?} {nth}");
                    let left = block.crash(|_, _| 0);
                    let block = Arc::new(RecordingBlock::from_bytes(left, BLOCK));
                    let world = World::new(block, world.superblock.clone(), world.options.clone());
                    let again = contents(&mut world.process(true).expect("recovery")).expect("contents");
                    assert!(again == found, "{operation:?} {nth}: what recovery found was not durable");
                }
            }
            assert!(failures > 10, "{operation:?}: only {failures} failures: the test misses the operations");
        }
    }
}

/// Growing the log ends with a flush. If the write of a leader's group fails, the error may be reported to that flush
/// instead of the leader's own.
#[test]
fn inv09_a_flush_that_fails_while_the_log_grows_stops_every_process() {
    for nth in 0..4 {
        let superblock = superblock(Layout::Delta, 512, 16 << 20);
        let block = Arc::new(RecordingBlock::new(BLOCK));
        Waldio::format(block.as_ref(), &superblock).expect("format");
        let world = World::new(block.clone(), superblock, options(Layout::Delta, Durability::Full));
        let mut stream = world.process(true).expect("attach");
        let mut other = world.process(false).expect("join");
        let injected = MediumError::Io { op: "fsync", source: rustix::io::Errno::IO };
        block.fail(BlockOp::Preallocate, nth, injected.clone());
        let (mut model, mut rng) = (Model::new(512, PAGES), Rng(nth));
        let (offset, data) = model.restart();
        let mut failed = stream.write(&NoDatabase, offset, &data).err();
        while failed.is_none() {
            let transaction = model.transaction(&mut rng, false);
            model.commit(transaction);
            let written = write_all(&model.take_writes(), |at, data| stream.write(&NoDatabase, at, data));
            failed = written.and_then(|sealed| wait(&stream, sealed)).err();
        }
        let failed = failed.expect("a failure");
        assert!(failed.to_string().contains(&injected.to_string()), "{nth}: {failed}");
        for stream in [&mut stream, &mut other] {
            let refused = stream.write(&NoDatabase, 0, &Model::new(512, PAGES).restart().1);
            assert!(matches!(refused, Err(LogError::Poisoned(_))), "{nth}: {refused:?}");
        }
    }
}

/// A device on which the next growth of the log fails. Before it fails, it waits, so that a committer has the time to
/// commit. A correct committer does not commit in this time.
#[derive(Debug)]
struct FailingGrowth {
    below: RecordingBlock,
    /// Whether the next growth fails.
    is_armed: AtomicBool,
    /// The channel on which the failing growth says that it has begun.
    begun: mpsc::SyncSender<()>,
    /// The channel on which the failing growth learns that the committer is done.
    done: Mutex<mpsc::Receiver<()>>,
}

impl OverBlock for FailingGrowth {
    fn below(&self) -> &dyn Block {
        &self.below
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        if !self.is_armed.swap(false, Ordering::SeqCst) {
            return self.below.preallocate(len);
        }
        self.begun.send(()).expect("a committer");
        // A correct committer waits for this growth, so `recv_timeout` takes the whole time. On a slow machine an
        // incorrect committer may not commit in that time. The test may then miss the error, but it never fails
        // without one.
        let _ = self.done.lock().expect("done").recv_timeout(Duration::from_millis(300));
        Err(MediumError::Io { op: "fsync", source: rustix::io::Errno::IO })
    }
}

/// The kernel reports a failed flush to only one of two callers. So while one thread lets the log grow, which ends with a
/// flush, no other thread of the process writes a group and relies on its own flush.
#[test]
fn inv09_no_commit_is_acknowledged_beside_a_growth_whose_flush_fails() {
    let superblock = superblock(Layout::Delta, 512, 16 << 20);
    let (begun, has_begun) = mpsc::sync_channel(1);
    let (done, is_done) = mpsc::channel();
    let block = Arc::new(Through(FailingGrowth {
        below: RecordingBlock::new(BLOCK),
        is_armed: AtomicBool::new(false),
        begun,
        done: Mutex::new(is_done),
    }));
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let world = World::new(block.clone(), superblock, options(Layout::Delta, Durability::Full));
    let mut stream = world.process(true).expect("attach");
    let (mut model, mut rng) = (Model::new(512, PAGES), Rng(1));
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("restart");
    let mut commit = |stream: &mut WalStream<Waldio>| {
        let transaction = model.transaction(&mut rng, false);
        model.commit(transaction);
        write_all(&model.take_writes(), |at, data| stream.write(&NoDatabase, at, data))
    };
    let first = commit(&mut stream).expect("write");
    wait(&stream, first).expect("acknowledged");
    let ticket = commit(&mut stream).expect("write").and_then(|sealed| sealed.ticket).expect("a ticket");
    let waiter = stream.engine().durability_waiter().expect("a waiter");
    block.0.is_armed.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let committer = scope.spawn(move || {
            has_begun.recv().expect("a growth");
            let waited = waiter.wait(ticket);
            let _ = done.send(());
            waited
        });
        // The thread seals these transactions, and nobody waits for them.
        let failed = (0..10_000).find_map(|_| commit(&mut stream).err());
        assert!(failed.is_some_and(|error| error.to_string().contains("fsync")));
        let waited = committer.join().expect("the committer");
        assert!(matches!(waited, Err(LogError::Poisoned(_))), "{waited:?}");
    });
}

/// After a failed flush the data is still in the cache, but recovery must not rely on the cache.
#[test]
fn inv09_what_a_failed_flush_left_in_the_cache_is_written_again_before_anything_is_acknowledged() {
    let superblock = superblock(Layout::Delta, 512, 1 << 20);
    let block = Arc::new(RecordingBlock::new(BLOCK));
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let world = World::new(block.clone(), superblock, options(Layout::Delta, Durability::Full));
    let mut rng = Rng(3);
    let mut model = Model::new(512, PAGES);
    let mut stream = world.process(true).expect("attach");
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("restart");
    block.fail(BlockOp::Flush, 0, MediumError::Unsupported { what: "an injected failure" });
    let mut after = model.clone();
    let transaction = after.transaction(&mut rng, false);
    after.commit(transaction);
    let written = write_all(&after.take_writes(), |at, data| stream.write(&NoDatabase, at, data));
    wait(&stream, written.expect("write")).expect_err("the flush fails");
    drop(stream);
    // A new process uses the same device and cache. It sees the commit, so it has to make the commit durable.
    let world = World::new(block.clone(), world.superblock.clone(), world.options.clone());
    let mut stream = world.process(true).expect("recovery");
    assert!(contents(&mut stream).expect("contents") == after.committed);
    let mut next = after.clone();
    let transaction = next.transaction(&mut rng, false);
    next.commit(transaction);
    let written = write_all(&next.take_writes(), |at, data| stream.write(&NoDatabase, at, data));
    wait(&stream, written.expect("write")).expect("acknowledged");
    let left = Arc::new(RecordingBlock::from_bytes(block.crash(|_, _| 0), BLOCK));
    let world = World::new(left, world.superblock.clone(), world.options.clone());
    assert!(contents(&mut world.process(true).expect("recovery")).expect("contents") == next.committed);
}

#[test]
fn inv10_no_space_and_the_limit_fail_one_transaction_and_lose_nothing() {
    for (space, limit) in [(Some(700 << 10), 64 << 20), (None, 600 << 10)] {
        let superblock = superblock(Layout::Delta, 4096, limit);
        let block = Arc::new(RecordingBlock::new(BLOCK));
        Waldio::format(block.as_ref(), &superblock).expect("format");
        if let Some(space) = space {
            block.set_limit(space);
        }
        let world = World::new(block, superblock, options(Layout::Delta, Durability::Full));
        let mut stream = world.process(true).expect("attach");
        let mut rng = Rng(5);
        let mut model = Model::new(4096, PAGES);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        let error = loop {
            let mut after = model.clone();
            let transaction = after.transaction(&mut rng, true);
            after.commit(transaction);
            match write_all(&after.take_writes(), |at, data| stream.write(&NoDatabase, at, data)) {
                Ok(sealed) => {
                    wait(&stream, sealed).expect("wait");
                    model = after;
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(contents(&mut stream).expect("contents") == model.committed);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("a new generation needs no space");
        assert!(contents(&mut stream).expect("contents") == model.committed);
    }
}

/// Returns an undamaged log with several groups, its superblock, its content, and its end.
fn sound_log(layout: Layout) -> (Vec<u8>, Superblock, Vec<u8>, u64) {
    let superblock = superblock(layout, 512, 1 << 20);
    let block = Arc::new(RecordingBlock::new(BLOCK));
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let world = World::new(block.clone(), superblock.clone(), options(layout, Durability::Full));
    let mut stream = world.process(true).expect("attach");
    let (possible, error) = run_until_failure(&mut stream, &mut Rng(11));
    assert!(error.is_none());
    (block.to_bytes(), superblock, possible[0].clone(), stream.engine().used_bytes())
}

#[test]
fn inv07_damage_before_the_last_group_is_an_error_and_in_it_a_shorter_log() {
    for layout in Layout::ALL {
        let (good, superblock, expected, end) = sound_log(layout);
        let read = |bytes: Vec<u8>| {
            let block = Arc::new(RecordingBlock::from_bytes(bytes, BLOCK));
            let mut log = WalStream::new(Waldio::open_read_only(block, superblock.clone(), Path::new("x"))?);
            contents(&mut log)
        };
        assert!(read(good.clone()).expect("sound") == expected);
        let (mut refused, mut shorter) = (0, 0);
        let mut rng = Rng(13);
        for _ in 0..3000 {
            let at = rng.below(end) as usize;
            let mut bad = good.clone();
            bad[at] ^= 1 << rng.below(8);
            match read(bad) {
                Err(LogError::Corrupt { .. }) => refused += 1,
                Err(error) => panic!("byte {at}: {error}"),
                Ok(found) if found == expected => {}
                Ok(found) => {
                    assert!(expected.starts_with(&found), "byte {at}: not a prefix");
                    shorter += 1;
                }
            }
        }
        assert!(refused > 100 && shorter > 10, "{layout:?}: {refused} refused, {shorter} shorter");
        // Damage the newest slot. The other slot belongs to another generation, so recovery cannot use it.
        let mut bad = good.clone();
        let newest = if good[4096] > good[8192] { 4096 } else { 8192 };
        bad[newest + 9] ^= 1;
        assert!(matches!(read(bad), Err(LogError::Corrupt { .. })), "{layout:?}");
        for length in [0, 512, 4096, 12288, DATA_OFFSET as usize + 512] {
            assert!(read(good[..length].to_vec()).is_err(), "cut to {length}");
        }
    }
}

/// A process writes a large transaction and dies before sealing it. Another process then seals a small transaction at
/// the same offset. A scan must not mistake the rest of the large transaction for a transaction, or for a part of one.
#[test]
fn inv07_what_a_dead_process_wrote_behind_the_tail_is_never_taken_for_a_successor() {
    let superblock = superblock(Layout::Embedded, 512, 16 << 20);
    let options = options(Layout::Embedded, Durability::Full);
    let block = RecordingBlock::new(BLOCK);
    Waldio::format(&block, &superblock).expect("format");
    let mut rng = Rng(11);
    let world = World::new(Arc::new(block), superblock.clone(), options.clone());
    let mut stream = world.process(true).expect("attach");
    let mut model = Model::new(512, 900);
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("write");
    let commit = |stream: &mut WalStream<Waldio>, writes: &[(u64, Vec<u8>)]| {
        let written = write_all(writes, |at, data| stream.write(&NoDatabase, at, data));
        wait(stream, written.expect("write")).expect("commit");
    };
    let first = model.transaction(&mut rng, false);
    commit(&mut stream, &first.writes);
    model.commit(first);
    let bytes_of = |stream: WalStream<Waldio>, world: World| {
        drop(stream);
        let recorded = RecordingBlock::from_bytes(vec![0; world.block.len() as usize], BLOCK);
        let mut bytes = vec![0; recorded.len() as usize];
        world.block.read(0, &mut bytes).expect("read");
        bytes
    };
    let before = bytes_of(stream, world);
    let on_top = |writes: &[(u64, Vec<u8>)]| {
        let block = RecordingBlock::from_bytes(before.clone(), BLOCK);
        let world = World::new(Arc::new(block), superblock.clone(), options.clone());
        let mut stream = world.process(true).expect("attach");
        commit(&mut stream, writes);
        let used = stream.engine().used_bytes();
        (bytes_of(stream, world), used)
    };
    let mut large = model.clone();
    let (dead, _) = on_top(&large.append_all_pages(&mut rng));
    for _ in 0..8 {
        let small = model.transaction(&mut rng, false);
        let (sealed, used) = on_top(&small.writes);
        let mut left = dead.clone();
        left[..used as usize].copy_from_slice(&sealed[..used as usize]);
        let world = World::new(
            Arc::new(RecordingBlock::from_bytes(left, BLOCK)),
            superblock.clone(),
            options.clone(),
        );
        let mut stream = world.process(true).expect("recovery");
        assert!(contents(&mut stream).expect("read") == model.after(&small), "not the small one alone");
    }
}

#[test]
fn other_settings_are_refused_while_a_log_is_in_use() {
    let superblock = superblock(Layout::Delta, 512, 1 << 20);
    let block = Arc::new(RecordingBlock::new(BLOCK));
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let mut world = World::new(block, superblock, options(Layout::Delta, Durability::Full));
    let _first = world.process(true).expect("attach");
    world.options.durability = Durability::Normal;
    let refused = world.process(false).map(|_| ());
    assert!(matches!(refused, Err(LogError::Settings)));
}

/// A must-fail control: if a flush is omitted, some power loss loses an acknowledged commit.
#[test]
fn a_missing_flush_is_noticed() {
    let superblock = superblock(Layout::Delta, 512, 1 << 20);
    let lost = (0..12).any(|omitted| {
        let block = Arc::new(RecordingBlock::new(BLOCK));
        Waldio::format(block.as_ref(), &superblock).expect("format");
        let world = World::new(block.clone(), superblock.clone(), options(Layout::Delta, Durability::Full));
        let mut stream = world.process(true).expect("attach");
        let mut model = Model::new(512, PAGES);
        let (offset, data) = model.restart();
        stream.write(&NoDatabase, offset, &data).expect("restart");
        for i in 0..3 {
            if i == 2 {
                block.omit_flush(0);
            }
            let mut after = model.clone();
            let transaction = after.transaction(&mut Rng(omitted + 1), false);
            after.commit(transaction);
            let written = write_all(&after.take_writes(), |at, data| stream.write(&NoDatabase, at, data));
            wait(&stream, written.expect("write")).expect("acknowledged");
            model = after;
        }
        let left = Arc::new(RecordingBlock::from_bytes(block.crash(|_, _| 0), BLOCK));
        let world = World::new(left, superblock.clone(), world.options.clone());
        contents(&mut world.process(true).expect("recovery")).expect("contents") != model.committed
    });
    assert!(lost);
}
