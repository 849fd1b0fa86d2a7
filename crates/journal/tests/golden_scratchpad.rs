//! The golden files of `scratchpad`'s format: what they mean is fixed, and so are the bytes that today's code writes.
//! `DURALITE_REGENERATE=1 cargo test -p duralite-journal --test golden_scratchpad` writes them anew, for a new version of the
//! format only. The zeros that they end with are not stored.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod common;
#[path = "common/scratchpad.rs"]
mod rig;

use std::path::{Path, PathBuf};

use common::{Model, Rng};
use duralite_crashmodel::RecordingNvm;
use duralite_journal::JournalError;
use duralite_journal::engine::Engine as _;
use duralite_journal::engine::prelude::*;
use duralite_journal::home::NoDatabase;
use duralite_logfmt::FormatError;
use duralite_logfmt::scratchpad::{PAGE_BYTES, SUPERBLOCK_BYTES, USED_AT};
use rig::{Rig, contents};

const REGION_BYTES: u64 = 128 << 10;
const TRANSACTIONS: u32 = 12;
const FILES: [&str; 2] = ["good.scratchpad", "good.scratchpad-region"];

/// Directories of the versions that are read, the one that is written last.
const VERSIONS: [&str; 2] = ["v1", NEWEST];
const NEWEST: &str = "v2";

/// A log with transactions of one page and of several, one that was never committed, and a rollback journal; and what the log
/// means. In the newest version rows come and go in its pages, and records may be changes.
fn good(version: &str) -> (Vec<u8>, Vec<u8>) {
    let has_changes = version == NEWEST;
    let rig = Rig::with(1, REGION_BYTES, false, has_changes);
    let mut log = rig.open(0).expect("open");
    log.engine_mut().set_clock(common::ticking_clock());
    let mut model = if has_changes { Model::of_leaves(512, 6) } else { Model::new(512, 30) };
    let mut rng = Rng(2016);
    let (offset, data) = model.restart();
    log.write(&NoDatabase, offset, &data).expect("a header");
    for number in 0..TRANSACTIONS {
        let writes = if number == 4 {
            model.append_all_pages(&mut rng)
        } else {
            let transaction = model.transaction(&mut rng, true);
            let writes = transaction.writes.clone();
            model.commit(transaction);
            writes
        };
        writes.iter().for_each(|(at, data)| log.write(&NoDatabase, *at, data).expect("write"));
    }
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    journal.write(&[0xd9; 5000], 0).expect("write");
    journal.sync().expect("sync");
    let open = model.transaction(&mut rng, false);
    let (_, first) = open.writes.split_last().expect("writes");
    first.iter().for_each(|(at, data)| log.write(&NoDatabase, *at, data).expect("write"));
    std::mem::forget(log);
    (rig.memory.to_bytes(), model.committed)
}

fn file(version: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/format").join(version).join(name)
}

fn stored(version: &str) -> Vec<u8> {
    let mut log = std::fs::read(file(version, FILES[0])).expect("a golden file");
    log.resize(SUPERBLOCK_BYTES as usize, 0);
    log.extend(std::fs::read(file(version, FILES[1])).expect("a golden file"));
    log.resize((SUPERBLOCK_BYTES + REGION_BYTES) as usize, 0);
    log
}

fn on(bytes: Vec<u8>) -> Rig {
    let capacity = bytes.len() as u64;
    Rig::new(1, REGION_BYTES, false).on(RecordingNvm::from_bytes(bytes, capacity))
}

#[test]
fn what_is_written_today_is_what_is_stored() {
    let (mut bytes, _) = good(NEWEST);
    bytes.resize((SUPERBLOCK_BYTES + REGION_BYTES) as usize, 0);
    if std::env::var_os("DURALITE_REGENERATE").is_some() {
        let (log, region) = bytes.split_at(SUPERBLOCK_BYTES as usize);
        for (name, bytes) in FILES.into_iter().zip([log, region]) {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            std::fs::write(file(NEWEST, name), &bytes[..end]).expect("write");
        }
    }
    assert!(stored(NEWEST) == bytes, "the format has changed");
}

/// A log of version 1 stays one.
#[test]
fn a_log_of_an_older_version_is_written_as_it_was() {
    let (mut bytes, _) = good("v1");
    bytes.resize((SUPERBLOCK_BYTES + REGION_BYTES) as usize, 0);
    assert!(stored("v1") == bytes);
}

#[test]
fn the_golden_logs_mean_what_they_meant() {
    VERSIONS.into_iter().for_each(means_what_it_meant);
}

fn means_what_it_meant(version: &str) {
    let (_, expected) = good(version);
    assert!(on(stored(version)).look(0).expect("sound") == expected);
    let rig = on(stored(version));
    let mut log = rig.open(0).expect("sound");
    assert!(contents(&mut log) == expected);
    assert_eq!(log.engine().transactions(), TRANSACTIONS);
    let journal = log.engine().rollback_journal().expect("a journal");
    let mut bytes = vec![0; 5001];
    assert_eq!(journal.read(&mut bytes, 0).expect("read"), 5000);
    assert!(bytes[..5000].iter().all(|byte| *byte == 0xd9));
}

/// Nothing that is committed goes unnoticed, whichever bit flips: it is refused, or it means the same.
#[test]
fn inv25_no_flipped_bit_in_what_is_committed_goes_unnoticed() {
    let (_, expected) = good(NEWEST);
    let bytes = stored(NEWEST);
    let mut refused = 0;
    for at in (0..bytes.len()).filter(|at| bytes[*at] != 0 || at % 61 == 0) {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        match on(bad).look(0) {
            Ok(found) => assert!(found == expected, "byte {at} of another content"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn damaged_golden_logs_are_refused() {
    let damaged = |at: u64| {
        let mut bytes = stored(NEWEST);
        bytes[at as usize] ^= 0x10;
        on(bytes).look(0).expect_err("damage")
    };
    assert!(matches!(damaged(8), JournalError::Format { source: FormatError::Version(_), .. }));
    assert!(matches!(damaged(0), JournalError::Format { source: FormatError::Magic, .. }));
    assert!(matches!(damaged(1090), JournalError::Format { .. }));
    // Another region, the head of a page, and the mark of a commit behind it.
    assert!(matches!(damaged(50), JournalError::Format { .. } | JournalError::NoRegion { .. }));
    let region = SUPERBLOCK_BYTES;
    assert!(matches!(damaged(region), JournalError::Format { .. }));
    assert!(matches!(damaged(region + PAGE_BYTES + 16), JournalError::Corrupt { .. }));
    assert!(matches!(damaged(region + PAGE_BYTES + 40), JournalError::Corrupt { .. }));
    // The count of pages is a hint.
    let mut bytes = stored(NEWEST);
    bytes[(region + USED_AT) as usize] ^= 0x10;
    assert!(on(bytes).look(0).is_ok());
}
