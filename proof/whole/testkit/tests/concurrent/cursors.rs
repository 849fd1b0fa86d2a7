//! Tests a SELECT that stays open while its own connection and others commit.

use duralite_testkit::{Fixture, integrity, one, run, stock};
use rusqlite::{Connection, Rows};

use super::{MODES, OK, OVERTAKEN, codes, open, rows, with_rows};

/// Fetches up to `count` rows of a SELECT of `k` and `v`. Appends each `v` to `values`.
fn step(cursor: &mut Rows<'_>, count: usize, values: &mut Vec<i64>) {
    for _ in 0..count {
        let Some(row) = cursor.next().unwrap() else { return };
        values.push(row.get(1).unwrap());
    }
}

/// Runs a SELECT while its connection commits twice. Returns the values that the SELECT saw, the sum of the result
/// codes, and the sum of `v` at the end.
fn across_own_commits(conn: &Connection, begin: &str) -> (Vec<i64>, i32, i64) {
    let mut statement = conn.prepare("SELECT k, v FROM t").unwrap();
    let (mut cursor, mut values) = (statement.query([]).unwrap(), Vec::new());
    step(&mut cursor, 10, &mut values);
    let mut result = codes(conn, &format!("{begin}; UPDATE t SET v=1 WHERE k >= 5; COMMIT"));
    step(&mut cursor, 40, &mut values);
    result +=
        codes(conn, &format!("{begin}; UPDATE t SET v=v+1 WHERE k >= 60; DELETE FROM t WHERE k=90; COMMIT"));
    result += codes(conn, &format!("{begin}; UPDATE t SET v=7; ROLLBACK"));
    step(&mut cursor, 1000, &mut values);
    (values, result, one(conn, "SELECT sum(v) FROM t"))
}

#[test]
fn across_commits_of_its_own_connection() {
    let fixture = Fixture::new();
    for begin in ["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT s; RELEASE s; BEGIN"] {
        let path = fixture.path(&format!("theirs-{}.db", begin.len()));
        let theirs = stock(&path);
        run(&theirs, "PRAGMA journal_mode=WAL").unwrap();
        rows(&theirs);
        let expected = across_own_commits(&theirs, begin);
        for mode in MODES {
            let (_fixture, [ours, other]) = with_rows(mode);
            assert_eq!(across_own_commits(&ours, begin), expected, "{mode}, {begin}");
            assert_eq!(one::<i64>(&other, "SELECT sum(v) FROM t"), expected.2);
            integrity(&other);
        }
    }
}

#[test]
fn across_commits_of_others_it_sees_its_snapshot() {
    for mode in MODES {
        let (_fixture, [a, b]) = with_rows(mode);
        let mut statement = a.prepare("SELECT k, v FROM t").unwrap();
        let (mut cursor, mut values) = (statement.query([]).unwrap(), Vec::new());
        step(&mut cursor, 10, &mut values);
        assert_eq!(codes(&b, "UPDATE t SET v=1; UPDATE t SET v=2"), OK);
        step(&mut cursor, 10, &mut values);
        // As with stock SQLite, the connection cannot write while the cursor keeps the old snapshot.
        assert_eq!(codes(&a, "UPDATE t SET v=5 WHERE k=99"), OVERTAKEN);
        assert_eq!(codes(&b, "PRAGMA wal_checkpoint(PASSIVE); UPDATE t SET v=3"), OK);
        step(&mut cursor, 1000, &mut values);
        assert_eq!(values, [0; 100], "{mode}");
        drop(cursor);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 300);
        assert_eq!(codes(&a, "UPDATE t SET v=5 WHERE k=99"), OK);
    }
}

#[test]
fn across_a_commit_that_was_merged_with_those_of_others() {
    let (_fixture, [a, b]) = with_rows("on");
    let mut statement = a.prepare("SELECT k, v FROM t WHERE k >= 50").unwrap();
    let (mut cursor, mut values) = (statement.query([]).unwrap(), Vec::new());
    step(&mut cursor, 10, &mut values);
    assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=95"), OK);
    assert_eq!(codes(&b, "UPDATE t SET v=2 WHERE k=3"), OK);
    assert_eq!(codes(&a, "COMMIT"), OK);
    // While this cursor is open, the connection sees its old snapshot and its own writes.
    assert_eq!(one::<i64>(&a, "SELECT v FROM t WHERE k=3"), 0);
    assert_eq!(one::<i64>(&a, "SELECT v FROM t WHERE k=95"), 1);
    let second = codes(&a, "BEGIN; UPDATE t SET v=v+5 WHERE k=3; COMMIT");
    assert_eq!(second, OVERTAKEN, "the update of another one would be lost");
    if !a.is_autocommit() {
        assert_eq!(codes(&a, "ROLLBACK"), OK);
    }
    step(&mut cursor, 1000, &mut values);
    assert_eq!(values.iter().sum::<i64>(), 1);
    drop(cursor);
    for conn in [&a, &b] {
        assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 3);
        assert_eq!(codes(conn, "UPDATE t SET v=v+1 WHERE k=50"), OK);
        integrity(conn);
        assert_eq!(codes(conn, "UPDATE t SET v=0 WHERE k=50"), OK);
    }
}

