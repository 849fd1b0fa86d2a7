//! Tests a transaction that first only reads, and begins to write after other transactions have committed
//! changes.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Engine, integrity, one};
use rusqlite::Connection;

use super::{BUSY, OK, OVERTAKEN, codes, on_engine, open, with_rows};

/// A time that is longer than any other thread needs in these tests.
const LONG: Duration = Duration::from_secs(60);
const READ: &str = "BEGIN; SELECT v FROM t WHERE k=1";

#[test]
fn it_goes_on_at_the_newest_commit_if_what_it_read_is_unchanged() {
    let (_fixture, [a, b]) = with_rows("upgrade");
    assert_eq!(codes(&a, READ), OK);
    assert_eq!(codes(&b, "UPDATE t SET v=1 WHERE k=90"), OK);
    assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=1; UPDATE t SET v=v+1 WHERE k=90; COMMIT"), OK);
    for conn in [&a, &b] {
        assert_eq!(one::<i64>(conn, "SELECT v FROM t WHERE k=90"), 2, "the update of another one is lost");
        assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 3);
        integrity(conn);
    }
}

/// A program may use a connection on one thread after another, as thread pools do. So a connection that has
/// taken WRITE on this thread may release it on another thread.
#[test]
fn it_waits_for_a_connection_that_took_the_lock_on_the_same_thread() {
    static WRITER: Mutex<Option<Connection>> = Mutex::new(None);
    for mode in ["upgrade", "on"] {
        let (_fixture, [mut a, b]) = with_rows(mode);
        assert_eq!(codes(&a, READ), OK);
        assert_eq!(codes(&b, "BEGIN IMMEDIATE; UPDATE t SET v=1 WHERE k=90"), OK);
        *WRITER.lock().unwrap() = Some(b);
        // SQLite calls this handler once the transaction waits.
        let commits_elsewhere = |_| {
            if let Some(conn) = WRITER.lock().unwrap().take() {
                std::thread::spawn(move || assert_eq!(codes(&conn, "COMMIT"), OK)).join().unwrap();
            }
            true
        };
        a.busy_handler(Some(commits_elsewhere)).unwrap();
        assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=1; COMMIT"), OK, "{mode}");
        assert!(WRITER.lock().unwrap().is_none(), "{mode}: nobody has waited");
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 2, "{mode}");
        integrity(&a);
    }
}

#[test]
fn inv60_it_fails_at_the_write_if_a_page_has_changed_that_it_read() {
    let changes = [
        "UPDATE t SET v=1 WHERE k=1",
        "UPDATE t SET v=1 WHERE k=0",
        "INSERT INTO t VALUES(1000, 0, hex(zeroblob(5000)))",
        "CREATE TABLE w(a)",
        "DELETE FROM t WHERE k > 50",
        "PRAGMA user_version=5",
        // These statements change the size of the database and its free list, but no page that the
        // transaction has read.
        "INSERT INTO u VALUES(zeroblob(40000))",
        "DELETE FROM u",
    ];
    for change in changes {
        let (_fixture, [a, b]) = with_rows("upgrade");
        assert_eq!(codes(&b, "CREATE TABLE u(a); INSERT INTO u VALUES(zeroblob(40000))"), OK);
        assert_eq!(codes(&a, READ), OK);
        assert_eq!(codes(&b, change), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=v+10 WHERE k=40"), OVERTAKEN, "{change}");
        // As with stock SQLite, the transaction can continue to read its snapshot.
        assert!(!a.is_autocommit());
        assert_eq!(one::<i64>(&a, "SELECT v FROM t WHERE k=1"), 0);
        assert_eq!(one::<i64>(&a, "SELECT count(*) FROM t"), 100);
        assert_eq!(codes(&a, "ROLLBACK; BEGIN; UPDATE t SET v=v+10 WHERE k=40; COMMIT"), OK);
        // The connection has released the lock.
        assert_eq!(codes(&b, "UPDATE t SET v=v+10 WHERE k=41"), OK);
        integrity(&b);
    }
}

/// The other transaction frees as many pages as it allocates. So page 1 looks as before, but the interior
/// page above the rows has changed. If SQLite continued, it would use its old copy of that page.
#[test]
fn inv60_it_fails_at_the_write_if_an_interior_page_has_changed_that_it_read() {
    let (_fixture, [a, b]) = with_rows("upgrade");
    let pages = one::<i64>(&b, "PRAGMA page_count");
    assert_eq!(codes(&a, READ), OK);
    assert_eq!(codes(&b, "BEGIN; DELETE FROM t WHERE k BETWEEN 40 AND 59"), OK);
    while one::<i64>(&b, "PRAGMA freelist_count") > 0 {
        assert_eq!(codes(&b, "INSERT INTO t(v, pad) VALUES(0, hex(zeroblob(500)))"), OK);
    }
    assert_eq!(codes(&b, "COMMIT"), OK);
    assert_eq!(one::<i64>(&b, "PRAGMA page_count"), pages);
    assert_eq!(codes(&a, "UPDATE t SET v=v+10 WHERE k=99"), OVERTAKEN);
    assert_eq!(codes(&a, "ROLLBACK; BEGIN; UPDATE t SET v=v+10 WHERE k=99; COMMIT"), OK);
    assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 10);
    integrity(&b);
}

