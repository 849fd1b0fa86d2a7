//! Follows the log of a database that other processes write through SQLite (invariant 16).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duralite_testkit::{Actor, Fixture, Rng, VERSIONS, for_seeds, one, stock};
use duralite_wal::engine::media::MediaSet;
use duralite_wal::{EngineOptions, ErrorKind, Follower, LogPlacement, engines};

const NAME: &str = "followed.db";
/// The bytes of the database header that name the log.
const LOG_ID: std::ops::Range<usize> = 72..92;

fn logs(fixture: &Fixture) -> LogPlacement {
    let engine = engines::by_name(fixture.engine().name()).unwrap();
    LogPlacement::at(engine, fixture.log_dir(), &MediaSet::default())
}

fn follow(fixture: &Fixture) -> Follower {
    Follower::open(&logs(fixture), &EngineOptions::default(), &fixture.path(NAME)).unwrap()
}

fn follower_process(fixture: &Fixture) -> Actor {
    let (log_dir, database) = (fixture.log_dir().to_str().unwrap(), fixture.path(NAME));
    let mut actor = Actor::start(&["follow", fixture.engine().name(), log_dir, database.to_str().unwrap()]);
    assert_eq!(actor.line(), "pinned");
    actor
}

/// Starts a process with a connection that runs a checkpoint whenever the log has `checkpoint_pages` pages.
fn connection(fixture: &Fixture, settings: &str, checkpoint_pages: u32) -> Actor {
    let mut actor = Actor::sql(&fixture.uri(NAME, settings));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("PRAGMA busy_timeout=30000"), "30000");
    actor.run(&format!("PRAGMA wal_autocheckpoint={checkpoint_pages}"));
    actor
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The database as the test rebuilds it from what a follower reads.
struct Rebuilt {
    bytes: Vec<u8>,
    position: u64,
    transactions: u64,
    newest_ms: u64,
}

impl Rebuilt {
    /// Copies the database file. The copy becomes consistent once the test has applied everything in the log
    /// to it.
    fn copy(fixture: &Fixture, follower: &mut Follower) -> Self {
        let position = follower.oldest().unwrap();
        assert!(follower.pin(position).unwrap());
        let mut bytes = std::fs::read(fixture.path(NAME)).unwrap();
        bytes[VERSIONS].fill(2);
        bytes[LOG_ID].fill(0);
        Self { bytes, position, transactions: 0, newest_ms: 0 }
    }

    /// Applies the next transaction, if there is one.
    fn take(&mut self, follower: &mut Follower) -> bool {
        let Some(transaction) = follower.read_since(self.position).unwrap() else { return false };
        let page_bytes = follower.page_bytes() as usize;
        assert!(transaction.position > self.position);
        self.bytes.resize(transaction.db_pages as usize * page_bytes, 0);
        let mut page = vec![0; page_bytes];
        for (index, number) in transaction.pages.iter().enumerate() {
            follower.read_page(&transaction, index, &mut page).unwrap();
            let at = (*number as usize - 1) * page_bytes;
            self.bytes[at..at + page_bytes].copy_from_slice(&page);
        }
        assert!(transaction.time_ms >= self.newest_ms && transaction.time_ms <= now_ms() + 1000);
        self.newest_ms = transaction.time_ms;
        self.position = transaction.position;
        self.transactions += 1;
        true
    }
}

/// Returns a random statement of a busy application.
fn statement(rng: &mut Rng) -> String {
    let (id, length) = (rng.below(400), rng.below(3000));
    match rng.below(40) {
        0..20 => format!("INSERT INTO t(payload) VALUES(randomblob({length}))"),
        20..30 => format!("UPDATE t SET payload = randomblob({length}) WHERE id = {id}"),
        30..36 => format!("DELETE FROM t WHERE id = {id}"),
        36 => format!("DELETE FROM t WHERE id % 7 = {}", id % 7),
        37 => "PRAGMA wal_checkpoint(RESTART)".to_owned(),
        38 => "PRAGMA wal_checkpoint(TRUNCATE)".to_owned(),
        _ => "PRAGMA incremental_vacuum(20)".to_owned(),
    }
}

/// Writes through one process at a time. Now and then replaces it by another process.
fn write(fixture: &Fixture, seed: u64, statements: u64) {
    let mut rng = Rng::new(seed);
    let mut actor = connection(fixture, "", 30);
    for count in 1..=statements {
        if count % 150 == 0 {
            // The new process connects before the old one ends or is killed.
            let next = connection(fixture, "", 30);
            let old = std::mem::replace(&mut actor, next);
            if rng.chance(2) { old.kill() } else { old.finish() }
        }
        let answer = actor.run(&statement(&mut rng));
        assert!(!answer.starts_with("error"), "{answer}");
    }
    actor.finish();
}

/// Follows the log until the follower has seen everything that was in the log when `done` was set. Returns
/// how many generations the follower has seen.
fn follow_until(done: &AtomicBool, follower: &mut Follower, rebuilt: &mut Rebuilt) -> u64 {
    let (mut oldest, mut generations) = (follower.oldest().unwrap(), 0);
    loop {
        let is_last = done.load(Ordering::SeqCst);
        follower.wait(rebuilt.position, Duration::from_millis(100)).unwrap();
        while rebuilt.take(follower) {
            if rebuilt.transactions.is_multiple_of(8) {
                assert!(follower.pin(rebuilt.position).unwrap(), "a pin that holds moves");
            }
        }
        assert!(follower.pin(rebuilt.position).unwrap(), "a pin that holds moves");
        let now = follower.oldest().unwrap();
        generations += u64::from(now != oldest);
        oldest = now;
        if is_last {
            return generations;
        }
    }
}

