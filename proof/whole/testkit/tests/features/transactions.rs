//! Tests savepoints, rollbacks, and transactions larger than the cache.

use duralite_testkit::{Fixture, Outcome, code, integrity, one, run, stock};
use rusqlite::ffi;

use super::{content, fill, status_of};

#[test]
fn savepoints() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    fill(&conn, 100);
    conn.execute_batch(
        "PRAGMA cache_size=5;
         BEGIN; DELETE FROM t WHERE a <= 10;
         SAVEPOINT one; UPDATE t SET b = randomblob(3000);
         SAVEPOINT two; DELETE FROM t; ROLLBACK TO two; DELETE FROM t WHERE a <= 20; RELEASE two;
         ROLLBACK TO one; INSERT INTO t VALUES(1000, x'01'); RELEASE one; COMMIT",
    )
    .unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t WHERE length(b) <= 100"), 91);
    integrity(&conn);
    drop(conn);
    fixture.assert_plain("s.db");
}

#[test]
fn transactions_larger_than_the_cache() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    run(&conn, "PRAGMA cache_size=5").unwrap();
    fill(&conn, 4000);
    let before = content(&conn);
    conn.execute_batch("BEGIN; UPDATE t SET b = randomblob(100); UPDATE t SET b = randomblob(90)").unwrap();
    let reader = fixture.open("s.db");
    assert_eq!(content(&reader), before);
    run(&conn, "ROLLBACK").unwrap();
    assert_eq!(content(&conn), before);
    conn.execute_batch("BEGIN; UPDATE t SET b = randomblob(100); UPDATE t SET b = x'02'; COMMIT").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT sum(length(b)) FROM t"), 4000);
    integrity(&reader);
    drop((conn, reader));
    fixture.assert_plain("s.db");
}

#[test]
fn rolled_back_transactions_take_no_space_for_good() {
    let fixture = Fixture::new();
    let conn = fixture.open("r.db");
    conn.execute_batch("PRAGMA cache_size=5; PRAGMA wal_autocheckpoint=0").unwrap();
    fill(&conn, 500);
    let size = || std::fs::metadata(fixture.log()).unwrap().len();
    for _ in 0..3 {
        conn.execute_batch("BEGIN; UPDATE t SET b = randomblob(100); ROLLBACK").unwrap();
    }
    let grown = size();
    for _ in 0..50 {
        conn.execute_batch("BEGIN; UPDATE t SET b = randomblob(100); ROLLBACK").unwrap();
    }
    assert_eq!(size(), grown);
    let guarantee = if fixture.engine().is_in_memory() { "process-crash" } else { "power-loss" };
    assert_eq!(status_of(&conn)["guarantee"], guarantee);
    integrity(&conn);
}

#[test]
fn writers_exclude_each_other() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.open("w.db"), fixture.open("w.db"));
    fill(&first, 10);
    run(&first, "BEGIN IMMEDIATE").unwrap();
    assert_eq!(code(&run(&second, "BEGIN IMMEDIATE").unwrap_err()), ffi::SQLITE_BUSY);
    run(&second, "BEGIN").unwrap();
    assert_eq!(content(&second).len(), 10);
    run(&first, "DELETE FROM t WHERE a = 1").unwrap();
    run(&first, "COMMIT").unwrap();
    let error = run(&second, "DELETE FROM t WHERE a = 2").unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_BUSY_SNAPSHOT);
    assert_eq!(content(&second).len(), 10);
    run(&second, "COMMIT").unwrap();
    assert_eq!(content(&second).len(), 9);
}

/// Statements by which the first connection locks all others out of the database. Before each statement is
/// the number of the connection that runs it.
const EXCLUSIVE: &[(usize, &str)] = &[
    (0, "PRAGMA locking_mode=EXCLUSIVE"),
    (0, "PRAGMA journal_mode=WAL"),
    (0, "CREATE TABLE t(a)"),
    (0, "INSERT INTO t VALUES(1), (2), (3)"),
    (1, "SELECT * FROM t"),
    // A log that was opened in exclusive mode has no shared memory. SQLite returns to normal mode only if it
    // leaves WAL mode.
    (0, "PRAGMA locking_mode=NORMAL"),
    (0, "SELECT * FROM t"),
    (1, "SELECT * FROM t"),
    (0, "PRAGMA journal_mode=DELETE"),
    (0, "PRAGMA locking_mode=NORMAL"),
    (0, "SELECT * FROM t"),
    (0, "PRAGMA journal_mode=WAL"),
    (1, "DELETE FROM t WHERE a = 1"),
    // If the log was opened in normal mode, a connection can take exclusive mode for a while, but only if no
    // other connection is open.
    (0, "PRAGMA locking_mode=EXCLUSIVE"),
    (0, "SELECT * FROM t"),
    (0, "INSERT INTO t VALUES(4)"),
    (1, "SELECT * FROM t"),
    (0, "PRAGMA locking_mode=NORMAL"),
    (0, "SELECT * FROM t"),
    (1, "INSERT INTO t VALUES(5)"),
    (1, "SELECT * FROM t"),
    (0, "SELECT * FROM t"),
];

/// Statements, each with the number of the connection that runs it. The log was opened in normal mode. When
/// connection 0 takes exclusive mode, connection 1 has not used the database yet.
const FOR_A_WHILE: &[(usize, &str)] = &[
    (0, "PRAGMA journal_mode=WAL"),
    (0, "CREATE TABLE t(a)"),
    (0, "PRAGMA locking_mode=EXCLUSIVE"),
    (0, "INSERT INTO t VALUES(4)"),
    (1, "SELECT * FROM t"),
    (0, "PRAGMA locking_mode=NORMAL"),
    (0, "SELECT * FROM t"),
    (1, "SELECT * FROM t"),
    (0, "INSERT INTO t VALUES(5)"),
    (1, "SELECT * FROM t"),
    (1, "INSERT INTO t VALUES(6)"),
    (0, "SELECT * FROM t"),
];

#[test]
fn exclusive_locking() {
    for steps in [EXCLUSIVE, FOR_A_WHILE] {
        let fixture = Fixture::new();
        let ours = [(); 2].map(|()| duralite_testkit::connect(&fixture.uri("ours.db", "")).unwrap());
        let theirs = [(); 2].map(|()| stock(&fixture.path("theirs.db")));
        for (number, (connection, sql)) in steps.iter().enumerate() {
            let [ours, theirs] = [&ours, &theirs].map(|conns| Outcome::of(run(&conns[*connection], sql)));
            assert_eq!(ours, theirs, "statement {number}, {sql}");
            if number == 4 {
                assert!(fixture.is_guarded("ours.db"));
            }
        }
        drop((ours, theirs));
        fixture.assert_plain("ours.db");
        let [ours, theirs] = ["ours.db", "theirs.db"].map(|name| std::fs::read(fixture.path(name)).unwrap());
        assert!(ours == theirs, "the files differ");
    }
}
