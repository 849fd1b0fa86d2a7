//! Tests logs that are truncated, zeroed, have flipped bits, or are of another version.

use std::fs;
use std::path::Path;

use duralite_testkit::{Engine, Fixture, Rng, code, one};
use rusqlite::ffi;

use super::{abandoned, read_elsewhere, refused};

/// Damages the log of an abandoned database, and expects that an open fails and changes nothing. With the
/// undamaged log everything must work as before.
fn expect_refusal(what: &str, damage: impl FnOnce(&Path, &mut Vec<u8>)) {
    expect_refusal_on(Engine::under_test(), what, damage);
}

/// Does the same as `expect_refusal`, on this engine. Returns the reason that the error gives.
fn expect_refusal_on(engine: Engine, what: &str, damage: impl FnOnce(&Path, &mut Vec<u8>)) -> String {
    let fixture = Fixture::on(engine);
    abandoned(&fixture, "d.db");
    let log = fixture.log();
    let good = fs::read(&log).unwrap();
    let mut bytes = good.clone();
    damage(&log, &mut bytes);
    assert!(bytes != good, "{what} changed nothing");
    fs::write(&log, &bytes).unwrap();
    let before = fixture.snapshot();
    let error = refused(&fixture.uri("d.db", ""));
    let told = duralite::last_error().unwrap();
    assert_eq!(code(&error), ffi::SQLITE_CANTOPEN, "{what}: {error}");
    assert!(fixture.snapshot() == before, "{what}: a refused open changed something");
    fs::write(&log, &good).unwrap();
    assert_eq!(one::<i64>(&fixture.open("d.db"), "SELECT sum(a) FROM t"), 6, "{what}");
    told
}

#[test]
fn inv12_truncated_logs_are_refused() {
    for length in [0, 1, 100, 1152, 1348, 4095, 4096, 8192] {
        if length >= 4096 && Engine::under_test() == Engine::SCRATCHPAD {
            // The log file of this engine has no more than 4096 bytes.
            continue;
        }
        expect_refusal(&format!("cut to {length}"), |_, bytes| bytes.truncate(length));
    }
    expect_refusal("cut by a byte", |_, bytes| bytes.truncate(bytes.len() - 1));
}

#[test]
fn inv12_zeroed_logs_are_refused() {
    expect_refusal("all zeros", |_, bytes| bytes.fill(0));
    expect_refusal("zeroed superblock", |_, bytes| bytes[..4096].fill(0));
    expect_refusal("zeroed head", |_, bytes| bytes[..1096].fill(0));
    let slots = match Engine::under_test() {
        // `ppl` fills its slots only when it merges pages, so here they are empty, and zeros in them are no
        // damage.
        engine if engine == Engine::PPL => return,
        engine if engine.is_in_memory() => 1216..1344,
        _ => 4096..12288,
    };
    expect_refusal("zeroed slots", |_, bytes| bytes[slots].fill(0));
}

#[test]
fn inv12_a_log_of_another_version_is_refused_by_name() {
    for engine in Engine::all() {
        for change in [-1, 1] {
            let mut versions = (0, 0);
            let told = expect_refusal_on(engine, "another version", |_, bytes| {
                versions = (bytes[8].wrapping_add_signed(change), bytes[8]);
                bytes[8] = versions.0;
            });
            let ((found, reads), name) = (versions, engine.name());
            let said = format!(
                "format {name}, version {found}; this build reads only version {reads} and has changed nothing"
            );
            assert!(told.contains(&said), "{told}");
        }
    }
}

#[test]
fn inv12_the_log_of_another_database_under_this_name_is_refused() {
    let other = Fixture::new();
    abandoned(&other, "other.db");
    let foreign = fs::read(other.log()).unwrap();
    expect_refusal("foreign content", |_, bytes| *bytes = foreign);
}

