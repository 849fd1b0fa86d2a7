//! Golden files of the `nvwal` format. The tests check what each file means, and that the current code still writes the
//! same bytes. For a new version of the format, `DURALITE_REGENERATE=1 cargo test -p duralite-wal --test all golden::`
//! writes the files again.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Model, Rng, contents, directory, fresh_medium};
use duralite_crashmodel::RecordingNvm;
use duralite_format::nvwal::{self as nvwal_format, Base, RecordHeader};
use duralite_format::{FormatError, LogHead, LogId};
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engine::walk::WalkedTransaction;
use duralite_wal::engines::nvwal;
use duralite_wal::engines::nvwal::{Nvwal, open_read_only, walk};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{DatabaseIdentity, EngineOptions, Log, LogError, NvwalOptions, SyncMode};

/// The offset of block 0 in the golden logs, and the offset of their first transaction.
const BLOCKS: usize = 8192;
const FIRST_TRANSACTION: usize = BLOCKS + 16;
const ACTIVE: usize = 1152;
const SLOT_OF_GENERATION_2: usize = 1216;
/// The log's identity, and the identity of its database.
const ID: LogId = LogId([9; 16]);
const INODE: u64 = 1;
const BIRTH_NS: u64 = 2;
/// The error for `wrong-version.nvwal`.
const OTHER_VERSION: FormatError =
    FormatError::LogVersion { format: "nvwal", found: 2, reads: nvwal_format::VERSION };

fn options(sync: SyncMode) -> NvwalOptions {
    NvwalOptions { sync, block_bytes: 8192, limit_bytes: 64 << 10, ..NvwalOptions::default() }
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/format/nvwal-v5").join(name)
}

const TRANSACTIONS: u32 = 40;
/// The number of transactions before the torn one in `torn-checksum-late.nvwal`.
const TORN: u32 = 36;

/// Returns the bytes and the content of a log. Its transactions extend over several blocks, and SQLite spilled pages in
/// two of them.
fn good(sync: SyncMode) -> (Vec<u8>, Vec<u8>) {
    good_after(sync, TRANSACTIONS)
}

fn good_after(sync: SyncMode, transactions: u32) -> (Vec<u8>, Vec<u8>) {
    written(sync, transactions, Model::new(512, 20))
}

/// Like `good`, for pages into which the model inserts rows and from which it deletes rows, so that the log holds page
/// changes.
fn changes() -> (Vec<u8>, Vec<u8>) {
    written(SyncMode::Lazy, TRANSACTIONS, Model::of_leaves(512, 5))
}

fn written(sync: SyncMode, transactions: u32, mut model: Model) -> (Vec<u8>, Vec<u8>) {
    let options = options(sync);
    let nvm = Arc::new(fresh_medium(&options, 512));
    let mut stream = common::open(nvm.clone(), &options).expect("open");
    stream.engine_mut().set_clock(common::ticking_clock());
    let (offset, data) = model.restart();
    stream.write(&NoDatabase, offset, &data).expect("restart");
    let mut rng = Rng(2016);
    for i in 0..transactions {
        let transaction = model.transaction(&mut rng, i == 5 || i == 15);
        for (offset, data) in &transaction.writes {
            stream.write(&NoDatabase, *offset, data).expect("write");
        }
        model.commit(transaction);
    }
    (nvm.to_bytes(), model.committed)
}

/// Returns the undamaged log, followed by a transaction that was stored but never sealed.
fn torn() -> Vec<u8> {
    let (bytes, _) = good(SyncMode::Lazy);
    let options = options(SyncMode::Lazy);
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes, 1 << 20));
    let mut stream = common::open(nvm.clone(), &options).expect("open");
    let header = [0, 0, 0, 3, 0, 0, 0, 0].into_iter().chain([0; 16]).collect::<Vec<_>>();
    let end = stream.size().expect("size");
    stream.write(&NoDatabase, end, &header).expect("header");
    stream.write(&NoDatabase, end + 24, &[0xEE; 512]).expect("page");
    nvm.to_bytes()
}

