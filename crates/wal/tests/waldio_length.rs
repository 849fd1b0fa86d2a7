//! Tests of `waldio` on a file that another process made longer. That process died before the new length was
//! durable.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Model, Rng, write_all};
use duralite_crashmodel::RecordingBlock;
use duralite_format::waldio::{Layout, Superblock};
use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, LocalSegment, MediumError, Segment};
use duralite_wal::WaldioOptions;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;

const BLOCK: u32 = 512;
const PAGE: usize = 4096;

/// A file whose visible size may be larger than its durable size.
#[derive(Debug)]
struct GrownFile {
    inner: RecordingBlock,
    durable_len: AtomicU64,
    /// The number of writes that went beyond the durable length.
    trusting_writes: AtomicU64,
    /// Whether a power loss follows the next write. The bytes of that write then survive, but the file's new
    /// size does not.
    loses_power: AtomicBool,
    left: Mutex<Option<Vec<u8>>>,
}

impl GrownFile {
    fn new() -> Self {
        Self {
            inner: RecordingBlock::new(BLOCK),
            durable_len: AtomicU64::new(0),
            trusting_writes: AtomicU64::new(0),
            loses_power: AtomicBool::new(false),
            left: Mutex::default(),
        }
    }

    /// Makes the file longer, like a process that dies before it has flushed its preallocation.
    fn grow_and_die(&self, len: u64) {
        self.inner.preallocate(len).expect("room");
    }
}

impl Block for GrownFile {
    fn block_bytes(&self) -> u32 {
        BLOCK
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.inner.preallocate(len)?;
        self.durable_len.fetch_max(len, Ordering::Relaxed);
        Ok(())
    }
    fn refresh_len(&self) -> Result<(), MediumError> {
        Ok(())
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.inner.read(at, buf)
    }
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let durable_len = self.durable_len.load(Ordering::Relaxed);
        if at + blocks.len() as u64 > durable_len {
            self.trusting_writes.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.write(at, blocks)?;
        if self.loses_power.swap(false, Ordering::Relaxed) {
            let mut left = self.inner.crash(|_, states| states - 1);
            left.truncate(durable_len as usize);
            *self.left.lock().expect("lock") = Some(left);
        }
        Ok(())
    }
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.write(at, blocks)?;
        if durability == Durability::Normal { Ok(()) } else { self.flush() }
    }
    fn flush(&self) -> Result<(), MediumError> {
        // A flush does not make the size durable, because only preallocation promises that.
        self.inner.flush()
    }
    fn counters(&self) -> BlockCounters {
        self.inner.counters()
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }
    fn describe(&self) -> String {
        "a file that was made longer".to_owned()
    }
}

fn superblock(layout: Layout) -> Superblock {
    common::waldio_superblock(layout, PAGE as u32, 64 << 20)
}

fn attach(
    block: &Arc<dyn Block>,
    segment: &Arc<dyn Segment>,
    layout: Layout,
    first: bool,
) -> WalStream<Waldio> {
    let options = WaldioOptions { layout, ..WaldioOptions::default() };
    let path = Path::new("model");
    let engine = Waldio::attach(block.clone(), superblock(layout), path, &options, segment.clone(), 0, first);
    WalStream::new(engine.expect("attach"))
}

fn segment() -> Arc<dyn Segment> {
    Arc::new(LocalSegment::new(SHARED_BYTES))
}

fn contents(stream: &mut WalStream<Waldio>) -> Vec<u8> {
    let mut bytes = vec![0; stream.size().expect("size") as usize];
    let count = stream.read(&NoDatabase, 0, &mut bytes).expect("read");
    assert_eq!(count, bytes.len());
    bytes
}

fn commit(stream: &mut WalStream<Waldio>, model: &mut Model, rng: &mut Rng) {
    let transaction = model.transaction(rng, false);
    model.commit(transaction);
    let written = write_all(&model.take_writes(), |at, data| stream.write(&NoDatabase, at, data));
    let ticket = written.expect("write").and_then(|sealed| sealed.ticket).expect("a ticket");
    stream.engine().durability_waiter().expect("a waiter").wait(ticket).expect("durable");
}

/// Returns two processes. The second one has attached the log after the file was made longer.
fn grown(layout: Layout, rng: &mut Rng) -> (Arc<GrownFile>, [WalStream<Waldio>; 2], Model) {
    let file = Arc::new(GrownFile::new());
    Waldio::format(file.as_ref(), &superblock(layout)).expect("format");
    let (block, segment): (Arc<dyn Block>, _) = (file.clone(), segment());
    let mut first = attach(&block, &segment, layout, true);
    let mut model = Model::new(PAGE, 40);
    let (offset, data) = model.restart();
    first.write(&NoDatabase, offset, &data).expect("restart");
    commit(&mut first, &mut model, rng);
    file.grow_and_die(4 << 20);
    let second = attach(&block, &segment, layout, false);
    (file, [first, second], model)
}

#[test]
fn inv04_a_length_that_a_dead_process_left_is_made_durable_before_a_commit_relies_on_it() {
    for layout in Layout::ALL {
        let mut rng = Rng(5);
        let (file, mut streams, mut model) = grown(layout, &mut rng);
        while streams[1].engine().used_bytes() < 700 << 10 {
            commit(&mut streams[1], &mut model, &mut rng);
        }
        assert_eq!(file.trusting_writes.load(Ordering::Relaxed), 0, "{layout:?}");
        assert!(contents(&mut streams[0]) == model.committed);
        // The log uses the file's length as it is, and does not extend the file again.
        assert_eq!(file.len(), 4 << 20);
    }
}

#[test]
fn inv07_a_log_that_starts_over_promises_no_length_that_a_power_loss_takes_back() {
    for layout in Layout::ALL {
        let mut rng = Rng(6);
        let (file, mut streams, mut model) = grown(layout, &mut rng);
        let before = model.committed.clone();
        let (offset, data) = model.restart();
        file.loses_power.store(true, Ordering::Relaxed);
        streams[1].write(&NoDatabase, offset, &data).expect("restart");
        let left = file.left.lock().expect("lock").take().expect("a power loss");
        assert!(left.len() < 4 << 20, "the size was not durable yet");
        let block: Arc<dyn Block> = Arc::new(RecordingBlock::from_bytes(left, BLOCK));
        let found = contents(&mut attach(&block, &segment(), layout, true));
        assert!(found == model.committed || found == before, "{layout:?}");
    }
}

#[test]
fn a_process_that_has_not_seen_the_log_start_over_says_what_it_knows_of_its_size() {
    for layout in Layout::ALL {
        let mut rng = Rng(7);
        let (_file, mut streams, mut model) = grown(layout, &mut rng);
        let used = streams[0].engine().fill().used_bytes;
        for _ in 0..2 {
            commit(&mut streams[1], &mut model, &mut rng);
            let (offset, data) = model.restart();
            streams[1].write(&NoDatabase, offset, &data).expect("restart");
        }
        assert_eq!(streams[0].engine().fill().used_bytes, used, "{layout:?}");
    }
}
