//! Tests the region that the logs of `scratchpad` share. Each page of the region must belong to the right log
//! when logs are moved, deleted or replaced.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use duralite_testkit::{Actor, Engine, Fixture, code, connect, integrity, one, run};
use duralite_wal::engines::scratchpad::{RegionUse, is_region_name, reclaim};
use duralite_wal::placement::{FileStep, Hook, hook};
use rusqlite::{Connection, ffi};

/// The size of a region whose pages are soon used up.
const SMALL: &str = "scratchpad_bytes=256k";

fn fixture() -> Fixture {
    Fixture::on(Engine::SCRATCHPAD)
}

fn open(fixture: &Fixture, name: &str) -> Connection {
    connect(&fixture.uri(name, SMALL)).unwrap()
}

/// Starts a process that has opened `name` in WAL mode, and has committed `rows` rows of a kilobyte.
fn writer(fixture: &Fixture, name: &str, rows: u32) -> Actor {
    let mut actor = Actor::sql(&fixture.uri(name, SMALL));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    actor.run("PRAGMA wal_autocheckpoint=0");
    assert_eq!(actor.run("CREATE TABLE t(a INTEGER PRIMARY KEY, b)"), "");
    for row in 1..=rows {
        assert_eq!(actor.run(&format!("INSERT INTO t VALUES({row}, randomblob(1000))")), "");
    }
    actor
}

/// Inserts until the region has no space left. Returns how many insertions succeeded.
fn fill(conn: &Connection) -> u32 {
    for sql in ["PRAGMA journal_mode=WAL", "PRAGMA wal_autocheckpoint=0", "CREATE TABLE IF NOT EXISTS f(b)"] {
        run(conn, sql).unwrap();
    }
    // All insertions are in one transaction, so that no checkpoint frees space.
    run(conn, "PRAGMA cache_size=1").unwrap();
    run(conn, "BEGIN").unwrap();
    for count in 0.. {
        match run(conn, "INSERT INTO f VALUES(randomblob(3000))") {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(code(&error), ffi::SQLITE_FULL, "{error}");
                return count;
            }
        }
    }
    unreachable!()
}

fn the_region(fixture: &Fixture) -> RegionUse {
    let mut found = reclaim(fixture.log_dir(), false).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Returns the file of the only region, if there is one.
fn region_file(fixture: &Fixture) -> Option<PathBuf> {
    let entries = fs::read_dir(fixture.log_dir()).unwrap();
    entries.map(|entry| entry.unwrap().path()).find(|path| is_region_name(path))
}

/// Moves a database and its log to another directory, as a user who knows nothing of regions would.
fn move_away(fixture: &Fixture, name: &str) -> Fixture {
    let other = self::fixture();
    fs::rename(fixture.path(name), other.path(name)).unwrap();
    for entry in fs::read_dir(fixture.log_dir()).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap();
        if file.to_string_lossy().starts_with(name) {
            fs::rename(&path, other.log_dir().join(file)).unwrap();
        }
    }
    other
}

#[test]
fn inv24_pages_of_a_log_that_was_moved_are_nobody_elses() {
    let fixture = fixture();
    writer(&fixture, "moved.db", 20).kill();
    let other = move_away(&fixture, "moved.db");
    let conn = open(&fixture, "full.db");
    let before = fill(&conn);
    let seen = the_region(&fixture);
    assert!(seen.missing_logs == 1 && seen.missing_bytes > 0, "{seen:?}");
    let found = open(&other, "moved.db");
    assert_eq!(one::<i64>(&found, "SELECT count(*) FROM t"), 20);
    integrity(&found);
    drop(found);
    other.assert_plain("moved.db");
    assert_eq!(the_region(&fixture).missing_bytes, 0, "its log was deleted where it was");
    let again = fill(&open(&fixture, "more.db"));
    assert!(again > before, "{again} after {before}");
}

#[test]
fn inv25_a_log_whose_pages_were_discarded_is_an_error_and_not_empty() {
    let fixture = fixture();
    writer(&fixture, "moved.db", 5).kill();
    let other = move_away(&fixture, "moved.db");
    // Another database still uses the region.
    let keeper = open(&fixture, "keeper.db");
    run(&keeper, "PRAGMA journal_mode=WAL").unwrap();
    run(&keeper, "CREATE TABLE t(a)").unwrap();
    assert_eq!(reclaim(fixture.log_dir(), true).unwrap()[0].missing_logs, 1);
    let error = run(&open(&other, "moved.db"), "SELECT count(*) FROM t").unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_CANTOPEN, "{error}");
    assert!(other.is_guarded("moved.db"));
}