#[test]
fn inv12_a_flipped_bit_in_what_was_committed_is_refused() {
    // The first block follows the table of states. Its committed frames begin after its header.
    let fixture = Fixture::on(Engine::NVWAL);
    abandoned(&fixture, "d.db");
    let log = fs::read(fixture.log()).unwrap();
    let first_block = usize::try_from(u64::from_le_bytes(log[56..64].try_into().unwrap())).unwrap();
    let committed = log.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(committed > first_block + 100);
    let mut rng = Rng::new(1);
    let mut places = vec![0, 9, 13, 17, 33, 41, 49, 53, 57, 65, 70, 1089, 1153, 1157, 1345, 1350];
    places.extend(
        (0..30).map(|_| first_block + 16 + rng.below((committed - first_block - 16) as u64) as usize),
    );
    for at in places {
        let bit = rng.below(8);
        // Bytes between records hold no content. Duralite need not notice a flip there, but must lose
        // nothing.
        if at > first_block && log[at] == 0 {
            tolerate_or_refuse(at, bit);
        } else {
            expect_refusal_on(Engine::NVWAL, &format!("bit {bit} of byte {at}"), |_, bytes| {
                bytes[at] ^= 1 << bit
            });
        }
    }
}

/// Flips a bit of the log, and expects that the open either fails or shows all rows.
fn tolerate_or_refuse(at: usize, bit: u64) {
    let fixture = Fixture::on(Engine::NVWAL);
    abandoned(&fixture, "d.db");
    let log = fixture.log();
    let mut bytes = fs::read(&log).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(&log, &bytes).unwrap();
    let database = fs::read(fixture.path("d.db")).unwrap();
    let sum = duralite_testkit::connect(&fixture.uri("d.db", ""))
        .and_then(|conn| conn.query_row("SELECT sum(a) FROM t", [], |row| row.get::<_, i64>(0)));
    match sum {
        Ok(sum) => assert_eq!(sum, 6, "bit {bit} of byte {at}"),
        Err(_) => assert!(fs::read(fixture.path("d.db")).unwrap() == database, "bit {bit} of byte {at}"),
    }
}

#[test]
fn inv03_a_log_is_found_that_a_damaged_guard_does_not_name() {
    for at in [72, 80, 87, 88, 91] {
        let fixture = Fixture::new();
        abandoned(&fixture, "d.db");
        let mut bytes = fs::read(fixture.path("d.db")).unwrap();
        bytes[at] ^= 0x10;
        fs::write(fixture.path("d.db"), &bytes).unwrap();
        assert_eq!(read_elsewhere(&fixture.uri("d.db", "")), "6", "byte {at}");
        drop(fixture.open("d.db"));
        fixture.assert_plain("d.db");
    }
}

#[test]
fn inv12_a_damaged_guard_whose_log_is_gone_is_refused() {
    let fixture = Fixture::new();
    abandoned(&fixture, "d.db");
    let mut bytes = fs::read(fixture.path("d.db")).unwrap();
    bytes[80] ^= 0x10;
    fs::write(fixture.path("d.db"), &bytes).unwrap();
    fs::remove_file(fixture.log()).unwrap();
    let before = fixture.snapshot();
    assert_eq!(code(&refused(&fixture.uri("d.db", ""))), ffi::SQLITE_CANTOPEN);
    assert!(fixture.snapshot() == before, "a refused open changed something");
}

#[test]
fn inv03_a_first_page_that_a_checkpoint_has_torn_comes_from_the_log() {
    for (from, to) in [(0, 512), (0, 100), (10, 30), (512, 1024), (0, 4096)] {
        let fixture = Fixture::new();
        abandoned(&fixture, "d.db");
        let mut bytes = fs::read(fixture.path("d.db")).unwrap();
        // Overwrite only bytes that exist, so that the file keeps its size.
        bytes[from..to].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + 3) as u8);
        let good = fs::read(fixture.path("d.db")).unwrap();
        fs::write(fixture.path("d.db"), &bytes).unwrap();
        if Engine::under_test() == Engine::PPL && from < 100 {
            // If a merge had torn the first page in a crash, a slot of the log would have the page's image.
            // No slot has it, so something else damaged the page, and Duralite must report that.
            assert_eq!(code(&refused(&fixture.uri("d.db", ""))), ffi::SQLITE_CANTOPEN);
            fs::write(fixture.path("d.db"), &good).unwrap();
        }
        assert_eq!(read_elsewhere(&fixture.uri("d.db", "")), "6", "bytes {from} to {to}");
        drop(fixture.open("d.db"));
        fixture.assert_plain("d.db");
    }
}
