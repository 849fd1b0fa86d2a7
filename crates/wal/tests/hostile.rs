//! Tests with logs that claim to be larger than their content. The cost of inspecting or recovering such a log must be
//! proportional to its content, not to its claim. Only reads fill the buffers for a log's content, so a bound on the
//! bytes read is also a bound on the memory.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use common::{Model, Rng};
use duralite_crashmodel::{RecordingBlock, RecordingNvm};
use duralite_format::nvwal::{
    GROWN_OFFSET, Order, Superblock as MemorySuperblock, TX_HEADER_BYTES, TxHeader as NvwalTxHeader,
    checked_word, encode_link, encode_mark,
};
use duralite_format::record::{Base, RecordHeader};
use duralite_format::sqlite_wal::make_wal_header;
use duralite_format::waldio::{
    DATA_OFFSET, GROUP_HEADER_BYTES, GroupHeader, Layout, Slot, Superblock, TX_TAKES_GROUP, TxHeader,
    body_hash, slot_offset,
};
use duralite_format::{LogId, diff};
use duralite_medium::block::{Access, Block, BlockOptions, FileBlock};
use duralite_medium::{FileNvm, LocalSegment, MapOptions, Nvm};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::{Engine, LogWriter as _};
use duralite_wal::engines::nvwal::{self, Nvwal};
use duralite_wal::engines::waldio::{self, SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{ErrorKind, LogError, NvwalOptions, WaldioOptions};

const PAGE: usize = 4096;
const ID: LogId = LogId([9; 16]);
/// The size in bytes that the files claim to have.
const CLAIMED: u64 = 1 << 40;
/// The most bytes that inspecting these files may read.
const BOUND: u64 = 16 << 20;
/// A transaction with one record. The record consists only of its header.
const ONE_RECORD: TxHeader = TxHeader {
    tx_bytes: 48,
    sequence: 1,
    first_frame: 1,
    last_frame: 1,
    db_pages: 1,
    records: 1,
    wal_checksum: [0; 2],
};

fn file(dir: &Path, bytes: &[u8], length: u64) -> Option<File> {
    let path = dir.join("log");
    std::fs::write(&path, bytes).expect("log");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("log");
    if file.set_len(length).is_err() {
        eprintln!("skipped: no sparse file of {length} bytes here");
        return None;
    }
    Some(file)
}

fn contents<E: Engine>(stream: &mut WalStream<E>) -> Vec<u8> {
    let mut bytes = vec![0; stream.size().expect("size") as usize];
    assert_eq!(stream.read(&NoDatabase, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

fn commit<E: Engine>(stream: &mut WalStream<E>, model: &mut Model, rng: &mut Rng) {
    let transaction = model.transaction(rng, false);
    transaction.writes.iter().for_each(|(at, data)| {
        stream.write(&NoDatabase, *at, data).expect("write");
    });
    model.commit(transaction);
}

fn superblock(layout: Layout) -> Superblock {
    common::waldio_superblock(layout, PAGE as u32, u64::MAX)
}

fn attach(block: Arc<dyn Block>, layout: Layout) -> Result<WalStream<Waldio>, LogError> {
    let options = WaldioOptions { layout, ..WaldioOptions::default() };
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    Waldio::attach(block, superblock(layout), Path::new("log"), &options, segment, 0, true)
        .map(WalStream::new)
}

/// Makes a log with some commits. Returns its bytes, its content, and its end.
fn good(layout: Layout) -> (Vec<u8>, Vec<u8>, u64) {
    let block = Arc::new(RecordingBlock::new(512));
    Waldio::format(block.as_ref(), &superblock(layout)).expect("format");
    let mut stream = attach(block.clone(), layout).expect("attach");
    let (mut model, mut rng) = (Model::new(PAGE, 20), Rng(3));
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("restart");
    (0..5).for_each(|_| commit(&mut stream, &mut model, &mut rng));
    stream.engine_mut().force().expect("force");
    (block.to_bytes(), model.committed, stream.engine().used_bytes())
}

fn blocks(file: File, dir: &Path, read_only: bool) -> Arc<FileBlock> {
    let options = BlockOptions { block_bytes: Some(512), access: Access::Buffered, read_only };
    Arc::new(FileBlock::open(file, &dir.join("log"), &options).expect("blocks"))
}

#[test]
fn inv12_a_sparse_log_of_blocks_is_verified_and_recovered_for_what_it_holds() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().expect("directory");
        let (bytes, expected, _) = good(layout);
        let Some(file) = file(dir.path(), &bytes, CLAIMED) else { return };
        // Put something far after the log's end, where a reader has to look.
        file.write_all_at(&[0x5A; 4096], CLAIMED / 2).expect("junk");
        let block = blocks(file.try_clone().expect("file"), dir.path(), true);
        let mut count = 0;
        let summary =
            waldio::walk(block.clone(), superblock(layout), Path::new("log"), &NoDatabase, &mut |_| {
                count += 1
            });
        assert_eq!((summary.expect("walk").transactions, count), (5, 5));
        let block = [block, blocks(file, dir.path(), false)];
        let mut stream = attach(block[1].clone(), layout).expect("attach");
        assert!(contents(&mut stream) == expected);
        for block in block {
            let read = block.counters().read_bytes;
            assert!(read < BOUND, "{layout:?}: {read} bytes were read");
        }
    }
}

#[test]
fn inv12_a_group_that_claims_most_of_a_sparse_log_is_not_believed() {
    for takes_group in [false, true] {
        let dir = tempfile::tempdir().expect("directory");
        let (mut bytes, expected, end) = good(Layout::Delta);
        let at = end.next_multiple_of(512);
        let group = GroupHeader {
            first_sequence: 6,
            transactions: 1,
            bytes: CLAIMED - at,
            ordered: true,
            body_hash: 77,
            time_ms: 0,
        };
        let tx = TxHeader {
            tx_bytes: if takes_group { TX_TAKES_GROUP } else { 1 << 31 },
            sequence: 6,
            first_frame: 1,
            last_frame: u32::MAX - 1,
            db_pages: 1,
            records: u32::MAX,
            wal_checksum: [0; 2],
        };
        let place = at as usize;
        bytes[place..place + 64].copy_from_slice(&group.encode(ID, 2, at));
        bytes[place + 64..place + 96].copy_from_slice(&tx.encode());
        let Some(file) = file(dir.path(), &bytes, CLAIMED) else { return };
        let block = blocks(file, dir.path(), false);
        let mut stream = attach(block.clone(), Layout::Delta).expect("a torn group ends the log");
        assert!(contents(&mut stream) == expected);
        let read = block.counters().read_bytes;
        assert!(read < BOUND, "{read} bytes were read");
    }
}

/// Makes a log with one group that contains only this transaction.
fn forged(tx: TxHeader, records: &[u8]) -> Arc<RecordingBlock> {
    let block = RecordingBlock::new(512);
    Waldio::format(&block, &superblock(Layout::Delta)).expect("format");
    let body = [&tx.encode()[..], records].concat();
    let group = GroupHeader {
        first_sequence: 1,
        transactions: 1,
        bytes: GROUP_HEADER_BYTES + body.len() as u64,
        ordered: true,
        body_hash: body_hash(ID, 2, DATA_OFFSET, &body),
        time_ms: 0,
    };
    let mut bytes = group.encode(ID, 2, DATA_OFFSET).to_vec();
    bytes.extend_from_slice(&body);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    block.preallocate((DATA_OFFSET + bytes.len() as u64).max(block.len())).expect("room");
    block.write(DATA_OFFSET, &bytes).expect("group");
    let wal_header = Some(make_wal_header(PAGE as u32, 1, [1, 2]));
    let slot = Slot { generation: 2, wal_header, retired: false, file_bytes: 0, position: 0, time_ms: 0 };
    block.write(slot_offset(2), &slot.encode(ID)).expect("slot");
    Arc::new(block)
}

#[test]
fn inv12_sizes_that_only_a_header_knows_are_checked_against_what_is_there() {
    let record = RecordHeader { record_bytes: 16, frame: 1, page_number: 1, ranges: 0, base: Base::Zeros };
    let tx = ONE_RECORD;
    assert!(attach(forged(tx, &record.encode()), Layout::Delta).is_ok());
    let alone = TxHeader { tx_bytes: TX_TAKES_GROUP, ..tx };
    assert!(attach(forged(alone, &record.encode()), Layout::Delta).is_ok());
    let long = RecordHeader { record_bytes: u32::MAX, ..record };
    let wide = RecordHeader { record_bytes: 16 + 3 * PAGE as u32, ..record };
    let two = [record.encode(), record.encode()].concat();
    for (tx, records) in [
        (TxHeader { tx_bytes: 1 << 31, ..tx }, record.encode().to_vec()),
        (TxHeader { records: u32::MAX, ..tx }, record.encode().to_vec()),
        (TxHeader { records: u32::MAX, ..alone }, record.encode().to_vec()),
        (tx, long.encode().to_vec()),
        (alone, long.encode().to_vec()),
        (alone, [&wide.encode()[..], &[0; 3 * PAGE]].concat()),
        // There are bytes after the last record.
        (alone, two),
    ] {
        let refused = attach(forged(tx, &records), Layout::Delta).map(|_| ()).expect_err("damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{tx:?}");
    }
}

#[test]
fn inv12_a_chain_of_differences_without_end_is_refused() {
    let count = 20_000;
    let records: Vec<u8> = (1..=count)
        .flat_map(|frame| {
            let base = Base::Previous;
            RecordHeader { record_bytes: 16, frame, page_number: 1, ranges: 0, base }.encode()
        })
        .collect();
    let tx = TxHeader { tx_bytes: TX_TAKES_GROUP, last_frame: count, records: count, ..ONE_RECORD };
    let refused = attach(forged(tx, &records), Layout::Delta).map(|_| ()).expect_err("damaged");
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
}

/// Makes a log with page 1 as a whole image, and then a change of this page.
fn changed(page: &[u8], payload: &[u8]) -> Arc<RecordingBlock> {
    let mut ranges = Vec::new();
    let whole = RecordHeader {
        record_bytes: 16 + diff::RANGE_HEADER_BYTES as u32 + page.len() as u32,
        frame: 1,
        page_number: 1,
        ranges: diff::encode_whole(page, &mut ranges),
        base: Base::Zeros,
    };
    let record_bytes = 16 + payload.len() as u32;
    let change = RecordHeader { record_bytes, frame: 2, page_number: 1, ranges: 0, base: Base::Change };
    let mut records = [&whole.encode()[..], &ranges].concat();
    records.resize(records.len().next_multiple_of(8), 0);
    records.extend([&change.encode()[..], payload].concat());
    records.resize(records.len().next_multiple_of(8), 0);
    let tx = TxHeader { tx_bytes: 32 + records.len() as u32, last_frame: 2, records: 2, ..ONE_RECORD };
    forged(tx, &records)
}

/// Reads the page of the log [`changed`].
fn read_changed(page: &[u8], payload: &[u8]) -> Result<Vec<u8>, LogError> {
    let mut stream = attach(changed(page, payload), Layout::Delta)?;
    let mut bytes = vec![0; PAGE];
    stream.read(&NoDatabase, 32 + 24 + PAGE as u64 + 24, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn inv12_changes_of_pages_that_leave_the_page_are_refused() {
    let page: Vec<u8> = (0..PAGE).map(|at| (at % 251) as u8).collect();
    let mut moved = page.clone();
    moved[10..15].copy_from_slice(&page[100..105]);
    moved[20] = 7;
    assert!(read_changed(&page, &[2, 1, 10, 100, 4, 20, 0, 7]).expect("sound") == moved);
    let far = [142, 128]; // 127 + 15 * 256 + 128 = 4095
    for payload in [
        // Moves from and to offsets beyond the end; a payload that ends too early; and fewer moves than announced.
        &[&[2, 1, 0][..], &far, &[1]].concat()[..],
        &[&[2, 1][..], &far, &[0, 1]].concat(),
        &[2, 1, 0, 9],
        &[2, 9, 0, 9, 4],
        &[2],
        // Ranges beyond the end, or cut short.
        &[&[3][..], &far, &[1, 0, 0]].concat(),
        &[3, 0, 9, 1],
        // Cells of a page that is not a leaf; an unknown kind; and an empty payload.
        &[1, 1, 3, 0, 0],
        &[9, 1],
        &[],
    ] {
        let refused = read_changed(&page, payload).expect_err("damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{payload:?}");
    }
    // A number of ranges that a change cannot have, and a base that does not exist.
    let header = RecordHeader { record_bytes: 17, frame: 1, page_number: 1, ranges: 0, base: Base::Change };
    for (at, byte) in [(12, 1), (14, 3), (15, 1)] {
        let mut bytes = header.encode();
        bytes[at] = byte;
        assert!(RecordHeader::decode(&bytes).is_err(), "byte {at}");
    }
}

/// A change without an earlier record of its page would apply to zeros, and zeros are not a leaf.
#[test]
fn inv12_a_change_of_nothing_is_refused() {
    let payload = [1, 1, 3, 0, 0, 0, 0, 0];
    let change = RecordHeader { record_bytes: 21, frame: 1, page_number: 1, ranges: 0, base: Base::Change };
    let tx = TxHeader { tx_bytes: 32 + 24, ..ONE_RECORD };
    let log = forged(tx, &[&change.encode()[..], &payload].concat());
    let read = attach(log, Layout::Delta).and_then(|mut stream| stream.read(&NoDatabase, 56, &mut [0; PAGE]));
    assert_eq!(read.expect_err("damaged").kind(), ErrorKind::Corrupt);
}

fn memory_options() -> NvwalOptions {
    NvwalOptions { block_bytes: 8192, limit_bytes: CLAIMED, cache_bytes: 0, ..NvwalOptions::default() }
}

/// Returns a log in memory with some commits, its content, and its superblock.
fn good_memory() -> (Vec<u8>, Vec<u8>, MemorySuperblock) {
    let options = memory_options();
    let superblock = common::superblock(&options, PAGE as u32);
    let nvm = Arc::new(RecordingNvm::new(0, superblock.file_bytes(superblock.limit_blocks)));
    Nvwal::format(nvm.as_ref(), &superblock).expect("format");
    let mut stream = common::open(nvm.clone(), &options).expect("open");
    let (mut model, mut rng) = (Model::new(PAGE, 20), Rng(4));
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("restart");
    (0..20).for_each(|_| commit(&mut stream, &mut model, &mut rng));
    (nvm.to_bytes(), model.committed, superblock)
}

fn map(file: File, superblock: &MemorySuperblock) -> Arc<FileNvm> {
    let capacity = superblock.file_bytes(superblock.limit_blocks);
    let options = MapOptions { capacity, ..MapOptions::default() };
    Arc::new(FileNvm::map(file, Path::new("log"), &options).expect("map"))
}

#[test]
fn inv12_a_sparse_log_in_memory_is_verified_and_recovered_for_what_it_holds() {
    let dir = tempfile::tempdir().expect("directory");
    let (mut bytes, expected, superblock) = good_memory();
    let grown = superblock.limit_blocks;
    assert!(grown >= 1 << 24, "a table worth skipping");
    bytes[GROWN_OFFSET as usize..][..8].copy_from_slice(&checked_word(grown).to_le_bytes());
    // Make the block table a hole too: recovery rebuilds the states from the list.
    let head = bytes[..4096].to_vec();
    let body = bytes.split_off(superblock.blocks_offset as usize);
    let Some(file) = file(dir.path(), &head, superblock.file_bytes(grown)) else { return };
    file.write_all_at(&body, superblock.blocks_offset).expect("blocks");
    let nvm = map(file, &superblock);
    let summary = nvwal::walk(nvm.clone(), Path::new("log"), &NoDatabase, |_| {}).expect("walk");
    assert_eq!(summary.transactions, 20);
    let mut stream = common::open(nvm.clone(), &memory_options()).expect("open");
    assert!(contents(&mut stream) == expected);
    let read = nvm.counters().read_bytes;
    assert!(read < BOUND, "{read} bytes were read");
}

#[test]
fn inv12_a_list_of_blocks_that_comes_back_to_itself_is_refused_at_once() {
    for back_to in 0..2 {
        let dir = tempfile::tempdir().expect("directory");
        let (mut bytes, _, superblock) = good_memory();
        let mut end = 0;
        let nvm = Arc::new(RecordingNvm::from_bytes(bytes.clone(), 1 << 30));
        let last = |t: &duralite_wal::engine::walk::WalkedTransaction| {
            let record = t.records.last().expect("a record");
            end = (record.offset + u64::from(record.record_bytes)).next_multiple_of(8);
        };
        nvwal::walk(nvm, Path::new("log"), &NoDatabase, last).expect("walk");
        let block = (end - superblock.blocks_offset) / 8192;
        assert!(block >= 2, "a list of several blocks");
        // Forge a transaction at the tail that has no record in its block and continues in an earlier block.
        let tx = NvwalTxHeader {
            hash: 0,
            elapsed_ms: 0,
            last_frame: 1,
            db_pages: 1,
            records: 5,
            wal_checksum: [0; 2],
        };
        let mark = encode_mark(Order::Ordered, 2, 21);
        let at = end as usize;
        assert!(superblock.block_offset(block as u32 + 1) - end > u64::from(TX_HEADER_BYTES) + 16);
        bytes[at..at + 40].copy_from_slice(&tx.encode(mark));
        let link = superblock.block_offset(block as u32) as usize;
        let target = if back_to == 0 { block as u32 } else { 0 };
        bytes[link..link + 8].copy_from_slice(&encode_link(2, target).to_le_bytes());
        let grown = superblock.limit_blocks;
        bytes[GROWN_OFFSET as usize..][..8].copy_from_slice(&checked_word(grown).to_le_bytes());
        let Some(file) = file(dir.path(), &bytes, superblock.file_bytes(grown)) else { return };
        let nvm = map(file, &superblock);
        let refused = common::open(nvm.clone(), &memory_options()).map(|_| ()).expect_err("damaged");
        assert!(matches!(refused, LogError::Corrupt { offset, .. } if offset == link as u64), "{refused}");
        let read = nvm.counters().read_bytes;
        assert!(read < BOUND, "{read} bytes were read");
    }
}
