//! Kills processes at any moment. Every acknowledged transaction must survive (invariant 7).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::fs;
use std::path::Path;
use std::time::Duration;

use duralite_testkit::{Actor, Fixture, Ledger, Rng, integrity, run};
use rusqlite::Connection;

/// The number of writers of one database that the test kills, one after another.
const CHAIN: u64 = 25;

/// The way in which the writers of one database work.
struct Plan {
    settings: &'static str,
    page_bytes: u32,
    /// The number of rows that a writer commits before it closes and reopens the database; 0 if it never
    /// does.
    reopen_every: u32,
    /// Whether this process stays connected while the writer dies.
    survivor: bool,
}

fn acknowledged(path: &Path) -> i64 {
    let bytes = fs::read(path).unwrap_or_default();
    let whole = bytes.len() / 8 * 8;
    bytes[..whole].rchunks(8).next().map_or(0, |last| i64::from_le_bytes(last.try_into().unwrap()))
}

/// Starts a writer and kills it. Some writers die while they are still opening the database.
fn kill_one(uri: &str, acknowledgements: &Path, plan: &Plan, rng: &mut Rng) {
    let every = plan.reopen_every.to_string();
    let mut writer = Actor::start(&["write", uri, acknowledgements.to_str().unwrap(), &every]);
    if rng.chance(4) {
        std::thread::sleep(Duration::from_micros(rng.below(25_000)));
    } else {
        assert_eq!(writer.line(), "ready");
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
    }
    writer.kill();
}

fn open(fixture: &Fixture, plan: &Plan) -> Connection {
    let conn = fixture.open_with("k.db", plan.settings);
    conn.busy_timeout(Duration::from_secs(10)).unwrap();
    conn
}

/// Checks that every acknowledged transaction is there, and at most one more. Returns the number of
/// transactions.
fn check(conn: &Connection, acknowledged: i64) -> i64 {
    let rows = Ledger::prepare(conn).unwrap().verify(conn);
    assert!(
        rows == acknowledged || rows == acknowledged + 1,
        "{acknowledged} transactions were acknowledged, and {rows} are there"
    );
    rows
}

fn chain(seed: u64, plan: &Plan) {
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let fixture = Fixture::new();
    let conn = duralite_testkit::connect(&fixture.uri("k.db", plan.settings)).unwrap();
    run(&conn, &format!("PRAGMA page_size={}", plan.page_bytes)).unwrap();
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    Ledger::prepare(&conn).unwrap();
    let mut survivor = Some(conn).filter(|_| plan.survivor);
    let acknowledgements = fixture.path("acknowledged");
    let uri = fixture.uri("k.db", plan.settings);
    for kill in 1..=CHAIN {
        kill_one(&uri, &acknowledgements, plan, &mut rng);
        let known = acknowledged(&acknowledgements);
        if let Some(conn) = &survivor {
            conn.busy_timeout(Duration::from_secs(10)).unwrap();
            let rows = check(conn, known);
            // The surviving process also writes, although the killed writer may have died in the middle of
            // its work.
            Ledger::prepare(conn).unwrap().append(conn, rows + 1).unwrap();
            fs::write(&acknowledgements, (rows + 1).to_le_bytes()).unwrap();
        } else if rng.chance(3) {
            // This process does not check in this round. So the next writer must recover the database itself,
            // and a later check follows.
            continue;
        } else {
            let conn = open(&fixture, plan);
            let rows = check(&conn, known);
            fs::write(&acknowledgements, rows.to_le_bytes()).unwrap();
            if kill % 5 == 0 {
                integrity(&conn);
            }
        }
    }
    let conn = survivor.take().unwrap_or_else(|| open(&fixture, plan));
    let rows = check(&conn, acknowledged(&acknowledgements));
    eprintln!("{CHAIN} kills, {rows} transactions");
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("k.db");
    assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
}

fn chains(first_seed: u64, count: u64, plan: &Plan) {
    if let Ok(seed) = std::env::var("DURALITE_SEED") {
        return chain(seed.parse().unwrap(), plan);
    }
    for seed in first_seed..first_seed + count {
        chain(seed, plan);
    }
}

#[test]
fn inv07_kills_of_a_writer_that_checkpoints() {
    chains(100, 3, &Plan { settings: "", page_bytes: 4096, reopen_every: 0, survivor: false });
}

#[test]
fn inv07_kills_of_a_writer_that_closes_and_opens() {
    chains(200, 3, &Plan { settings: "", page_bytes: 4096, reopen_every: 3, survivor: false });
}

#[test]
fn inv07_kills_of_a_writer_beside_a_survivor() {
    chains(300, 2, &Plan { settings: "", page_bytes: 4096, reopen_every: 0, survivor: true });
    chains(302, 1, &Plan { settings: "", page_bytes: 4096, reopen_every: 4, survivor: true });
}

#[test]
fn inv07_kills_in_other_modes() {
    chains(400, 1, &Plan { settings: "sync=eager", page_bytes: 1024, reopen_every: 0, survivor: false });
    chains(401, 1, &Plan { settings: "sync=checksum", page_bytes: 512, reopen_every: 7, survivor: false });
    let settings = "heap=system&diff=off";
    chains(402, 1, &Plan { settings, page_bytes: 65536, reopen_every: 0, survivor: true });
}