/// Lets two processes write the log while this one follows it.
fn a_busy_log(seed: u64, statements: u64) {
    let fixture = Fixture::new();
    let mut first = Actor::sql(&fixture.uri(NAME, ""));
    first.run("PRAGMA auto_vacuum=INCREMENTAL");
    assert_eq!(first.run("PRAGMA journal_mode=WAL"), "wal");
    first.run("PRAGMA busy_timeout=30000");
    let started = now_ms();
    assert_eq!(first.run("CREATE TABLE t(id INTEGER PRIMARY KEY, payload BLOB)"), "");
    let mut follower = follow(&fixture);
    let mut rebuilt = Rebuilt::copy(&fixture, &mut follower);
    let done = AtomicBool::new(false);
    let generations = std::thread::scope(|scope| {
        let following = scope.spawn(|| follow_until(&done, &mut follower, &mut rebuilt));
        let fixture = &fixture;
        let writers = [seed, seed + 1000].map(|seed| scope.spawn(move || write(fixture, seed, statements)));
        let results = writers.map(|writer| writer.join());
        // The commit of the last transaction is acknowledged before the follower stops.
        let last = first.run("INSERT INTO t(payload) VALUES('the last')");
        done.store(true, Ordering::SeqCst);
        let generations = following.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
        assert_eq!(last, "");
        generations
    });
    assert_eq!(follower.newest().unwrap(), rebuilt.position);
    assert!(generations > 10, "only {generations} generations were seen");
    assert!(rebuilt.newest_ms + 1000 >= started);
    drop(follower);
    first.finish();
    fixture.assert_plain(NAME);
    let bytes = std::fs::read(fixture.path(NAME)).unwrap();
    assert_eq!(bytes.len(), rebuilt.bytes.len());
    let differs = bytes.iter().zip(&rebuilt.bytes).position(|(one, other)| one != other);
    assert_eq!(differs, None, "after {} transactions", rebuilt.transactions);
    assert!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT count(*) FROM t") > 0);
}

#[test]
fn inv16_a_follower_rebuilds_what_other_processes_write_through_many_generations() {
    for_seeds(2, |seed| a_busy_log(seed, 900));
}

#[test]
fn inv16_a_pin_goes_with_its_process() {
    let fixture = Fixture::new();
    let mut writer = connection(&fixture, "", 0);
    writer.run("CREATE TABLE t(x)");
    writer.run("PRAGMA busy_timeout=0");
    let follower = follower_process(&fixture);
    writer.run("INSERT INTO t VALUES(1)");
    // The checkpoints write all pages to the database file. But because of the follower's pin the log cannot
    // start over.
    assert!(writer.run("PRAGMA wal_checkpoint(TRUNCATE)").starts_with("1|"));
    assert!(writer.run("PRAGMA wal_checkpoint(RESTART)").starts_with("1|"));
    assert_eq!(writer.run("INSERT INTO t VALUES(2)"), "");
    follower.kill();
    assert_eq!(writer.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
    writer.finish();
    fixture.assert_plain(NAME);
}

#[test]
fn inv16_a_followed_log_stays_when_the_last_connection_closes() {
    let fixture = Fixture::new();
    let mut writer = connection(&fixture, "", 0);
    writer.run("CREATE TABLE t(x)");
    let mut follower = follower_process(&fixture);
    writer.finish();
    assert!(fixture.is_guarded(NAME) && fixture.logs().len() == 1);
    follower.tell("newest");
    assert_eq!(follower.line(), "1");
    // The next process continues with the same log.
    let mut writer = connection(&fixture, "", 0);
    assert_eq!(writer.run("INSERT INTO t VALUES(1)"), "");
    follower.tell("newest");
    assert_eq!(follower.line(), "2");
    follower.finish();
    writer.finish();
    fixture.assert_plain(NAME);
}

#[test]
fn inv10_a_follower_that_stands_still_loses_its_place_before_the_log_is_full() {
    let fixture = Fixture::new();
    let mut writer = connection(&fixture, "log_limit=4m", 50);
    writer.run("CREATE TABLE t(x)");
    let mut follower = follow(&fixture);
    let oldest = follower.oldest().unwrap();
    assert!(follower.pin(oldest).unwrap());
    for count in 0..3000 {
        let answer = writer.run("INSERT INTO t VALUES(randomblob(4000))");
        assert_eq!(answer, "", "insert {count}");
    }
    let lost = follower.read_since(oldest).expect_err("its place is lost");
    assert_eq!(lost.kind(), ErrorKind::LostPlace, "{lost}");
    drop(follower);
    writer.finish();
    fixture.assert_plain(NAME);
}

#[test]
fn inv16_what_was_committed_before_a_crash_is_given_after_it() {
    let fixture = Fixture::new();
    let mut writer = connection(&fixture, "", 0);
    writer.run("CREATE TABLE t(x)");
    let mut follower = follow(&fixture);
    let mut rebuilt = Rebuilt::copy(&fixture, &mut follower);
    while rebuilt.take(&mut follower) {}
    drop(follower);
    for number in 0..20 {
        writer.run(&format!("INSERT INTO t VALUES({number})"));
    }
    writer.kill();
    // No process has the log attached, so the follower recovers it.
    let mut follower = follow(&fixture);
    while rebuilt.take(&mut follower) {}
    assert_eq!(rebuilt.position, 21);
    let mut writer = connection(&fixture, "", 0);
    assert_eq!(writer.run("SELECT count(*) FROM t"), "20");
    assert_eq!(writer.run("INSERT INTO t VALUES('after')"), "");
    assert!(rebuilt.take(&mut follower) && rebuilt.position == 22);
    drop(follower);
    writer.finish();
    fixture.assert_plain(NAME);
    assert!(std::fs::read(fixture.path(NAME)).unwrap() == rebuilt.bytes);
}