/// Returns the offsets at which the transactions of a log begin.
fn transactions_of(bytes: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes.to_vec(), 1 << 20));
    walk(nvm, Path::new("offsets"), &NoDatabase, |t| offsets.push(t.offset as usize)).expect("walk");
    offsets
}

/// Returns the undamaged log after it was retired, because everything in it is in the database.
fn retired() -> Vec<u8> {
    let nvm = Arc::new(RecordingNvm::from_bytes(good(SyncMode::Lazy).0, 1 << 20));
    let mut engine = Nvwal::open(nvm.clone(), Path::new("retired"), options(SyncMode::Lazy)).expect("open");
    engine.set_clock(|| 1);
    engine.retire().expect("retire");
    nvm.to_bytes()
}

/// Returns an undamaged, empty log of another database.
fn foreign() -> Vec<u8> {
    let mut superblock = common::superblock(&options(SyncMode::Lazy), 512);
    let LogHead { log_id, db_inode, path, .. } = &mut superblock.head;
    (*log_id, *db_inode, *path) = (LogId([0xF0; 16]), 3, b"/other.db".to_vec());
    let nvm = RecordingNvm::new(0, superblock.file_bytes(superblock.limit_blocks));
    Nvwal::format(&nvm, &superblock).expect("format");
    nvm.to_bytes()
}

fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (mut bytes, _) = good(SyncMode::Lazy);
    change(&mut bytes);
    bytes
}

fn golden() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("good.nvwal", good(SyncMode::Lazy).0),
        ("good-checksum.nvwal", good(SyncMode::Checksum).0),
        ("changes.nvwal", changes().0),
        ("torn.nvwal", torn()),
        ("torn-checksum.nvwal", {
            let (mut bytes, _) = good(SyncMode::Checksum);
            bytes[FIRST_TRANSACTION + 40 + 30] ^= 1;
            bytes
        }),
        ("torn-checksum-late.nvwal", {
            let (mut bytes, _) = good(SyncMode::Checksum);
            let torn = transactions_of(&bytes)[TORN as usize];
            bytes[torn + 40 + 20] ^= 1;
            bytes
        }),
        ("retired.nvwal", retired()),
        ("wrong-checksum.nvwal", changed(|bytes| bytes[FIRST_TRANSACTION + 40 + 30] ^= 1)),
        ("wrong-mark.nvwal", changed(|bytes| bytes[FIRST_TRANSACTION + 5] ^= 1)),
        ("wrong-link.nvwal", changed(|bytes| bytes[BLOCKS] ^= 0x10)),
        ("wrong-slot.nvwal", changed(|bytes| bytes[SLOT_OF_GENERATION_2 + 9] ^= 1)),
        ("wrong-states.nvwal", changed(|bytes| bytes[4096..4104].fill(0xFF))),
        ("wrong-version.nvwal", changed(|bytes| bytes[8] = 2)),
        ("wrong-superblock.nvwal", changed(|bytes| bytes[16] ^= 0xFF)),
        ("wrong-active.nvwal", changed(|bytes| bytes[ACTIVE..ACTIVE + 8].fill(0))),
        ("foreign.nvwal", foreign()),
        ("zeros.nvwal", vec![0; 24576]),
        ("truncated.nvwal", changed(|bytes| bytes.truncate(20000))),
    ]
}

fn stored(name: &str) -> Vec<u8> {
    std::fs::read(file(name)).expect("golden file")
}

fn recovered(name: &str) -> Result<Vec<u8>, LogError> {
    let options = options(SyncMode::Lazy);
    let nvm = Arc::new(RecordingNvm::from_bytes(stored(name), 1 << 20));
    let mut engine = Nvwal::open(nvm, Path::new(name), options)?;
    engine.recover_heap()?;
    let mut stream = WalStream::new(engine);
    assert_eq!(find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?, None);
    Ok(contents(&mut stream))
}

