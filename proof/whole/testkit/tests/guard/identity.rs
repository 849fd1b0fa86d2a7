//! A log is used only by its own database, and a guarded database only with its own log (invariant 3).

use std::fs;

use duralite_testkit::{Actor, Fixture, code, one, run};
use rusqlite::ffi;

use super::{abandoned, read_elsewhere, refused};

#[test]
fn inv03_without_its_log_a_guarded_database_does_not_open() {
    let fixture = Fixture::new();
    abandoned(&fixture, "m.db");
    let (log, aside) = (fixture.log(), fixture.path("aside"));
    fs::copy(&log, &aside).unwrap();
    fs::remove_file(&log).unwrap();
    let before = fixture.snapshot();
    assert_eq!(code(&refused(&fixture.uri("m.db", ""))), ffi::SQLITE_CANTOPEN);
    assert!(fixture.snapshot() == before, "a refused open changed something");
    fs::copy(&aside, &log).unwrap();
    assert_eq!(read_elsewhere(&fixture.uri("m.db", "")), "6");
}

#[test]
fn inv03_a_copy_of_a_live_database_cannot_use_its_log() {
    let fixture = Fixture::new();
    abandoned(&fixture, "o.db");
    fs::copy(fixture.path("o.db"), fixture.path("copy.db")).unwrap();
    let before = fixture.snapshot();
    assert_eq!(code(&refused(&fixture.uri("copy.db", ""))), ffi::SQLITE_CANTOPEN);
    assert!(fixture.snapshot() == before, "a refused open changed something");
    // The copy is refused even while the original is in use.
    let conn = fixture.open("o.db");
    assert_eq!(code(&refused(&fixture.uri("copy.db", ""))), ffi::SQLITE_CANTOPEN);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
}

#[test]
fn inv03_a_database_that_was_moved_finds_its_log() {
    let fixture = Fixture::new();
    abandoned(&fixture, "o.db");
    fs::rename(fixture.path("o.db"), fixture.path("moved.db")).unwrap();
    // Removes the wal-index that the killed process has left.
    let _ = fs::remove_file(fixture.path("o.db-shm"));
    let conn = fixture.open("moved.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    conn.close().unwrap();
    fixture.assert_plain("moved.db");
}

#[test]
fn inv03_another_name_for_the_database_is_the_same_database() {
    let fixture = Fixture::new();
    abandoned(&fixture, "o.db");
    std::os::unix::fs::symlink(fixture.path("o.db"), fixture.path("link.db")).unwrap();
    let (first, second) = (fixture.open("o.db"), fixture.open("link.db"));
    run(&first, "INSERT INTO t VALUES(4)").unwrap();
    assert_eq!(one::<i64>(&second, "SELECT sum(a) FROM t"), 10);
}

#[test]
fn inv03_a_log_with_commits_of_a_deleted_database_is_kept_and_in_nobodys_way() {
    let fixture = Fixture::new();
    abandoned(&fixture, "d.db");
    let (orphan, content) = (fixture.log(), fs::read(fixture.log()).unwrap());
    fs::remove_file(fixture.path("d.db")).unwrap();
    let conn = fixture.open("d.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    assert_eq!(fixture.logs().len(), 2);
    conn.close().unwrap();
    fixture.assert_plain("d.db");
    assert_eq!(fixture.log(), orphan);
    assert!(fs::read(orphan).unwrap() == content, "the orphan was changed");
}

#[test]
fn inv03_logs_of_other_databases_are_left_alone() {
    let fixture = Fixture::new();
    abandoned(&fixture, "a.db");
    let log = fixture.log();
    let before = fs::read(&log).unwrap();
    let conn = fixture.open("b.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    assert!(fs::read(&log).unwrap() == before);
    assert_eq!(read_elsewhere(&fixture.uri("a.db", "")), "6");
}

/// The process that made the log died before the database named the log. Since then the database has got
/// another name.
#[test]
fn inv03_an_empty_log_of_another_name_is_deleted() {
    let fixture = Fixture::new();
    let conn = fixture.open("before.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    let unmarked = fs::read(fixture.path("before.db")).unwrap();
    // Makes a log without commits, which the database names.
    let uri = fixture.uri("before.db", "");
    let mut actor = Actor::sql(&uri);
    assert_eq!(actor.run("PRAGMA user_version"), "0");
    let log = fixture.log();
    drop(actor);
    let mut file = fs::OpenOptions::new().write(true).open(fixture.path("before.db")).unwrap();
    std::io::Write::write_all(&mut file, &unmarked).unwrap();
    fs::rename(fixture.path("before.db"), fixture.path("after.db")).unwrap();
    let conn = fixture.open("after.db");
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    assert!(!log.exists(), "{} stays", log.display());
    conn.close().unwrap();
    fixture.assert_plain("after.db");
    assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
}
