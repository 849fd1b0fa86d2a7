//! Pools that are missing, read-only or full, and logs at their limit.

use std::fs;

use duralite_testkit::{Actor, Place, TinyPool, code, connect, integrity, one, run, stock};
use rusqlite::ffi;

use crate::{abandoned, read_elsewhere, refused};

#[test]
fn inv01_an_emptied_journal_does_not_stay_beside_a_guarded_database() {
    for mode in ["TRUNCATE", "PERSIST"] {
        let place = Place::new();
        let conn = stock(&place.path("p.db"));
        conn.execute_batch(&format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(a); INSERT INTO t VALUES(6)"
        ))
        .unwrap();
        conn.close().unwrap();
        let journal = place.path("p.db-journal");
        assert!(journal.exists(), "{mode}");
        let conn = place.open("p.db");
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
        assert!(place.is_guarded("p.db") && !journal.exists(), "{mode}");
        conn.close().unwrap();
        place.assert_plain("p.db");
    }
}

/// A plain database in WAL mode with one row.
fn plain(place: &Place, name: &str) {
    let conn = stock(&place.path(name));
    conn.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(6)").unwrap();
    conn.close().unwrap();
}

#[test]
fn a_missing_pool_fails_the_open() {
    let place = Place::new();
    plain(&place, "p.db");
    let before = place.snapshot();
    let nowhere = place.path("nowhere");
    assert_eq!(code(&refused(&place.uri_with_pool("p.db", &nowhere, ""))), ffi::SQLITE_CANTOPEN);
    let error = refused(&place.uri_with_pool("new.db", &nowhere, ""));
    assert_eq!(code(&error), ffi::SQLITE_CANTOPEN);
    // No DAX file system.
    let uri =
        format!("file:{}?vfs=duralite&nvram={}", place.path("new.db").display(), place.pool().display());
    assert_eq!(code(&refused(&uri)), ffi::SQLITE_CANTOPEN);
    assert!(place.snapshot() == before, "a refused open changed something");
}

#[test]
fn inv03_a_wrong_pool_does_not_open_a_guarded_database() {
    let place = Place::new();
    abandoned(&place, "p.db");
    let other = tempfile::tempdir().unwrap();
    let before = place.snapshot();
    assert_eq!(code(&refused(&place.uri_with_pool("p.db", other.path(), ""))), ffi::SQLITE_CANTOPEN);
    assert!(place.snapshot() == before, "a refused open changed something");
    assert_eq!(read_elsewhere(&place.uri("p.db", "")), "6");
}

#[test]
fn a_journal_that_cannot_be_deleted_fails_the_open_before_there_is_a_log() {
    let place = Place::new();
    plain(&place, "p.db");
    // It leads to itself: for SQLite there is none, and opening it is an error.
    let journal = place.path("p.db-journal");
    std::os::unix::fs::symlink(&journal, &journal).unwrap();
    assert_eq!(code(&refused(&place.uri("p.db", ""))), ffi::SQLITE_IOERR_DELETE);
    assert!(place.logs().is_empty() && !place.is_guarded("p.db"));
    fs::remove_file(journal).unwrap();
    assert_eq!(one::<i64>(&connect(&place.uri("p.db", "")).unwrap(), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn a_read_only_pool_fails_the_open() {
    let Some(pool) = TinyPool::new(4096) else { return };
    let place = Place::new();
    plain(&place, "p.db");
    pool.set_read_only(true);
    let before = place.snapshot();
    let uri = place.uri_with_pool("p.db", pool.path(), "");
    assert_eq!(code(&refused(&uri)), ffi::SQLITE_CANTOPEN);
    assert!(place.snapshot() == before, "a refused open changed something");
    pool.set_read_only(false);
    assert_eq!(one::<i64>(&connect(&uri).unwrap(), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn a_full_pool_fails_the_open() {
    let Some(pool) = TinyPool::new(64) else { return };
    let place = Place::new();
    plain(&place, "p.db");
    let filler = pool.path().join("filler");
    fs::write(&filler, vec![1; 48 << 10]).unwrap();
    let before = place.snapshot();
    let uri = place.uri_with_pool("p.db", pool.path(), "");
    let error = refused(&uri);
    assert!([ffi::SQLITE_FULL, ffi::SQLITE_CANTOPEN].contains(&(code(&error) & 0xff)), "{error}");
    assert!(place.snapshot() == before, "a refused open changed something");
    let left: Vec<_> = fs::read_dir(pool.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["filler"]);
}

#[test]
fn inv10_a_pool_that_runs_full_fails_the_write_and_loses_nothing() {
    let Some(pool) = TinyPool::new(3072) else { return };
    let place = Place::new();
    let uri = place.uri_with_pool("f.db", pool.path(), "");
    fill_up(&uri);
    // The next to come finds everything too.
    assert!(read_elsewhere(&uri).parse::<i64>().unwrap() > 0);
}

#[test]
fn inv10_a_log_at_its_limit_fails_the_write_and_loses_nothing() {
    let place = Place::new();
    fill_up(&place.uri("f.db", "log_limit=1m"));
    place.assert_plain("f.db");
}

/// Writes while a reader keeps the log from being recycled, until it is full.
fn fill_up(uri: &str) {
    let conn = connect(uri).unwrap();
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    run(&conn, "PRAGMA cache_size=10").unwrap();
    run(&conn, "CREATE TABLE t(a, b)").unwrap();
    let mut reader = Actor::sql(uri);
    assert_eq!(reader.run("BEGIN"), "");
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    let mut committed = 0;
    let error = loop {
        assert!(committed < 10_000, "the log was never full");
        run(&conn, "BEGIN").unwrap();
        let wrote =
            (0..10).try_for_each(|_| run(&conn, "INSERT INTO t VALUES(1, randomblob(3000))").map(drop));
        match wrote.and_then(|()| run(&conn, "COMMIT").map(drop)) {
            Ok(()) => committed += 10,
            Err(error) => break error,
        }
    };
    assert_eq!(code(&error), ffi::SQLITE_FULL, "{error}");
    if !conn.is_autocommit() {
        run(&conn, "ROLLBACK").unwrap();
    }
    assert!(committed > 0);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), committed);
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    integrity(&conn);
    // Once the reader is gone the log is recycled, and writing goes on.
    assert_eq!(reader.run("COMMIT"), "");
    reader.finish();
    assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    run(&conn, "INSERT INTO t VALUES(1, randomblob(3000))").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), committed + 1);
    integrity(&conn);
    conn.close().unwrap();
}