fn corrupt_at(name: &str) -> u64 {
    match recovered(name) {
        Err(LogError::Corrupt { offset, .. }) => offset,
        other => panic!("{name}: {:?}", other.map(|bytes| bytes.len())),
    }
}

#[test]
fn todays_code_writes_the_golden_bytes() {
    for (name, bytes) in golden() {
        if std::env::var_os("DURALITE_REGENERATE").is_some() {
            std::fs::write(file(name), &bytes).expect("write");
        }
        assert!(stored(name) == bytes, "{name} differs from what is written today");
    }
}

#[test]
fn a_log_of_pages_in_which_rows_come_and_go_has_changes() {
    assert!(recovered("changes.nvwal").expect("changes") == changes().1);
    let found = changes_in(stored("changes.nvwal"));
    assert!(found > 20, "{found}");
}

/// Returns how many records of a log are page changes.
fn changes_in(bytes: Vec<u8>) -> usize {
    let mut places = Vec::new();
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes.clone(), 1 << 20));
    let every = |t: &WalkedTransaction| places.extend(t.records.iter().map(|record| record.offset as usize));
    walk(nvm, Path::new("changes"), &NoDatabase, every).expect("walk");
    let base =
        |at: usize| RecordHeader::decode(bytes[at..at + 16].try_into().expect("a header")).map(|r| r.base);
    places.into_iter().filter(|at| base(*at) == Ok(Base::Change)).count()
}

#[test]
fn good_files_hold_every_transaction() {
    let files = [("good.nvwal", SyncMode::Lazy), ("good-checksum.nvwal", SyncMode::Checksum)];
    for (name, sync) in files {
        assert!(recovered(name).expect(name) == good(sync).1, "{name}");
        let mut transactions = Vec::new();
        let nvm = Arc::new(RecordingNvm::from_bytes(stored(name), 1 << 20));
        let summary =
            walk(nvm, Path::new(name), &NoDatabase, |t| transactions.push(t.sequence)).expect("walk");
        assert_eq!((summary.transactions, summary.mismatch), (TRANSACTIONS, None));
        let blocks = open_read_only(&file(name)).expect(name).blocks_used();
        assert!((3..8).contains(&blocks), "{name} has {blocks} blocks");
        assert_eq!(transactions, (1..=TRANSACTIONS).collect::<Vec<_>>());
    }
}

#[test]
fn a_torn_transaction_is_not_there() {
    let recovered = |name| recovered(name).expect(name);
    assert!(recovered("torn.nvwal") == good(SyncMode::Lazy).1);
    assert_eq!(recovered("torn-checksum.nvwal").len(), 32);
    assert!(recovered("torn-checksum-late.nvwal") == good_after(SyncMode::Checksum, TORN).1);
}

#[test]
fn inv08_damage_in_what_was_committed_is_an_error_with_its_place() {
    assert_eq!(corrupt_at("wrong-checksum.nvwal"), FIRST_TRANSACTION as u64);
    assert_eq!(corrupt_at("wrong-mark.nvwal"), FIRST_TRANSACTION as u64);
    assert_eq!(corrupt_at("wrong-link.nvwal"), BLOCKS as u64);
    assert_eq!(corrupt_at("wrong-active.nvwal"), ACTIVE as u64);
    assert_eq!(corrupt_at("wrong-slot.nvwal"), SLOT_OF_GENERATION_2 as u64);
}

#[test]
fn block_states_follow_the_list() {
    assert!(recovered("wrong-states.nvwal").expect("states") == good(SyncMode::Lazy).1);
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let refusal = |name: &str| match open_read_only(&file(name)) {
        Err(LogError::Format { source, .. }) => source,
        other => panic!("{name}: {:?}", other.map(|log| log.transactions())),
    };
    assert_eq!(refusal("wrong-version.nvwal"), OTHER_VERSION);
    assert_eq!(refusal("zeros.nvwal"), FormatError::Magic);
    assert_eq!(refusal("wrong-superblock.nvwal"), FormatError::Damaged { what: "the log's superblock" });
    assert_eq!(refusal("truncated.nvwal"), FormatError::Short { what: "the log file" });
    assert_eq!(open_read_only(&file("good.nvwal")).expect("good").transactions(), TRANSACTIONS);
}

