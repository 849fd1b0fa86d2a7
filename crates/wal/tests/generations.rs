//! Tests that generations do not run out: at the numbers where fields overflow, logs continue, recover and retire
//! like any other log.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng, wait, write_all};
use duralite_crashmodel::{RecordingBlock, RecordingNvm};
use duralite_format::LogId;
use duralite_format::nvwal::{self, ACTIVE_OFFSET, NO_BLOCK, active_word};
use duralite_format::waldio::{self, Layout};
use duralite_medium::block::Block;
use duralite_medium::{LocalSegment, Nvm};
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::{Engine, LogFile as _};
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{HeapMode, NvwalOptions, SyncMode, WaldioOptions};

const PAGE: usize = 512;
const ID: LogId = LogId([9; 16]);
/// The numbers at which fields of the formats overflow.
const FULL: [u64; 6] = [1 << 24, 1 << 29, 1 << 30, 1 << 31, 1 << 32, 1 << 48];

fn contents<E: Engine>(stream: &mut WalStream<E>) -> Vec<u8> {
    let mut bytes = vec![0; stream.size().expect("size") as usize];
    assert_eq!(stream.read(&NoDatabase, 0, &mut bytes).expect("read"), bytes.len());
    assert_eq!(find_checksum_mismatch(stream.engine_mut(), &NoDatabase).expect("readable"), None);
    bytes
}

/// Starts the log over.
fn start_over<E: Engine>(stream: &mut WalStream<E>, model: &mut Model) {
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("the log starts over");
}

fn commit<E: Engine>(stream: &mut WalStream<E>, model: &mut Model, rng: &mut Rng) {
    let transaction = model.transaction(rng, rng.clone().chance(3));
    let written = write_all(&transaction.writes, |at, data| stream.write(&NoDatabase, at, data));
    model.commit(transaction);
    wait(written.expect("write"), stream.engine().durability_waiter()).expect("durable");
}

fn blocks_at(generation: u64, layout: Layout) -> Arc<RecordingBlock> {
    let superblock = common::waldio_superblock(layout, PAGE as u32, 1 << 20);
    let block = RecordingBlock::new(superblock.block_bytes);
    Waldio::format(&block, &superblock).expect("format");
    // The second of these slots replaces the slot with which the formatted log begins.
    for generation in [generation, generation - 1] {
        let (wal_header, retired, file_bytes) = (None, false, block.len());
        let slot =
            waldio::Slot { generation, wal_header, retired, file_bytes, position: generation, time_ms: 0 };
        block.write(waldio::slot_offset(generation), &slot.encode(ID)).expect("slot");
    }
    // Make all of it durable, by copying it to a new device.
    Arc::new(RecordingBlock::from_bytes(block.to_bytes(), superblock.block_bytes))
}

fn attach_blocks(block: Arc<dyn Block>) -> WalStream<Waldio> {
    let mut first = [0; 4096];
    block.read(0, &mut first).expect("superblock");
    let superblock = waldio::Superblock::decode(&first).expect("superblock");
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    let options = WaldioOptions { layout: superblock.layout, ..WaldioOptions::default() };
    let log = Waldio::attach(block, superblock, Path::new("model"), &options, segment, 0, true);
    WalStream::new(log.expect("attach"))
}

fn memory_at(generation: u64, options: &NvwalOptions) -> Arc<RecordingNvm> {
    let nvm = common::fresh_medium(options, PAGE as u32);
    let slot = nvwal::Slot { generation, first_block: NO_BLOCK, wal_header: [0; 32], retired: false };
    nvm.store(nvwal::slot_offset(generation), &slot.encode(ID));
    nvm.store_u64(ACTIVE_OFFSET, active_word(generation));
    Arc::new(RecordingNvm::from_bytes(nvm.to_bytes(), nvm.capacity()))
}

fn memory_options(sync: SyncMode) -> NvwalOptions {
    NvwalOptions {
        sync,
        heap: HeapMode::User,
        block_bytes: 8192,
        limit_bytes: 1 << 20,
        cache_bytes: 0,
        ..NvwalOptions::default()
    }
}

#[test]
fn blocks_pass_every_number_at_which_a_field_is_full() {
    for layout in Layout::ALL {
        for full in FULL {
            let block = blocks_at(full - 3, layout);
            let mut stream = attach_blocks(block.clone());
            let (mut model, mut rng) = (Model::new(PAGE, 20), Rng(full + 1));
            for _ in 0..7 {
                start_over(&mut stream, &mut model);
                for _ in 0..3 {
                    commit(&mut stream, &mut model, &mut rng);
                }
                assert!(contents(&mut stream) == model.committed, "{layout:?} at {full}");
                let left = block.crash_at_random(rng.next());
                let mut again = attach_blocks(Arc::new(RecordingBlock::from_bytes(left, 512)));
                assert!(contents(&mut again) == model.committed, "{layout:?} at {full}, recovered");
            }
            assert_eq!(stream.engine().generation(), full + 4);
            stream.engine_mut().retire().expect("retire");
            let mut again = attach_blocks(block);
            assert!(again.engine().is_retired() && contents(&mut again).is_empty());
        }
    }
}

#[test]
fn memory_passes_every_number_at_which_a_field_is_full() {
    for sync in [SyncMode::Lazy, SyncMode::Checksum] {
        for full in FULL {
            let options = memory_options(sync);
            let nvm = memory_at(full - 3, &options);
            let mut stream = common::open(nvm.clone(), &options).expect("open");
            let (mut model, mut rng) = (Model::new(PAGE, 20), Rng(full + 2));
            for _ in 0..7 {
                start_over(&mut stream, &mut model);
                for _ in 0..6 {
                    commit(&mut stream, &mut model, &mut rng);
                }
                assert!(contents(&mut stream) == model.committed, "{sync:?} at {full}");
                let crashed: Arc<dyn Nvm> = Arc::new(nvm.crash(rng.next()));
                let mut again = common::open(crashed, &options).expect("recovery");
                assert!(contents(&mut again) == model.committed, "{sync:?} at {full}, recovered");
            }
            assert_eq!(stream.engine().generation(), full + 4);
            stream.engine_mut().retire().expect("retire");
            let again = Nvwal::open(nvm, Path::new("model"), options).expect("open");
            assert!(again.is_retired() && again.transactions() == 0);
        }
    }
}