#[test]
fn what_a_deleted_log_has_had_is_given_back_by_name() {
    let fixture = fixture();
    writer(&fixture, "gone.db", 20).kill();
    fs::remove_file(fixture.path("gone.db")).unwrap();
    for path in fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path()) {
        if !is_region_name(&path) {
            fs::remove_file(path).unwrap();
        }
    }
    let before = fill(&open(&fixture, "full.db"));
    let given = reclaim(fixture.log_dir(), true).unwrap();
    assert!(given[0].missing_bytes > 0 && given[0].used_bytes == 0, "{given:?}");
    // No process uses the region, and no log has pages in it. So this call has deleted the region.
    assert_eq!(region_file(&fixture), None);
    let after = fill(&open(&fixture, "full.db"));
    assert!(after > before, "{after} after {before}");
}

#[test]
fn a_log_that_is_deleted_while_it_is_open_gives_back_what_it_has_had() {
    let fixture = fixture();
    let mut actor = writer(&fixture, "gone.db", 20);
    let keeper = open(&fixture, "keeper.db");
    run(&keeper, "PRAGMA journal_mode=WAL").unwrap();
    run(&keeper, "CREATE TABLE t(a)").unwrap();
    fs::remove_file(fixture.path("gone.db")).unwrap();
    for path in fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path()) {
        if path.file_name().unwrap().to_string_lossy().starts_with("gone.db") {
            fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(actor.run("SELECT count(*) FROM t"), "20");
    let own = |seen: &RegionUse| (seen.used_bytes, seen.missing_bytes);
    let (before, _) = own(&the_region(&fixture));
    actor.finish();
    let (after, missing) = own(&the_region(&fixture));
    assert!(after < before && missing == 0, "{after} of {before} bytes, {missing} missing");
}

#[test]
fn the_region_of_an_empty_log_that_was_moved_stays() {
    let fixture = fixture();
    let mut actor = writer(&fixture, "moved.db", 3);
    assert_eq!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
    actor.kill();
    let other = move_away(&fixture, "moved.db");
    // Open and close another database. After that, no page of the region is in use.
    let conn = open(&fixture, "other.db");
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    run(&conn, "CREATE TABLE t(a)").unwrap();
    drop(conn);
    let found = open(&other, "moved.db");
    assert_eq!(one::<i64>(&found, "SELECT count(*) FROM t"), 3);
    drop(found);
    assert_eq!(region_file(&fixture), None, "it had no log any more");
}

/// If a copy of a log lies beside the log, the copy owns no pages. The pages to which it refers belong to the
/// original.
#[test]
fn a_copy_of_a_log_that_is_collected_gives_nothing_back() {
    let fixture = fixture();
    let mut actor = writer(&fixture, "a.db", 3);
    assert_eq!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
    let log = fixture.log();
    fs::copy(&log, fixture.log_dir().join("a.db-duralite")).unwrap();
    for row in 10..20 {
        assert_eq!(actor.run(&format!("INSERT INTO t VALUES({row}, randomblob(1000))")), "");
    }
    let used = the_region(&fixture).used_bytes;
    let db = duralite_wal::DatabaseIdentity::of(&fixture.path("a.db")).unwrap();
    duralite_wal::Log::remove_unused(&fixture.log_dir().join("a.db-duralite"), id_of(&log));
    assert_eq!(the_region(&fixture).used_bytes, used, "{db:?}");
    assert_eq!(actor.run("SELECT count(*) FROM t"), "13");
    actor.kill();
    assert_eq!(one::<i64>(&open(&fixture, "a.db"), "SELECT count(*) FROM t"), 13);
}

fn id_of(log: &Path) -> duralite_format::LogId {
    duralite_wal::placement::describe(log).unwrap().id
}

/// A hook that closes a connection at the moment when a log is about to get its name.
struct CloseAtPublish(Mutex<Option<Connection>>);

impl Hook for CloseAtPublish {
    fn step(&self, step: FileStep, path: &Path) -> io::Result<()> {
        if step == FileStep::Publish && !is_region_name(path) {
            let conn = self.0.lock().unwrap().take();
            drop(conn);
        }
        Ok(())
    }
}

#[test]
fn the_last_user_of_a_region_may_leave_while_a_log_is_made_in_it() {
    let fixture = fixture();
    let last = open(&fixture, "last.db");
    run(&last, "PRAGMA journal_mode=WAL").unwrap();
    run(&last, "CREATE TABLE t(a)").unwrap();
    let new = open(&fixture, "new.db");
    let hooked = hook(fixture.log_dir(), Arc::new(CloseAtPublish(Mutex::new(Some(last)))));
    run(&new, "PRAGMA journal_mode=WAL").unwrap();
    run(&new, "CREATE TABLE t(a)").unwrap();
    run(&new, "INSERT INTO t VALUES(1)").unwrap();
    drop(hooked);
    drop(new);
    fixture.assert_plain("new.db");
    fixture.assert_plain("last.db");
    assert_eq!(region_file(&fixture), None);
}

/// Processes took pages of the region for this log, and were killed. A rollback journal in the log can use
/// these pages.
#[test]
fn inv24_a_rollback_journal_finds_the_room_that_the_dead_have_left() {
    let fixture = fixture();
    let conn = open(&fixture, "r.db");
    run(&conn, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)").unwrap();
    run(&conn, "INSERT INTO t VALUES(1, zeroblob(150000))").unwrap();
    for round in 0..4 {
        let mut actor = Actor::sql(&fixture.uri("r.db", SMALL));
        actor.run("PRAGMA cache_size=1");
        assert_eq!(actor.run("BEGIN"), "");
        assert_eq!(actor.run("UPDATE t SET b = randomblob(150000)"), "");
        actor.kill();
        // This connection rolls back the transaction of the killed process. After that, the process slot of
        // the killed process no longer owns the pages that the process took.
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t WHERE b = zeroblob(150000)"), 1, "{round}");
        run(&conn, "UPDATE t SET a = a + 1").unwrap();
    }
}

/// In PERSIST mode SQLite zeroes the journal instead of deleting it. The region must get the space of the
/// journal back nevertheless.
#[test]
fn a_persisted_journal_leaves_nothing_in_the_region() {
    let fixture = fixture();
    let keeper = open(&fixture, "keeper.db");
    run(&keeper, "PRAGMA journal_mode=WAL").unwrap();
    run(&keeper, "CREATE TABLE t(a)").unwrap();
    for turn in ["PRAGMA page_size=8192", "PRAGMA page_size=1024"] {
        let conn = open(&fixture, "p.db");
        for sql in
            ["PRAGMA journal_mode=PERSIST", "CREATE TABLE IF NOT EXISTS t(a)", "INSERT INTO t VALUES(1)"]
        {
            run(&conn, sql).unwrap();
        }
        for sql in [turn, "VACUUM", "PRAGMA journal_mode=WAL", "INSERT INTO t VALUES(2)"] {
            run(&conn, sql).unwrap();
        }
        assert_eq!(the_region(&fixture).missing_bytes, 0, "{turn}");
        drop(conn);
        assert_eq!(the_region(&fixture).missing_bytes, 0, "{turn}");
    }
}

/// A checkpoint of this log cannot free the pages that other logs have in the region.
#[test]
fn inv10_a_log_does_not_start_over_because_of_what_others_have() {
    let fixture = fixture();
    let mut other = writer(&fixture, "other.db", 0);
    let many = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40) INSERT INTO t SELECT i, randomblob(4000) FROM n";
    assert_eq!(other.run(many), "");
    let conn = open(&fixture, "own.db");
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let seen = the_region(&fixture);
    assert!(seen.used_bytes > seen.limit_bytes / 2, "{seen:?}");
    for row in 0..4 {
        run(&conn, &format!("INSERT INTO t VALUES({row})")).unwrap();
    }
    let status = one::<String>(&conn, "PRAGMA duralite");
    let frames = status.lines().find_map(|line| line.strip_prefix("log_frames")).unwrap().trim().to_owned();
    assert!(frames.parse::<u32>().unwrap() >= 5, "it started over: {frames} frames");
    assert_eq!(other.run("SELECT count(*) FROM t"), "40");
}

/// A transaction found no space and was rolled back. After that its connection must not keep any space in the
/// region while it is idle.
#[test]
fn a_transaction_that_was_rolled_back_leaves_its_room_to_others() {
    let fixture = fixture();
    let conn = open(&fixture, "idle.db");
    assert!(fill(&conn) > 0);
    let other = open(&fixture, "other.db");
    run(&other, "PRAGMA journal_mode=WAL").unwrap();
    run(&other, "CREATE TABLE t(a)").unwrap();
    run(&other, "INSERT INTO t VALUES(randomblob(100000))").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM f"), 0);
}