#[test]
fn a_retired_log_is_empty() {
    let log = open_read_only(&file("retired.nvwal")).expect("retired");
    assert!(log.is_retired() && log.transactions() == 0);
    assert!(recovered("retired.nvwal").expect("retired").is_empty());
}

/// Attaches a copy of a golden file to a database that names log `id`. The copy has the file name of log `named`.
fn attached(name: &str, named: LogId, id: LogId, inode: u64) -> Result<Vec<u8>, LogError> {
    let dir = tempfile::tempdir().expect("directory");
    let placement = directory(&nvwal::DESCRIPTOR, dir.path());
    let path = placement.dir.join(format!("model.db-duralite-{named}"));
    std::fs::write(&path, stored(name)).expect("copy");
    let owner = std::fs::metadata(&path).expect("metadata");
    let db = DatabaseIdentity {
        path: PathBuf::from("/model.db"),
        inode,
        birth_ns: BIRTH_NS,
        device: 0,
        mode: 0o644,
        uid: owner.uid(),
        gid: owner.gid(),
    };
    let whole = EngineOptions::default().with(options(SyncMode::Lazy));
    let mut log = Log::attach(&NoDatabase, &placement, &whole, &db, id, &|_| false)?;
    let mut bytes = vec![0; log.size()? as usize];
    log.read(&NoDatabase, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn inv03_a_log_is_attached_by_its_own_database_only() {
    assert!(attached("good.nvwal", ID, ID, INODE).expect("its own") == good(SyncMode::Lazy).1);
    let refused = |name, named, id, inode| attached(name, named, id, inode).expect_err(name);
    let other = LogId([8; 16]);
    assert!(matches!(refused("good.nvwal", ID, other, INODE), LogError::Missing { id, .. } if id == other));
    assert!(
        matches!(refused("good.nvwal", ID, ID, 7), LogError::Foreign { owner, .. } if owner == Path::new("/model.db"))
    );
    assert!(
        matches!(refused("foreign.nvwal", ID, ID, INODE), LogError::Foreign { owner, .. } if owner == Path::new("/other.db"))
    );
    let damaged = refused("wrong-checksum.nvwal", ID, ID, INODE);
    assert!(matches!(damaged, LogError::Corrupt { offset, .. } if offset == FIRST_TRANSACTION as u64));
    let other = refused("wrong-version.nvwal", ID, ID, INODE);
    assert!(matches!(other, LogError::Format { source: OTHER_VERSION, .. }));
}

/// In an ordered log, a flipped bit is an error or has no effect. It never makes the log shorter.
#[test]
fn inv08_no_flipped_bit_shortens_the_log() {
    let (good, expected) = good(SyncMode::Lazy);
    let mut rng = Rng(77);
    let read = |bytes: Vec<u8>| {
        let nvm = Arc::new(RecordingNvm::from_bytes(bytes, 1 << 20));
        let engine = Nvwal::open(nvm, Path::new("flip"), options(SyncMode::Lazy))?;
        let mut stream = WalStream::new(engine);
        assert_eq!(find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?, None);
        Ok::<_, LogError>(contents(&mut stream))
    };
    let mut refused = 0;
    for _ in 0..4000 {
        let (at, bit) = (rng.below(good.len() as u64) as usize, rng.below(8));
        let mut bytes = good.clone();
        bytes[at] ^= 1 << bit;
        match read(bytes) {
            Ok(content) => assert!(content == expected, "byte {at} bit {bit}: content differs"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 200, "only {refused} of 4000 flips were refused: the test misses the log");
    for length in (0..good.len()).step_by(509) {
        let mut bytes = good.clone();
        bytes.truncate(length);
        assert!(read(bytes).is_err(), "cut to {length} bytes");
    }
}