/// All commits were in the database file when the transaction began, so the log may start over. The
/// transaction then continues with frames that have lower numbers than the frames that it has seen.
#[test]
fn inv60_it_goes_on_in_a_log_that_has_started_over() {
    let (_fixture, [a, b]) = with_rows("upgrade");
    assert_eq!(codes(&b, "PRAGMA wal_checkpoint(PASSIVE)"), OK);
    assert_eq!(codes(&a, READ), OK);
    assert_eq!(codes(&b, "UPDATE t SET v=5 WHERE k=90"), OK);
    assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=90; COMMIT"), OK);
    for conn in [&a, &b] {
        assert_eq!(one::<i64>(conn, "SELECT v FROM t WHERE k=90"), 6, "the update of another one is lost");
        integrity(conn);
    }
}

/// A connection that stays on this thread cannot give WRITE back while this thread waits.
#[test]
fn it_does_not_wait_long_for_a_connection_on_the_same_thread() {
    let (_fixture, [a, b]) = with_rows("upgrade");
    a.busy_timeout(LONG).unwrap();
    assert_eq!(codes(&a, READ), OK);
    assert_eq!(codes(&b, "BEGIN IMMEDIATE"), OK);
    let start = Instant::now();
    assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=1"), BUSY);
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(codes(&b, "COMMIT"), OK);
    assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=1; COMMIT"), OK);
    integrity(&b);
}

#[test]
fn it_waits_for_a_thread() {
    for mode in ["upgrade", "off"] {
        let (_fixture, [a]) = with_rows("upgrade");
        let b = open(&_fixture, mode);
        assert_eq!(codes(&b, "BEGIN IMMEDIATE; UPDATE t SET v=5 WHERE k=90"), OK);
        a.busy_timeout(LONG).unwrap();
        assert_eq!(codes(&a, READ), OK);
        // On another thread, `a` waits for the lock. Meanwhile `b`, which holds the lock, commits on this
        // thread.
        let waiting = std::thread::spawn(move || {
            let result = codes(&a, "UPDATE t SET v=v+1 WHERE k=1; UPDATE t SET v=v+1 WHERE k=90; COMMIT");
            (a, result)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(codes(&b, "COMMIT"), OK);
        let (a, result) = waiting.join().unwrap();
        assert_eq!(result, OK, "{mode}");
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 7);
        integrity(&a);
    }
}

#[test]
fn it_waits_for_a_process_as_long_as_its_busy_timeout() {
    for engine in Engine::all() {
        let (fixture, [a]) = on_engine(engine, "upgrade");
        let mut other = Actor::sql(&fixture.uri("c.db", "concurrent=upgrade"));
        assert_eq!(other.run("BEGIN IMMEDIATE"), "");
        assert_eq!(other.run("UPDATE t SET v=5 WHERE k=90"), "");
        assert_eq!(codes(&a, READ), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=1"), BUSY);
        a.busy_timeout(Duration::from_millis(50)).unwrap();
        let start = Instant::now();
        assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=1"), BUSY);
        assert!(start.elapsed() >= Duration::from_millis(40));
        a.busy_timeout(LONG).unwrap();
        let waiting = std::thread::spawn(move || {
            let result = codes(&a, "UPDATE t SET v=v+1 WHERE k=1; COMMIT");
            (a, result)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(other.run("COMMIT"), "");
        let (a, result) = waiting.join().unwrap();
        assert_eq!(result, OK, "{engine:?}");
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 6);
        other.finish();
    }
}

#[test]
fn it_waits_for_a_process_that_dies() {
    for engine in Engine::all() {
        let (fixture, [a]) = on_engine(engine, "upgrade");
        let mut other = Actor::sql(&fixture.uri("c.db", "concurrent=on"));
        assert_eq!(other.run("BEGIN IMMEDIATE"), "");
        assert_eq!(other.run("UPDATE t SET v=5 WHERE k=90"), "");
        a.busy_timeout(LONG).unwrap();
        assert_eq!(codes(&a, READ), OK);
        let waiting = std::thread::spawn(move || {
            let result = codes(&a, "UPDATE t SET v=v+1 WHERE k=1; COMMIT");
            (a, result)
        });
        std::thread::sleep(Duration::from_millis(20));
        other.kill();
        let (a, result) = waiting.join().unwrap();
        assert_eq!(result, OK, "{engine:?}");
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 1);
        integrity(&a);
    }
}

#[test]
fn sixteen_connections_that_read_and_then_write_all_succeed() {
    let (fixture, [first]) = with_rows("upgrade");
    let threads: Vec<_> = (0..16)
        .map(|thread| {
            let conn = open(&fixture, "upgrade");
            conn.busy_timeout(LONG).unwrap();
            // The rows of each thread are on pages of their own.
            let k = 6 * thread;
            std::thread::spawn(move || {
                for _ in 0..5 {
                    let sql =
                        format!("BEGIN; SELECT v FROM t WHERE k={k}; UPDATE t SET v=v+1 WHERE k={k}; COMMIT");
                    assert_eq!(codes(&conn, &sql), OK);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(one::<i64>(&first, "SELECT sum(v) FROM t"), 80);
    integrity(&first);
}
