//! Golden files of the `waldio` format. The tests check what each file means, and that the current code still writes
//! the same bytes. For a new version of the format, `DURALITE_REGENERATE=1 cargo test -p duralite-wal --test all
//! golden_waldio::` writes the files again. The stored files lack the zeros at the end of a log.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Model, Rng};
use duralite_crashmodel::RecordingBlock;
use duralite_format::FormatError;
use duralite_format::record::{Base, RecordHeader};
use duralite_format::waldio::{Layout, Superblock};
use duralite_medium::LocalSegment;
use duralite_medium::block::Block as _;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio, walk};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{LogError, WaldioOptions};

const BLOCK: u32 = 512;
const TRANSACTIONS: u32 = 30;
/// The size of each log in bytes.
const FILE_BYTES: usize = 512 << 10;

fn superblock(layout: Layout) -> Superblock {
    common::waldio_superblock(layout, 512, 1 << 20)
}

/// Makes a log of two generations. The second generation has groups of one and of three transactions. Returns the log's
/// bytes and its content.
fn good(layout: Layout) -> (Vec<u8>, Vec<u8>) {
    written(layout, Model::new(512, 20))
}

/// Like `good`, for pages into which the model inserts rows and from which it deletes rows, so that the log holds page
/// changes.
fn changes() -> (Vec<u8>, Vec<u8>) {
    written(Layout::Delta, Model::of_leaves(512, 5))
}

fn written(layout: Layout, mut model: Model) -> (Vec<u8>, Vec<u8>) {
    let superblock = superblock(layout);
    let block = Arc::new(RecordingBlock::new(BLOCK));
    block.preallocate(FILE_BYTES as u64).expect("preallocate");
    Waldio::format(block.as_ref(), &superblock).expect("format");
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    let options = WaldioOptions { layout, ..WaldioOptions::default() };
    let engine = Waldio::attach(block.clone(), superblock, Path::new("good"), &options, segment, 0, true);
    let mut stream = WalStream::new(engine.expect("attach"));
    stream.engine_mut().set_clock(common::ticking_clock());
    let mut rng = Rng(2015);
    for i in 0..TRANSACTIONS + 2 {
        if i == 0 || i == 2 {
            let (offset, data) = model.restart();
            stream.write(&NoDatabase, offset, &data).expect("restart");
        }
        let transaction = model.transaction(&mut rng, i == 7);
        let mut sealed = None;
        for (offset, data) in &transaction.writes {
            sealed = stream.write(&NoDatabase, *offset, data).expect("write").or(sealed);
        }
        model.commit(transaction);
        let ticket = sealed.and_then(|sealed| sealed.ticket).expect("a ticket");
        if i < 8 || i % 3 == 1 {
            stream.engine().durability_waiter().expect("a waiter").wait(ticket).expect("wait");
        }
    }
    stream.engine_mut().force().expect("force");
    (block.to_bytes(), model.committed)
}

const CHANGES: &str = "changes-delta.waldio";

fn file(layout: Layout) -> PathBuf {
    named(&format!("good-{}.waldio", layout.as_str()))
}

fn named(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/format/waldio-v4").join(name)
}

fn stored(layout: Layout) -> Vec<u8> {
    read(&file(layout))
}

fn read(file: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(file).expect("a golden file");
    bytes.resize(FILE_BYTES, 0);
    bytes
}

fn recovered(bytes: Vec<u8>, layout: Layout) -> Result<Vec<u8>, LogError> {
    let found = Superblock::decode(&bytes)
        .map_err(|source| LogError::Format { log: PathBuf::from("golden"), source })?;
    assert_eq!(found, superblock(layout));
    let block = Arc::new(RecordingBlock::from_bytes(bytes, BLOCK));
    let mut stream = WalStream::new(Waldio::open_read_only(block, found, Path::new("golden"))?);
    assert_eq!(find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?, None);
    let mut content = vec![0; stream.size()? as usize];
    stream.read(&NoDatabase, 0, &mut content)?;
    Ok(content)
}

#[test]
fn what_is_written_today_is_what_is_stored() {
    let logs = Layout::ALL.map(|layout| (file(layout), good(layout).0));
    for (file, bytes) in logs.into_iter().chain([(named(CHANGES), changes().0)]) {
        assert_eq!(bytes.len(), FILE_BYTES);
        if std::env::var_os("DURALITE_REGENERATE").is_some() {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            std::fs::write(&file, &bytes[..end]).expect("write");
        }
        assert!(read(&file) == bytes, "{}: the format has changed", file.display());
    }
}

#[test]
fn a_log_of_pages_in_which_rows_come_and_go_has_changes() {
    let (bytes, expected) = changes();
    assert!(recovered(read(&named(CHANGES)), Layout::Delta).expect("sound") == expected);
    let found = changes_in(bytes);
    assert!(found > 20, "{found}");
}

/// Returns how many records of a log are page changes.
fn changes_in(bytes: Vec<u8>) -> usize {
    let found = Superblock::decode(&bytes).expect("a superblock");
    let mut places = Vec::new();
    let block = Arc::new(RecordingBlock::from_bytes(bytes.clone(), BLOCK));
    walk(block, found, Path::new("changes"), &NoDatabase, &mut |transaction| {
        places.extend(transaction.records.iter().map(|record| record.offset as usize));
    })
    .expect("walk");
    let base =
        |at: usize| RecordHeader::decode(bytes[at..at + 16].try_into().expect("a header")).map(|r| r.base);
    places.into_iter().filter(|at| base(*at) == Ok(Base::Change)).count()
}

#[test]
fn golden_logs_mean_what_they_meant() {
    for layout in Layout::ALL {
        let (_, expected) = good(layout);
        assert!(recovered(stored(layout), layout).expect("sound") == expected, "{layout:?}");
        let block = Arc::new(RecordingBlock::from_bytes(stored(layout), BLOCK));
        let mut sequences = Vec::new();
        let found = Superblock::decode(&stored(layout)).expect("a superblock");
        let summary = walk(block, found, Path::new("golden"), &NoDatabase, &mut |transaction| {
            sequences.push(transaction.sequence);
        });
        let summary = summary.expect("walk");
        assert_eq!((summary.generation, summary.transactions), (3, TRANSACTIONS));
        assert_eq!(sequences, (1..=TRANSACTIONS).collect::<Vec<_>>());
    }
}

#[test]
fn damaged_golden_logs_are_refused() {
    for layout in Layout::ALL {
        let damaged = |at: usize| {
            let mut bytes = stored(layout);
            bytes[at] ^= 0x10;
            recovered(bytes, layout)
        };
        assert!(matches!(damaged(8), Err(LogError::Format { source: FormatError::LogVersion { .. }, .. })));
        assert!(matches!(damaged(0), Err(LogError::Format { source: FormatError::Magic, .. })));
        assert!(matches!(damaged(1090), Err(LogError::Format { .. })));
        // Damage the slot of generation 3, and that generation's first group.
        assert!(matches!(damaged(8192 + 20), Err(LogError::Corrupt { .. })));
        assert!(matches!(damaged(12288 + 100), Err(LogError::Corrupt { offset: 12288, .. })));
        // Damage to the slot of generation 2 has no effect, because this generation is no longer in force.
        assert!(damaged(4096 + 20).is_ok());
    }
}
