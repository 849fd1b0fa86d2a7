//! Tests a log that somebody deletes while it is in use.

use std::path::Path;
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Engine, Fixture, code, integrity, one, run, stock};
use duralite_wal::DatabaseIdentity;
use duralite_wal::log::offline;
use duralite_wal::placement::{describe, find_deleted};
use rusqlite::{Connection, ffi};

use super::read_elsewhere;

/// The time within which Duralite must notice that a log was deleted. It is far longer than the time between
/// two checks.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

fn delete(log: &Path) {
    std::fs::remove_file(log).unwrap();
}

/// Inserts rows 1, 2, 3 and so on until Duralite refuses an insertion. Returns how many insertions succeeded,
/// and the message of the refusal.
#[track_caller]
fn insert_until_refused(mut insert: impl FnMut(i64) -> Option<String>) -> (i64, String) {
    let start = Instant::now();
    for row in 1.. {
        if let Some(refusal) = insert(row) {
            return (row - 1, refusal);
        }
        assert!(start.elapsed() < NOTICED_WITHIN, "{row} commits were acknowledged, and nobody has noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    unreachable!()
}

fn insert_here(conn: &Connection, row: i64) -> Option<String> {
    let error = run(conn, &format!("INSERT INTO t VALUES({row})")).err()?;
    assert_eq!(code(&error), ffi::SQLITE_IOERR_WRITE, "{error}");
    duralite::last_error()
}

fn insert_there(actor: &mut Actor, row: i64) -> Option<String> {
    let answer = actor.run(&format!("INSERT INTO t VALUES({row})"));
    (!answer.is_empty()).then(|| actor.run("SELECT duralite_last_error()"))
}

#[track_caller]
fn assert_says_so(refusal: &str) {
    assert!(refusal.contains("was deleted while it was in use"), "{refusal}");
    assert!(refusal.contains("close every connection"), "{refusal}");
}

#[test]
fn inv09_nothing_more_is_committed_to_a_log_that_was_deleted() {
    let fixture = Fixture::new();
    let conn = fixture.open("d.db");
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let mut other = Actor::sql(&fixture.uri("d.db", ""));
    assert_eq!(other.run("INSERT INTO t VALUES(0)"), "");
    delete(&fixture.log());
    let (rows, refusal) = insert_until_refused(|row| insert_here(&conn, row));
    assert_says_so(&refusal);
    // The first process has told the other process that the log was deleted.
    assert_says_so(&insert_there(&mut other, -1).unwrap());
    assert_says_so(&insert_here(&conn, -1).unwrap());
    // Readers can continue, including connections of this process that open now.
    assert_eq!(one::<i64>(&conn, "SELECT max(a) FROM t"), rows);
    assert_eq!(other.run("SELECT count(*) FROM t"), (rows + 1).to_string());
    let third = duralite_testkit::connect(&fixture.uri("d.db", "")).unwrap();
    assert_eq!(one::<i64>(&third, "SELECT count(*) FROM t"), rows + 1);
    third.close().unwrap();
    other.finish();
    conn.close().unwrap();
    fixture.assert_plain("d.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("d.db")), "SELECT count(*) FROM t"), rows + 1);
    // With a new log everything works as before.
    let conn = fixture.open("d.db");
    run(&conn, "INSERT INTO t VALUES(-2)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("d.db");
}

/// Returns whether a checkpoint writes pages to the database file. The engine `ppl`, and the test engines
/// `side` and `sideundo`, keep the pages in or beside the log until the log is closed.
fn goes_home_at_once() -> bool {
    !["ppl", "side", "sideundo"].contains(&Engine::under_test().name())
}

#[test]
fn inv09_what_is_committed_in_a_deleted_log_survives_the_death_of_its_process() {
    for locking in ["normal", "exclusive"] {
        let fixture = Fixture::new();
        let mut writer = Actor::sql(&fixture.uri("k.db", ""));
        assert_eq!(writer.run(&format!("PRAGMA locking_mode={locking}")), locking);
        assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
        writer.run("PRAGMA wal_autocheckpoint=0");
        assert_eq!(writer.run("CREATE TABLE t(a)"), "");
        delete(&fixture.log());
        let (rows, refusal) = insert_until_refused(|row| insert_there(&mut writer, row));
        assert_says_so(&refusal);
        writer.kill();
        if !goes_home_at_once() {
            continue;
        }
        let database = fixture.path("k.db");
        offline::discard_log(&database, offline::inspect(&database).unwrap()).unwrap();
        let stock = stock(&fixture.path("k.db"));
        integrity(&stock);
        assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), rows, "{locking}");
    }
}

#[test]
fn inv09_a_checkpoint_notices_that_the_log_was_deleted() {
    let fixture = Fixture::new();
    let conn = fixture.open("c.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    delete(&fixture.log());
    run(&conn, "PRAGMA wal_checkpoint").unwrap();
    assert_says_so(&insert_here(&conn, 1).unwrap());
    conn.close().unwrap();
    fixture.assert_plain("c.db");
}

#[test]
fn inv01_a_log_that_was_deleted_before_its_first_commit_is_not_made_durable() {
    let fixture = Fixture::new();
    let conn = fixture.open("p.db");
    run(&conn, "SELECT * FROM sqlite_schema").unwrap();
    delete(&fixture.log());
    let error = run(&conn, "CREATE TABLE t(a)").unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_IOERR_WRITE);
    assert_says_so(&duralite::last_error().unwrap());
    conn.close().unwrap();
    fixture.assert_plain("p.db");
}

/// A user who deletes a database with all its files does not want any of it back. SQLite assumes this for its
/// own files, and Duralite for its logs.
#[test]
fn a_log_that_was_deleted_with_its_database_disturbs_nobody() {
    let fixture = Fixture::new();
    let conn = fixture.open("g.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    delete(&fixture.log());
    delete(&fixture.path("g.db"));
    run(&conn, "PRAGMA wal_checkpoint").unwrap();
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 1);
}

#[test]
fn a_log_that_was_moved_is_not_taken_for_deleted() {
    let fixture = Fixture::new();
    let conn = fixture.open("m.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let (log, moved) = (fixture.log(), fixture.log_dir().join("moved"));
    std::fs::rename(&log, &moved).unwrap();
    run(&conn, "PRAGMA wal_checkpoint").unwrap();
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    std::fs::rename(&moved, &log).unwrap();
    conn.close().unwrap();
    fixture.assert_plain("m.db");
}

#[test]
fn inv26_no_transaction_begins_whose_rollback_journal_would_be_in_a_deleted_log() {
    for engine in Engine::keeping_rollback_journals() {
        let fixture = Fixture::on(engine);
        let conn = duralite_testkit::connect(&fixture.uri("r.db", "")).unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(0)").unwrap();
        delete(&fixture.log());
        let (rows, refusal) = insert_until_refused(|row| insert_here(&conn, row));
        assert_says_so(&refusal);
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), rows + 1);
        conn.close().unwrap();
        fixture.assert_plain("r.db");
        assert_eq!(one::<i64>(&stock(&fixture.path("r.db")), "SELECT count(*) FROM t"), rows + 1);
    }
}

/// If one log had two shared memories, each of them would have a separate index of the log.
#[test]
fn inv15_who_does_not_find_the_shared_memory_of_a_log_in_use_is_refused() {
    let fixture = Fixture::new();
    let mut writer = Actor::sql(&fixture.uri("s.db", ""));
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(writer.run("CREATE TABLE t(a)"), "");
    let files = || std::fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let is_memory = |path: &std::path::PathBuf| path.to_string_lossy().ends_with("-shm");
    files().filter(is_memory).for_each(|memory| delete(&memory));
    for _ in 0..2 {
        let answer = read_elsewhere(&fixture.uri("s.db", ""));
        assert!(answer.starts_with("error: "), "not refused: {answer}");
        assert_eq!(writer.run("INSERT INTO t VALUES(6)"), "");
    }
    writer.kill();
    assert_eq!(read_elsewhere(&fixture.uri("s.db", "")), "12");
    let conn = fixture.open("s.db");
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("s.db");
}

#[test]
fn inv07_a_deleted_log_can_be_copied_from_the_process_that_has_it() {
    let fixture = Fixture::new();
    let uri = fixture.uri("c.db", "");
    let mut writer = Actor::sql(&uri);
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    writer.run("PRAGMA wal_autocheckpoint=0");
    assert_eq!(writer.run("CREATE TABLE t(a)"), "");
    assert_eq!(writer.run("INSERT INTO t VALUES(1), (2), (3)"), "");
    let (log, db) = (fixture.log(), DatabaseIdentity::of(&fixture.path("c.db")).unwrap());
    let id = describe(&log).unwrap().id;
    assert_eq!(find_deleted(id).unwrap(), None, "it has a name");
    delete(&log);
    let found = find_deleted(id).unwrap().unwrap();
    assert_eq!((found.process, found.path.parent()), (writer.pid(), log.parent()));
    // Saving the copy under the log's own name must fail. Otherwise other processes would open the copy while
    // this process still uses the deleted log.
    found.copy(&log, &db, None).unwrap_err();
    assert!(!log.exists());
    let copy = fixture.log_dir().join("salvaged");
    found.copy(&copy, &db, None).unwrap();
    assert_says_so(&insert_there(&mut writer, 4).unwrap());
    writer.kill();
    std::fs::rename(&copy, &log).unwrap();
    assert_eq!(read_elsewhere(&uri), "6");
    let conn = fixture.open("c.db");
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("c.db");
}
