//! A log is used only by its own database, and a guarded database only with its log (invariant 3).

use std::fs;

use duralite_testkit::{Actor, Place, code, one, run};
use rusqlite::ffi;

use crate::{abandoned, read_elsewhere, refused};

#[test]
fn inv03_without_its_log_a_guarded_database_does_not_open() {
    let place = Place::new();
    abandoned(&place, "m.db");
    let (log, aside) = (place.log(), place.path("aside"));
    fs::copy(&log, &aside).unwrap();
    fs::remove_file(&log).unwrap();
    let before = place.snapshot();
    assert_eq!(code(&refused(&place.uri("m.db", ""))), ffi::SQLITE_CANTOPEN);
    assert!(place.snapshot() == before, "a refused open changed something");
    fs::copy(&aside, &log).unwrap();
    assert_eq!(read_elsewhere(&place.uri("m.db", "")), "6");
}

#[test]
fn inv03_a_copy_of_a_live_database_cannot_use_its_log() {
    let place = Place::new();
    abandoned(&place, "o.db");
    fs::copy(place.path("o.db"), place.path("copy.db")).unwrap();
    let before = place.snapshot();
    assert_eq!(code(&refused(&place.uri("copy.db", ""))), ffi::SQLITE_CANTOPEN);
    assert!(place.snapshot() == before, "a refused open changed something");
    // Not even while the original is in use.
    let conn = place.open("o.db");
    assert_eq!(code(&refused(&place.uri("copy.db", ""))), ffi::SQLITE_CANTOPEN);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
}

#[test]
fn inv03_a_database_that_was_moved_finds_its_log() {
    let place = Place::new();
    abandoned(&place, "o.db");
    fs::rename(place.path("o.db"), place.path("moved.db")).unwrap();
    // The wal-index of a killed process stays behind.
    let _ = fs::remove_file(place.path("o.db-shm"));
    let conn = place.open("moved.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    conn.close().unwrap();
    place.assert_plain("moved.db");
}

#[test]
fn inv03_another_name_for_the_database_is_the_same_database() {
    let place = Place::new();
    abandoned(&place, "o.db");
    std::os::unix::fs::symlink(place.path("o.db"), place.path("link.db")).unwrap();
    let (first, second) = (place.open("o.db"), place.open("link.db"));
    run(&first, "INSERT INTO t VALUES(4)").unwrap();
    assert_eq!(one::<i64>(&second, "SELECT sum(a) FROM t"), 10);
}

#[test]
fn inv03_a_log_with_commits_of_a_deleted_database_is_kept_and_in_nobodys_way() {
    let place = Place::new();
    abandoned(&place, "d.db");
    let (orphan, content) = (place.log(), fs::read(place.log()).unwrap());
    fs::remove_file(place.path("d.db")).unwrap();
    let conn = place.open("d.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    assert_eq!(place.logs().len(), 2);
    conn.close().unwrap();
    place.assert_plain("d.db");
    assert_eq!(place.log(), orphan);
    assert!(fs::read(orphan).unwrap() == content, "the orphan was changed");
}

#[test]
fn inv03_logs_of_other_databases_are_left_alone() {
    let place = Place::new();
    abandoned(&place, "a.db");
    let log = place.log();
    let before = fs::read(&log).unwrap();
    let conn = place.open("b.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    assert!(fs::read(&log).unwrap() == before);
    assert_eq!(read_elsewhere(&place.uri("a.db", "")), "6");
}

/// The process that made it died before the database named it, while the database had another name.
#[test]
fn inv03_an_empty_log_of_another_name_is_deleted() {
    let place = Place::new();
    let conn = place.open("before.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    let unmarked = fs::read(place.path("before.db")).unwrap();
    // A log without commits that the database names.
    let uri = place.uri("before.db", "");
    let mut actor = Actor::sql(&uri);
    assert_eq!(actor.run("PRAGMA user_version"), "0");
    let log = place.log();
    drop(actor);
    let mut file = fs::OpenOptions::new().write(true).open(place.path("before.db")).unwrap();
    std::io::Write::write_all(&mut file, &unmarked).unwrap();
    fs::rename(place.path("before.db"), place.path("after.db")).unwrap();
    let conn = place.open("after.db");
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    assert!(!log.exists(), "{} stays", log.display());
    conn.close().unwrap();
    place.assert_plain("after.db");
    assert!(place.logs().is_empty(), "{:?}", place.logs());
}
