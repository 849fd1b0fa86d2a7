//! The golden files of the `scratchpad` format. The tests check what the files mean, and that the current code still
//! writes the same bytes. For a new version of the format, `DURALITE_REGENERATE=1 cargo test -p duralite-wal --test all
//! golden_scratchpad::` writes the files again. The stored files lack the zeros at their ends.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::{common, rig};

use std::path::{Path, PathBuf};

use common::{Model, Rng};
use duralite_crashmodel::RecordingNvm;
use duralite_format::FormatError;
use duralite_format::scratchpad::{PAGE_BYTES, SUPERBLOCK_BYTES, USED_AT};
use duralite_wal::LogError;
use duralite_wal::engine::Engine as _;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::prelude::*;
use rig::{Rig, contents};

const REGION_BYTES: u64 = 128 << 10;
const TRANSACTIONS: u32 = 12;
const FILES: [&str; 2] = ["good.scratchpad", "good.scratchpad-region"];

/// Makes a log with transactions of one page and of several pages, a transaction that was never committed, and a
/// rollback journal. The model inserts rows into the database's pages and deletes rows, so some records are page
/// changes. Returns the bytes and the log's content.
fn good() -> (Vec<u8>, Vec<u8>) {
    let rig = Rig::new(1, REGION_BYTES, false);
    let mut log = rig.open(0).expect("open");
    log.engine_mut().set_clock(common::ticking_clock());
    let mut model = Model::of_leaves(512, 6);
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
        writes.iter().for_each(|(at, data)| {
            log.write(&NoDatabase, *at, data).expect("write");
        });
    }
    let journal = log.engine().rollback_journal().expect("a journal");
    journal.create().expect("create");
    journal.write(&[0xd9; 5000], 0).expect("write");
    journal.sync().expect("sync");
    let open = model.transaction(&mut rng, false);
    let (_, first) = open.writes.split_last().expect("writes");
    first.iter().for_each(|(at, data)| {
        log.write(&NoDatabase, *at, data).expect("write");
    });
    std::mem::forget(log);
    (rig.memory.to_bytes(), model.committed)
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/format/scratchpad-v2").join(name)
}

fn stored() -> Vec<u8> {
    let mut log = std::fs::read(file(FILES[0])).expect("a golden file");
    log.resize(SUPERBLOCK_BYTES as usize, 0);
    log.extend(std::fs::read(file(FILES[1])).expect("a golden file"));
    log.resize((SUPERBLOCK_BYTES + REGION_BYTES) as usize, 0);
    log
}

fn on(bytes: Vec<u8>) -> Rig {
    let capacity = bytes.len() as u64;
    Rig::new(1, REGION_BYTES, false).on(RecordingNvm::from_bytes(bytes, capacity))
}

#[test]
fn what_is_written_today_is_what_is_stored() {
    let (mut bytes, _) = good();
    bytes.resize((SUPERBLOCK_BYTES + REGION_BYTES) as usize, 0);
    if std::env::var_os("DURALITE_REGENERATE").is_some() {
        let (log, region) = bytes.split_at(SUPERBLOCK_BYTES as usize);
        for (name, bytes) in FILES.into_iter().zip([log, region]) {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            std::fs::write(file(name), &bytes[..end]).expect("write");
        }
    }
    assert!(stored() == bytes, "the format has changed");
}

#[test]
fn the_golden_log_means_what_it_meant() {
    let (_, expected) = good();
    assert!(on(stored()).look(0).expect("sound") == expected);
    let rig = on(stored());
    let mut log = rig.open(0).expect("sound");
    assert!(contents(&mut log) == expected);
    assert_eq!(log.engine().transactions(), TRANSACTIONS);
    let journal = log.engine().rollback_journal().expect("a journal");
    let mut bytes = vec![0; 5001];
    assert_eq!(journal.read(&mut bytes, 0).expect("read"), 5000);
    assert!(bytes[..5000].iter().all(|byte| *byte == 0xd9));
}

/// No flipped bit in committed bytes goes unnoticed: recovery refuses the log, or its content is unchanged.
#[test]
fn inv25_no_flipped_bit_in_what_is_committed_goes_unnoticed() {
    let (_, expected) = good();
    let bytes = stored();
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
        let mut bytes = stored();
        bytes[at as usize] ^= 0x10;
        on(bytes).look(0).expect_err("damage")
    };
    assert!(matches!(damaged(8), LogError::Format { source: FormatError::LogVersion { .. }, .. }));
    assert!(matches!(damaged(0), LogError::Format { source: FormatError::Magic, .. }));
    assert!(matches!(damaged(1090), LogError::Format { .. }));
    // Damage the id of the region, the header of a page, and the link to the last entry of the page's transaction.
    assert!(matches!(damaged(50), LogError::Format { .. } | LogError::NoRegion { .. }));
    let region = SUPERBLOCK_BYTES;
    assert!(matches!(damaged(region), LogError::Format { .. }));
    assert!(matches!(damaged(region + PAGE_BYTES + 16), LogError::Corrupt { .. }));
    assert!(matches!(damaged(region + PAGE_BYTES + 40), LogError::Corrupt { .. }));
    // Damage to the count of pages has no effect, because the count is a hint.
    let mut bytes = stored();
    bytes[(region + USED_AT) as usize] ^= 0x10;
    assert!(on(bytes).look(0).is_ok());
}
