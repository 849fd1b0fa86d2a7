//! `duralite salvage` of logs that are damaged in the middle. The tests know which transactions each log held.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use duralite_testkit::{Actor, Engine, Fixture, stock};
use serde_json::Value;

const PAGE: usize = 4096;
/// The number of transactions. The first transaction makes the tables.
const TRANSACTIONS: usize = 20;

/// Returns the statements of a transaction. Every transaction changes some pages that the others change too, and adds
/// one page to the database.
fn sql(number: usize) -> String {
    if number == 1 {
        return "BEGIN; CREATE TABLE t(id INTEGER PRIMARY KEY, body); CREATE TABLE n(a); INSERT INTO n VALUES(0); COMMIT".into();
    }
    let body = format!("{number:04}").repeat(800);
    format!("BEGIN; INSERT INTO t VALUES({number}, '{body}'); UPDATE n SET a = {number}; COMMIT")
}

fn ran(actor: &mut Actor, number: usize) {
    for statement in sql(number).split(';') {
        assert_eq!(actor.run(statement), "", "transaction {number}: {statement}");
    }
}

/// Returns a writer that has committed nothing yet, and that never checkpoints its log.
fn writer(fixture: &Fixture) -> Actor {
    let mut actor = Actor::sql(&fixture.uri("s.db", ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("PRAGMA wal_autocheckpoint=0"), "0");
    actor
}

/// Returns the bytes of stock SQLite's database after each transaction.
fn images(fixture: &Fixture) -> Vec<Vec<u8>> {
    let path = fixture.path("stock.db");
    let conn = stock(&path);
    conn.execute_batch("PRAGMA journal_mode=WAL").unwrap();
    let mut images = vec![Vec::new()];
    for number in 1..=TRANSACTIONS {
        conn.execute_batch(&sql(number)).unwrap();
        conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        images.push(std::fs::read(&path).unwrap());
    }
    drop(conn);
    std::fs::remove_file(path).unwrap();
    images
}

struct Ran {
    code: i32,
    said: String,
}

fn duralite(fixture: &Fixture, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.args(arguments).arg("--log-dir").arg(fixture.log_dir());
    let output = command.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    Ran { code: output.status.code().unwrap(), said }
}

fn json(fixture: &Fixture, arguments: &[&str]) -> (Value, i32) {
    let Ran { code, said } = duralite(fixture, arguments);
    (serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")), code)
}

/// Returns the transactions of a sound log, with their offsets.
fn transactions(fixture: &Fixture) -> Vec<Value> {
    let path = fixture.path("s.db");
    let (told, code) = json(fixture, &["verify", "--json", "--frames", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{told}");
    told["transactions"].as_array().unwrap().clone()
}

/// Returns the file that holds the transactions of the log.
fn medium(fixture: &Fixture) -> PathBuf {
    if fixture.engine() != Engine::SCRATCHPAD {
        return fixture.log();
    }
    let mut entries = std::fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let is_region =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("duralite-region-");
    entries.find(is_region).unwrap()
}

fn change(path: &Path, at: u64, len: usize, change: impl Fn(u8) -> u8) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = change(*byte));
    file.write_all_at(&bytes, at).unwrap();
}

/// Runs the salvage, and checks that it has changed nothing in place.
fn salvage(fixture: &Fixture, out: &Path) -> (Value, i32) {
    let before = fixture.snapshot();
    let database = fixture.path("s.db");
    let saved = json(fixture, &["salvage", "--json", database.to_str().unwrap(), out.to_str().unwrap()]);
    assert!(fixture.snapshot() == before, "the salvage changed something in place: {:?}", saved.0);
    saved
}

fn assert_same(out: &Path, wanted: &[u8], what: &str) {
    let bytes = std::fs::read(out).unwrap();
    let differing = bytes.iter().zip(wanted).position(|(one, other)| one != other);
    assert!(
        bytes == wanted,
        "{what}: {} bytes, {} wanted, first other byte {differing:?}",
        bytes.len(),
        wanted.len()
    );
}

/// Checks the pages that the salvage has saved from transactions after the damage. Returns how many pages it has saved.
fn check_later(dir: &Path, images: &[Vec<u8>], first: usize) -> usize {
    let list = std::fs::read_to_string(dir.join("transactions.txt")).unwrap();
    let (mut number, mut file, mut whole) = (first - 1, PathBuf::new(), 0);
    for line in list.lines() {
        let Some(page) = line.strip_prefix("  page ") else {
            number += 1;
            assert!(line.starts_with("transaction"), "{line}");
            file = dir.join(line.rsplit_once(": ").unwrap().1);
            continue;
        };
        let Some((page, at)) = page.split_once(" at ") else { continue };
        let (page, at): (usize, usize) = (page.parse().unwrap(), at.parse().unwrap());
        let bytes = std::fs::read(&file).unwrap();
        let (found, wanted) = (&bytes[at..at + PAGE], &images[number][(page - 1) * PAGE..page * PAGE]);
        assert!(found == wanted, "page {page} of transaction {number}");
        whole += 1;
    }
    assert_eq!(number, TRANSACTIONS, "the last one that is listed: {list}");
    whole
}

/// Damages one of many transactions in the given way, and checks that the salvage saves the others.
fn damaged_in_the_middle(engine: Engine, settings: &str, damage: impl Fn(&Fixture, &Value)) {
    for damaged in [2, 11, TRANSACTIONS - 1] {
        let fixture = Fixture::on(engine);
        let images = images(&fixture);
        let mut actor = Actor::sql(&fixture.uri("s.db", settings));
        assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
        assert_eq!(actor.run("PRAGMA wal_autocheckpoint=0"), "0");
        (1..=TRANSACTIONS).for_each(|number| ran(&mut actor, number));
        actor.kill();
        let found = transactions(&fixture);
        assert_eq!(found.len(), TRANSACTIONS);
        damage(&fixture, &found[damaged - 1]);
        let what = format!("{engine:?}{settings}, transaction {damaged}");

        let path = fixture.path("s.db");
        let verified = duralite(&fixture, &["verify", path.to_str().unwrap()]);
        assert_eq!(verified.code, 1, "{what}: {}", verified.said);
        assert!(verified.said.contains("duralite salvage"), "{what}: {}", verified.said);
        let listed = verified.said.lines().filter(|line| line.starts_with("transaction ")).count();
        assert_eq!(listed, damaged - 1, "{what}: {}", verified.said);
        let (told, code) = json(&fixture, &["info", "--json", path.to_str().unwrap()]);
        assert_eq!((code, &told["engine"]), (0, &engine.name().into()), "{what}: {told}");
        let is_damaged = told["state"].as_str().unwrap().starts_with("damaged: `duralite salvage ");
        // For a log of `ppl`, `info` does not read the records, only where they are. So it may miss the damage.
        assert!(is_damaged || engine == Engine::PPL, "{what}: {told}");
        if is_damaged {
            assert_eq!(told["before_damage"], damaged - 1, "{what}: {told}");
            assert!(told["behind_damage"].as_u64().is_some(), "{what}: {told}");
        }
        let refused = duralite(&fixture, &["checkpoint", path.to_str().unwrap()]);
        assert!(refused.code == 1 && refused.said.contains("duralite salvage"), "{what}: {}", refused.said);

        let places = tempfile::tempdir().unwrap();
        let out = places.path().join("saved?.db");
        let (told, code) = salvage(&fixture, &out);
        assert_eq!((code, &told["integrity_check"]), (0, &"ok".into()), "{what}: {told}");
        assert_eq!(told["transactions"], damaged - 1, "{what}: {told}");
        assert!(told["damage"]["from"].as_u64().is_some(), "{what}: {told}");
        assert_same(&out, &images[damaged - 1], &what);
        let names: Vec<_> = std::fs::read_dir(places.path()).unwrap().collect();
        let apart = places.path().join("saved?.db-later");
        assert_eq!(names.len(), 2, "{what}: {names:?}");
        if engine == Engine::PPL {
            assert!(check_later(&apart, &images, damaged) > 0, "{what}");
        } else if settings.is_empty() {
            assert_eq!(told["missing"], 1, "{what}: {told}");
            assert_eq!(told["later"], TRANSACTIONS - damaged, "{what}: {told}");
            assert!(check_later(&apart, &images, damaged + 1) > 0, "{what}");
        } else {
            assert_eq!(told["later"], TRANSACTIONS - damaged, "{what}: {told}");
            assert!(check_later(&apart, &images, damaged + 1) > 0, "{what}");
        }
        let again = duralite(&fixture, &["salvage", path.to_str().unwrap(), out.to_str().unwrap()]);
        assert_eq!(again.code, 1, "{what}: {}", again.said);
        assert_same(&out, &images[damaged - 1], &what);
    }
}

fn at(transaction: &Value) -> u64 {
    transaction["frames"][0]["offset"].as_u64().unwrap()
}

#[test]
fn a_flipped_byte_in_a_transaction_costs_that_transaction() {
    for engine in Engine::all() {
        damaged_in_the_middle(engine, "", |fixture, transaction| {
            change(&medium(fixture), at(transaction) + 16, 1, |byte| byte ^ 0x40);
        });
    }
}

/// Unused space holds zeros, so zeros usually mean the end of the log. But if a whole transaction follows the zeros,
/// they are damage.
#[test]
fn zeros_over_the_word_that_a_transaction_begins_with_do_not_end_the_log() {
    for engine in [Engine::NVWAL, Engine::PPL] {
        damaged_in_the_middle(engine, "", |fixture, transaction| {
            let of_transaction = transaction["offset"].as_u64().unwrap();
            let word = if engine == Engine::PPL { at(transaction) } else { of_transaction };
            change(&fixture.log(), word, 8, |_| 0);
        });
    }
}

/// The same holds for the pages of a region: if the pages with a transaction's records are overwritten with zeros, and
/// a whole transaction follows, the zeros are damage and not the end of the log.
#[test]
fn zeros_over_the_pages_of_a_transaction_in_a_region_do_not_end_the_log() {
    damaged_in_the_middle(Engine::SCRATCHPAD, "", |fixture, transaction| {
        for frame in transaction["frames"].as_array().unwrap() {
            let page = frame["offset"].as_u64().unwrap() / PAGE as u64 * PAGE as u64;
            change(&medium(fixture), page, PAGE, |_| 0);
        }
    });
}

#[test]
fn of_a_log_that_cannot_be_read_the_database_file_is_saved_and_that_is_said() {
    for engine in Engine::all() {
        for length in [1 << 20, 0] {
            let what = format!("{engine:?}, {length} bytes");
            let fixture = Fixture::on(engine);
            let images = images(&fixture);
            let mut actor = writer(&fixture);
            (1..=7).for_each(|number| ran(&mut actor, number));
            assert_eq!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
            (8..=9).for_each(|number| ran(&mut actor, number));
            actor.kill();
            // The database file of `ppl` lacks pages that stay in its log.
            let home = std::fs::read(fixture.path("s.db")).unwrap();
            let log = std::fs::read(fixture.log()).unwrap();
            std::fs::write(fixture.log(), vec![0x5a; log.len().min(length)]).unwrap();
            let path = fixture.path("s.db");
            let told = duralite(&fixture, &["info", path.to_str().unwrap()]);
            assert!(
                told.code == 0 && told.said.contains("damaged: `duralite salvage "),
                "{what}: {}",
                told.said
            );
            let places = tempfile::tempdir().unwrap();
            let out = places.path().join("saved.db");
            let (told, code) = salvage(&fixture, &out);
            assert_eq!((code, &told["contents"]), (3, &"database file alone".into()), "{what}: {told}");
            assert_eq!(told["transactions"], Value::Null, "{what}: {told}");
            let saved = std::fs::read(&out).unwrap();
            assert!(saved[100..] == home[100..], "{what}: not the database file");
            if engine != Engine::PPL {
                assert_eq!(told["integrity_check"], "ok", "{what}: {told}");
                assert_same(&out, &images[7], &what);
            }
            std::fs::remove_file(&out).unwrap();
            let told = duralite(&fixture, &["salvage", path.to_str().unwrap(), out.to_str().unwrap()]);
            assert!(
                told.code == 3 && told.said.contains("nothing can be read of the log"),
                "{what}: {}",
                told.said
            );
        }
    }
}

#[test]
fn a_block_of_zeros_in_a_log_of_blocks_costs_the_transaction_that_was_in_it() {
    for settings in ["", "&layout=embedded"] {
        damaged_in_the_middle(Engine::WALDIO, settings, |fixture, transaction| {
            change(&medium(fixture), at(transaction) / 512 * 512, 512, |_| 0);
        });
    }
}

/// A transaction in the log is damaged, but the last checkpoint has already written later transactions to the database
/// file.
#[test]
fn where_a_checkpoint_went_beyond_the_damage_the_file_alone_may_be_what_is_whole() {
    for engine in [Engine::WALDIO, Engine::NVWAL, Engine::SCRATCHPAD] {
        let fixture = Fixture::on(engine);
        let images = images(&fixture);
        let mut actor = writer(&fixture);
        (1..=12).for_each(|number| ran(&mut actor, number));
        let mut reader = Actor::sql(&fixture.uri("s.db", ""));
        assert_eq!(reader.run("BEGIN"), "");
        assert_eq!(reader.run("SELECT count(*) FROM t"), "11");
        // The log cannot start again from its beginning, because a reader is using it.
        ran(&mut actor, 13);
        let done = actor.run("PRAGMA wal_checkpoint(PASSIVE)");
        assert!(done.starts_with('0'), "{done}");
        (14..=TRANSACTIONS).for_each(|number| ran(&mut actor, number));
        actor.kill();
        reader.kill();
        // `verify` reports no offsets while processes use the log, so both processes must be gone.
        let found = transactions(&fixture);
        assert_eq!(found.len(), TRANSACTIONS, "{engine:?}");
        change(&medium(&fixture), at(&found[5]) + 16, 1, |byte| byte ^ 0x40);
        let places = tempfile::tempdir().unwrap();
        let out = places.path().join("saved.db");
        let (told, code) = salvage(&fixture, &out);
        assert_eq!((code, &told["integrity_check"]), (0, &"ok".into()), "{engine:?}: {told}");
        assert_eq!(told["checkpointed_beyond"], 12, "{engine:?}: {told}");
        assert_eq!(told["transactions"], 5, "{engine:?}: {told}");
        match told["contents"].as_str().unwrap() {
            "database file alone" => assert_same(&out, &images[12], &format!("{engine:?}")),
            _ => assert!(told["newer_pages"].as_array().is_some_and(|pages| !pages.is_empty()), "{told}"),
        }
    }
}

/// After a flush that the device has ignored, the log may have the groups of a generation but not the slot that
/// describes the generation. The salvage still saves all transactions.
#[test]
fn a_generation_without_its_slot_is_saved_whole() {
    for both in [false, true] {
        let fixture = Fixture::on(Engine::WALDIO);
        let images = images(&fixture);
        let mut actor = writer(&fixture);
        (1..=7).for_each(|number| ran(&mut actor, number));
        assert_eq!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
        (8..=TRANSACTIONS).for_each(|number| ran(&mut actor, number));
        actor.kill();
        let count = transactions(&fixture).len();
        let path = fixture.path("s.db");
        let told = duralite(&fixture, &["info", "--json", path.to_str().unwrap()]).said;
        let told: Value = serde_json::from_str(&told).unwrap();
        let generation = told["generation"].as_u64().unwrap();
        for slot in [generation, generation + 1] {
            if both || slot == generation {
                change(&fixture.log(), 4096 * (1 + slot % 2), 4096, |_| 0);
            }
        }
        let verified = duralite(&fixture, &["verify", path.to_str().unwrap()]);
        assert_eq!(verified.code, 1, "{}", verified.said);
        let places = tempfile::tempdir().unwrap();
        let out = places.path().join("saved.db");
        let (told, code) = salvage(&fixture, &out);
        assert_eq!((code, &told["integrity_check"]), (0, &"ok".into()), "{told}");
        assert_eq!((&told["transactions"], &told["later"]), (&count.into(), &0.into()), "{told}");
        assert_same(&out, &images[TRANSACTIONS], "all of it");
    }
}

#[test]
fn a_sound_log_is_saved_whole_and_a_plain_database_has_nothing_to_save() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let images = images(&fixture);
        let mut actor = writer(&fixture);
        (1..=TRANSACTIONS).for_each(|number| ran(&mut actor, number));
        actor.kill();
        let places = tempfile::tempdir().unwrap();
        let out = places.path().join("saved.db");
        let (told, code) = salvage(&fixture, &out);
        assert_eq!((code, &told["integrity_check"]), (0, &"ok".into()), "{told}");
        assert_eq!((&told["damage"], &told["later"]), (&Value::Null, &0.into()), "{told}");
        assert_same(&out, &images[TRANSACTIONS], &format!("{engine:?}"));
        let nothing = duralite(&fixture, &["salvage", out.to_str().unwrap(), "other.db"]);
        assert!(
            nothing.code == 1 && nothing.said.contains("no log to save anything from"),
            "{}",
            nothing.said
        );
    }
}
