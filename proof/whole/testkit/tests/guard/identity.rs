//! Tests that a log is used only by its own database, and a guarded database only with its own log (invariant
//! 3).

use std::fs;

use duralite_testkit::{Actor, Engine, Fixture, code, connect, one, run};
use rusqlite::config::DbConfig;
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
    // Duralite refuses the copy even while the original is in use.
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

/// `cp app.db new.db && mv new.db app.db` runs while the database is in use. Only the log has the commits,
/// and the header of the copy names this log. So the copy must get the log. The last connection to the old
/// file may or may not make a checkpoint when it closes.
#[test]
fn inv03_a_copy_that_replaces_a_database_in_use_has_its_log() {
    for checkpoints in [true, false] {
        let fixture = Fixture::new();
        let (path, copy) = (fixture.path("r.db"), fixture.path("new.db"));
        // As with a `-wal`, the log has to be in the directory of the database.
        let uri = fixture.uri_with_log_dir("r.db", path.parent().unwrap(), "");
        let conn = connect(&uri).unwrap();
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
        run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(1), (2), (3)").unwrap();
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !checkpoints).unwrap();
        fs::copy(&path, &copy).unwrap();
        fs::rename(&copy, &path).unwrap();
        conn.close().unwrap();
        let conn = match connect(&uri) {
            Ok(conn) => conn,
            // The engine may have written pages to the old file after the copy was made. The copy may lack
            // these pages.
            Err(refused) => {
                assert_eq!(code(&refused), ffi::SQLITE_CANTOPEN);
                assert!(![Engine::WALDIO, Engine::NVWAL].contains(&fixture.engine()), "{refused}");
                assert!(path.with_file_name("r.db-duralite").exists(), "the log stays");
                continue;
            }
        };
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6, "checkpoints: {checkpoints}");
        run(&conn, "INSERT INTO t VALUES(4)").unwrap();
        conn.close().unwrap();
        fixture.assert_plain("r.db");
    }
}

/// A database replaces another one that is in use. The new database names another log, or none. So no
/// database needs the log of the old one.
#[test]
fn a_database_in_use_that_another_one_replaces_leaves_no_log() {
    let fixture = Fixture::new();
    let (conn, other) = (fixture.open("r.db"), fixture.open("new.db"));
    run(&conn, "CREATE TABLE t(a)").unwrap();
    run(&other, "CREATE TABLE t(a)").unwrap();
    run(&other, "INSERT INTO t VALUES(6)").unwrap();
    fs::rename(fixture.path("new.db"), fixture.path("r.db")).unwrap();
    conn.close().unwrap();
    assert_eq!(fixture.logs().len(), 1, "{:?}", fixture.logs());
    assert_eq!(one::<i64>(&other, "SELECT sum(a) FROM t"), 6);
    other.close().unwrap();
    assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
    fixture.assert_plain("r.db");
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

/// A process made a log, and died before it wrote the log's id into the database's header. Since then a user
/// has renamed the database.
#[test]
fn inv03_an_empty_log_of_another_name_is_deleted() {
    let fixture = Fixture::new();
    let conn = fixture.open("before.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    let unmarked = fs::read(fixture.path("before.db")).unwrap();
    // Makes a log without commits. The database names this log.
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