#[test]
fn the_log_starts_over_under_a_cursor_that_reads_the_file() {
    for mode in MODES {
        let (_fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&b, "PRAGMA wal_checkpoint(TRUNCATE)"), OK);
        let mut statement = a.prepare("SELECT k, v FROM t").unwrap();
        let (mut cursor, mut values) = (statement.query([]).unwrap(), Vec::new());
        step(&mut cursor, 10, &mut values);
        for value in 1..4 {
            assert_eq!(codes(&b, &format!("UPDATE t SET v={value}; PRAGMA wal_checkpoint")), OK);
        }
        step(&mut cursor, 1000, &mut values);
        assert_eq!(values, [0; 100], "{mode}");
        drop(cursor);
        assert_eq!(codes(&a, "PRAGMA wal_checkpoint(TRUNCATE)"), OK);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 300);
        integrity(&a);
    }
}

/// While a SELECT stays open, SQLite does not read the database size and the free list again. If Duralite added free
/// pages in a commit of this connection, the next commits of SQLite would remove them again.
#[test]
fn inv64_a_commit_beside_an_open_select_adds_no_free_pages() {
    for (before, after) in [
        ("SELECT 1", "UPDATE u SET a=30 WHERE a=3"),
        ("INSERT INTO t VALUES(zeroblob(60000)); DELETE FROM t", "PRAGMA user_version=7"),
        ("SELECT 1", "BEGIN; PRAGMA user_version=1; ROLLBACK; INSERT INTO t VALUES(zeroblob(9000))"),
        ("SELECT 1", "BEGIN; INSERT INTO t VALUES(zeroblob(90000)); COMMIT; UPDATE u SET a=30 WHERE a=3"),
    ] {
        let fixture = Fixture::new();
        let [conn, reader, other] = ["on", "off", "off"].map(|mode| open(&fixture, mode));
        let tables = "CREATE TABLE t(a); CREATE TABLE u(a); INSERT INTO u VALUES(1),(2),(3)";
        assert_eq!(codes(&conn, tables), OK);
        assert_eq!(codes(&conn, before), OK, "{before}");
        // A commit adds free pages only if another connection is in use, so this reader begins a transaction.
        assert_eq!(codes(&reader, "BEGIN; SELECT * FROM u"), OK);
        let mut statement = conn.prepare("SELECT a FROM u").unwrap();
        let mut cursor = statement.query([]).unwrap();
        cursor.next().unwrap();
        assert_eq!(codes(&conn, "BEGIN; INSERT INTO t VALUES(zeroblob(9000)); COMMIT"), OK, "{before}");
        assert_eq!(codes(&conn, after), OK, "{after}");
        drop(cursor);
        [&conn, &other].into_iter().for_each(integrity);
        assert_eq!(codes(&other, "INSERT INTO t VALUES(zeroblob(90000))"), OK);
        integrity(&conn);
    }
}

/// The open SELECT is on another connection, which shares SQLite's cache with the connection that commits.
#[test]
fn inv64_after_a_commit_that_has_added_free_pages_a_shared_cache_begins_anew() {
    let fixture = Fixture::new();
    let [first, second] = [(); 2].map(|()| fixture.open_with("c.db", "cache=shared&concurrent=on"));
    let reader = open(&fixture, "off");
    assert_eq!(codes(&first, "CREATE TABLE t(a); CREATE TABLE u(a); INSERT INTO u VALUES(1),(2),(3)"), OK);
    assert_eq!(codes(&reader, "BEGIN; SELECT * FROM u"), OK);
    let mut statement = second.prepare("SELECT a FROM u").unwrap();
    let mut cursor = statement.query([]).unwrap();
    cursor.next().unwrap();
    let add = "BEGIN; INSERT INTO t VALUES(zeroblob(9000)); COMMIT";
    assert_eq!(codes(&first, add), OK);
    assert_eq!(codes(&first, add), OVERTAKEN);
    assert_eq!(codes(&first, "ROLLBACK; PRAGMA user_version=7"), OVERTAKEN);
    drop(cursor);
    assert_eq!(codes(&first, add), OK);
    integrity(&first);
}

/// If a transaction does not fit into memory, its commit leaves the pages as SQLite wrote them. The free list then has
/// the order that Duralite showed to SQLite, and the database has the size that SQLite knows.
#[test]
fn after_a_large_commit_beside_an_open_select_the_connection_writes_on() {
    for mode in MODES {
        let fixture = Fixture::new();
        let [conn, reader] = [mode, "off"].map(|mode| open(&fixture, mode));
        let tables = "CREATE TABLE t(a); CREATE TABLE u(a); INSERT INTO u VALUES(1),(2),(3)";
        assert_eq!(codes(&conn, tables), OK);
        assert_eq!(codes(&reader, "BEGIN; SELECT * FROM u"), OK);
        // From here on the connection leases pages.
        assert_eq!(codes(&conn, "BEGIN; INSERT INTO t VALUES(zeroblob(9000)); COMMIT"), OK);
        assert_eq!(codes(&conn, "PRAGMA cache_size=-500"), OK);
        let mut statement = conn.prepare("SELECT a FROM u").unwrap();
        let mut cursor = statement.query([]).unwrap();
        cursor.next().unwrap();
        let large = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
                     INSERT INTO t SELECT zeroblob(3500) FROM n";
        assert_eq!(codes(&conn, &format!("BEGIN; {large}; COMMIT")), OK, "{mode}");
        assert_eq!(codes(&conn, "UPDATE u SET a=30 WHERE a=3"), OK, "{mode}");
        assert_eq!(codes(&conn, "BEGIN; INSERT INTO t VALUES(zeroblob(9000)); COMMIT"), OK, "{mode}");
        drop(cursor);
        [&conn, &reader].into_iter().for_each(integrity);
    }
}
