//! Tests checkpoints that run while transactions are open, and how long the log becomes.

use std::time::{Duration, Instant};

use duralite_testkit::{Fixture, integrity, one, run};
use rusqlite::{Connection, ffi};

use super::{BUSY, MODES, OK, OVERTAKEN, codes, open, rows, with_rows};

/// Runs a checkpoint. Returns whether `PRAGMA wal_checkpoint` reports that it was blocked by another connection. If the
/// pragma fails, returns SQLite's code as the error.
fn checkpoint(conn: &Connection, how: &str) -> Result<bool, i32> {
    let rows = run(conn, &format!("PRAGMA wal_checkpoint({how})"));
    rows.map(|rows| rows[0][0] == rusqlite::types::Value::Integer(1))
        .map_err(|error| duralite_testkit::code(&error))
}

const KINDS: [&str; 4] = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"];

/// Runs checkpoints of every kind in every situation. Returns for each checkpoint what [`checkpoint`] returns.
fn situations(connect: &dyn Fn() -> Connection) -> Vec<(&'static str, &'static str, Result<bool, i32>)> {
    let mut found = Vec::new();
    for kind in KINDS {
        let [a, b] = [(); 2].map(|()| connect());
        let mut note = |when, result| found.push((kind, when, result));
        let write = |conn| assert_eq!(codes(conn, "UPDATE t SET v=v+1"), OK);
        write(&a);
        note("idle", checkpoint(&a, kind));
        write(&b);
        note("after another one's commit", checkpoint(&a, kind));
        assert_eq!(codes(&b, "BEGIN; SELECT sum(v) FROM t"), OK);
        note("beside a reader of the newest state", checkpoint(&a, kind));
        write(&a);
        note("beside a reader of an older state", checkpoint(&a, kind));
        note("in a reader", checkpoint(&b, kind));
        assert_eq!(codes(&b, "COMMIT; BEGIN IMMEDIATE; UPDATE t SET v=v+1"), OK);
        note("beside a writer", checkpoint(&a, kind));
        note("in a writer", checkpoint(&b, kind));
        assert_eq!(codes(&b, "COMMIT"), OK);
        note("at the end", checkpoint(&b, kind));
        integrity(&a);
    }
    found
}

#[test]
fn each_kind_is_kept_from_its_work_where_it_is_with_the_setting_off() {
    let results = ["off", "on", "upgrade"].map(|mode| {
        let (fixture, [_first]) = with_rows::<1>("off");
        situations(&|| open(&fixture, mode))
    });
    for other in &results[1..] {
        for (off, on) in results[0].iter().zip(other) {
            assert_eq!(off, on);
        }
    }
}

#[test]
fn a_transaction_that_is_open_commits_after_checkpoints_of_others() {
    for (mode, reads) in [("on", "UPDATE t SET v=v+1 WHERE k=1"), ("upgrade", "SELECT v FROM t WHERE k=1")] {
        for by in ["off", "on"] {
            for kind in KINDS {
                let (fixture, [a, b]) = with_rows(mode);
                let checkpointer = open(&fixture, by);
                assert_eq!(codes(&a, &format!("BEGIN; {reads}")), OK);
                for _ in 0..3 {
                    checkpoint(&checkpointer, kind).unwrap();
                    assert_eq!(codes(&b, "UPDATE t SET v=v+1 WHERE k=90"), OK);
                }
                checkpoint(&checkpointer, kind).unwrap();
                assert_eq!(one::<i64>(&a, "SELECT v FROM t WHERE k=50"), 0);
                assert_eq!(codes(&a, "UPDATE t SET v=v+10 WHERE k=3; COMMIT"), OK, "{mode}, {by}, {kind}");
                assert_eq!(checkpoint(&checkpointer, "TRUNCATE"), Ok(false));
                let sum = if mode == "on" { 14 } else { 13 };
                for conn in [&a, &b, &checkpointer] {
                    assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), sum);
                    integrity(conn);
                }
            }
        }
    }
}

fn frames(conn: &Connection) -> u32 {
    let status: String = one(conn, "PRAGMA duralite");
    let frames = status.lines().find_map(|line| line.strip_prefix("log_frames\t")).unwrap();
    frames.parse().unwrap()
}

#[test]
fn the_log_starts_over_under_concurrent_connections_alone() {
    let (_fixture, [a, b]) = with_rows("on");
    for conn in [&a, &b] {
        run(conn, "PRAGMA wal_autocheckpoint=50").unwrap();
    }
    let mut most = 0;
    for round in 0..300 {
        // The two transactions overlap, so at least one of them is always open.
        let k = round % 40;
        assert_eq!(codes(&a, &format!("BEGIN; UPDATE t SET v=v+1 WHERE k={k}")), OK);
        if round > 0 {
            assert_eq!(codes(&b, "COMMIT"), OK);
        }
        assert_eq!(codes(&b, &format!("BEGIN; UPDATE t SET v=v+1 WHERE k={}", 50 + k)), OK);
        assert_eq!(codes(&a, "COMMIT"), OK);
        most = most.max(frames(&a));
    }
    assert_eq!(codes(&b, "COMMIT"), OK);
    for _ in 0..100 {
        assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=1"), OK);
    }
    assert!(frames(&a) < 100, "{}", frames(&a));
    assert!(most < 800, "{most}");
    assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 700);
    integrity(&b);
}

/// The transactions of several threads overlap, so that one is open at any time. Each is open for longer than a
/// checkpoint keeps WRITE.
#[test]
fn inv10_the_log_starts_over_while_transactions_of_threads_overlap() {
    const THREADS: u32 = 6;
    const COMMITS: u32 = 1200;
    let (fixture, [watch]) = with_rows("off");
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let conn = open(&fixture, "on");
            conn.busy_timeout(Duration::from_mins(1)).unwrap();
            run(&conn, "PRAGMA wal_autocheckpoint=50").unwrap();
            std::thread::spawn(move || {
                let mut done = 0;
                while done < COMMITS {
                    let begun = codes(&conn, &format!("BEGIN; UPDATE t SET v=v+1 WHERE k={}", 16 * thread));
                    std::thread::sleep(Duration::from_millis(8));
                    if begun == OK && codes(&conn, "COMMIT") == OK {
                        done += 1;
                    } else if !conn.is_autocommit() {
                        run(&conn, "ROLLBACK").unwrap();
                    }
                }
            })
        })
        .collect();
    let mut most = 0;
    while threads.iter().any(|thread| !thread.is_finished()) {
        most = most.max(frames(&watch));
        std::thread::sleep(Duration::from_millis(20));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(one::<u32>(&watch, "SELECT sum(v) FROM t"), THREADS * COMMITS);
    // The transactions write more than 7,200 frames in all. From 1,000 frames on the log is too large, so the log must
    // have started over in between.
    assert!(most < 4000, "{most}");
    integrity(&watch);
}

/// While one transaction stays open, another connection writes so much that the log exceeds its bound several times.
#[test]
fn inv10_who_writes_for_long_is_asked_to_end_and_who_only_reads_is_not() {
    let (fixture, [old, new]) = with_rows("on");
    let plain = open(&fixture, "off");
    for conn in [&old, &new, &plain] {
        run(conn, "PRAGMA wal_autocheckpoint=50").unwrap();
    }
    let grow = |conn: &Connection, frames: u32| {
        for _ in 0..frames / 25 {
            assert_eq!(codes(conn, "UPDATE t SET v=v+1 WHERE k>=10"), OK);
        }
    };
    // With this small cache SQLite must read the rows from the database again at each SELECT.
    run(&old, "PRAGMA cache_size=5").unwrap();
    let look = "SELECT count(pad) FROM t WHERE k<10";
    for (conn, by) in [(&old, &new), (&old, &plain)] {
        assert_eq!(codes(conn, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        std::thread::sleep(Duration::from_millis(120));
        grow(by, 12_000);
        assert_eq!(codes(conn, look), OK);
        assert_eq!(codes(conn, "COMMIT"), OK);
        grow(by, 2_000);
        assert!(frames(by) < 2_000, "{}", frames(by));

        assert_eq!(codes(conn, "BEGIN; UPDATE t SET v=-1 WHERE k=1"), OK);
        std::thread::sleep(Duration::from_millis(120));
        grow(by, 12_000);
        // Duralite stops this transaction at a SELECT. It does not stop an UPDATE, because the changes of the UPDATE
        // would then be incomplete.
        assert_eq!(codes(conn, "UPDATE t SET v=-1 WHERE k IN (2, 60)"), OK);
        assert_eq!(codes(conn, "SELECT count(pad) FROM t"), OVERTAKEN);
        // Duralite stops the writer only once. After that the transaction can read, and can be rolled back.
        assert!(!conn.is_autocommit());
        assert_eq!(codes(conn, look), OK);
        assert_eq!(one::<i64>(conn, "SELECT v FROM t WHERE k=1"), -1);
        assert_eq!(codes(conn, "ROLLBACK"), OK);
        assert_eq!(one::<i64>(conn, "SELECT v FROM t WHERE k=1"), 0);
        grow(by, 2_000);
        assert!(frames(by) < 2_000, "{}", frames(by));
    }
    // Duralite has stopped only the earlier transaction. A transaction that begins now may continue.
    assert_eq!(codes(&old, "BEGIN; UPDATE t SET v=5 WHERE k=1; SELECT count(pad) FROM t; COMMIT"), OK);
    assert_eq!(one::<i64>(&plain, "SELECT v FROM t WHERE k=1"), 5);
    integrity(&new);
}

/// All frames are in the database file. But a reader that began before the checkpoint still reads them from the log.
#[test]
fn the_log_does_not_start_over_under_a_reader_of_its_frames() {
    for mode in MODES {
        let (_fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&a, "UPDATE t SET v=1"), OK);
        assert_eq!(codes(&b, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        assert_eq!(checkpoint(&a, "PASSIVE"), Ok(false));
        for value in 2..5 {
            assert_eq!(codes(&a, &format!("UPDATE t SET v={value}")), OK);
        }
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 100, "{mode}");
        integrity(&b);
        assert_eq!(codes(&b, "COMMIT"), OK);
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 400, "{mode}");
    }
}

#[test]
fn without_automatic_checkpoints_the_log_keeps_everything() {
    for mode in MODES {
        let (_fixture, [a]) = with_rows(mode);
        run(&a, "PRAGMA wal_autocheckpoint=0").unwrap();
        let before = frames(&a);
        for _ in 0..12 {
            assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=v+1; COMMIT"), OK);
        }
        assert!(frames(&a) > before + 12 * 20, "{mode}: {}", frames(&a));
        assert_eq!(codes(&a, "PRAGMA wal_autocheckpoint=10; UPDATE t SET v=v+1 WHERE k=1"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=1"), OK);
        assert!(frames(&a) < 5, "{mode}: {}", frames(&a));
        integrity(&a);
    }
}

#[test]
fn a_log_without_room_refuses_as_with_the_setting_off() {
    let full = ["off", "on", "upgrade"].map(|mode| {
        let fixture = Fixture::new();
        let conn = fixture.open_with("c.db", &format!("concurrent={mode}&log_limit=4M"));
        rows(&conn);
        run(&conn, "PRAGMA cache_size=10").unwrap();
        let big = "BEGIN; CREATE TABLE big AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n \
                   WHERE i<3000) SELECT randomblob(4000) FROM n; COMMIT";
        let result = codes(&conn, big);
        if !conn.is_autocommit() {
            run(&conn, "ROLLBACK").unwrap();
        }
        // The connection and all others can continue to write.
        assert_eq!(codes(&conn, "BEGIN; UPDATE t SET v=1 WHERE k=1; COMMIT"), OK, "{mode}");
        let other = open(&fixture, "off");
        assert_eq!(codes(&other, "UPDATE t SET v=v+1 WHERE k=1"), OK, "{mode}");
        assert_eq!(one::<i64>(&conn, "SELECT sum(v) FROM t"), 2);
        integrity(&other);
        drop((conn, other));
        fixture.assert_plain("c.db");
        result
    });
    assert!(full[0] == ffi::SQLITE_FULL || full[0] == OK, "{full:?}");
    assert_eq!(full, [full[0]; 3]);
}

/// A checkpoint holds WRITE, and waits for the end of a transaction. The transaction waits for WRITE.
#[test]
fn a_checkpoint_and_a_transaction_do_not_wait_for_each_other() {
    const LONG: Duration = Duration::from_secs(20);
    for (mode, begin) in [("on", "UPDATE t SET v=v+1 WHERE k=1"), ("upgrade", "SELECT v FROM t WHERE k=1")] {
        for by in ["off", "on"] {
            let (fixture, [a, b]) = with_rows(mode);
            let checkpointer = open(&fixture, by);
            assert_eq!(codes(&a, &format!("BEGIN; {begin}")), OK);
            assert_eq!(codes(&b, "UPDATE t SET v=v+1 WHERE k=90"), OK);
            checkpointer.busy_timeout(LONG).unwrap();
            a.busy_timeout(LONG).unwrap();
            let thread = std::thread::spawn(move || {
                let result = checkpoint(&checkpointer, "RESTART");
                (checkpointer, result)
            });
            while codes(&b, "BEGIN IMMEDIATE; ROLLBACK") == OK {
                std::thread::yield_now();
            }
            let start = Instant::now();
            let result = codes(&a, "UPDATE t SET v=v+1 WHERE k=3; COMMIT");
            assert!(start.elapsed() < LONG / 2, "{mode}, {by}: {result}");
            // The checkpoint of a concurrent connection (`by`) sometimes releases WRITE for a moment. If the
            // transaction gets WRITE in such a moment, it may commit.
            let lost = if mode == "on" { OVERTAKEN } else { BUSY };
            assert!(result == lost || by == "on" && result == OK, "{mode}, {by}: {result}");
            if !a.is_autocommit() {
                run(&a, "ROLLBACK").unwrap();
            }
            let (checkpointer, done) = thread.join().unwrap();
            assert_eq!(done, Ok(false));
            assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=3"), OK);
            integrity(&checkpointer);
        }
    }
}

/// The fate of the file of an open database.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Deleted,
    Renamed,
    Replaced,
}

/// Checkpoints a database whose path no longer leads to it. Returns the results.
fn checkpoints_after(conn: &Connection, path: &std::path::Path, fate: Fate) -> Vec<Result<bool, i32>> {
    assert_eq!(codes(conn, "PRAGMA wal_autocheckpoint=0; UPDATE t SET v=v+1"), OK);
    let moved = path.with_extension("moved");
    match fate {
        Fate::Deleted => std::fs::remove_file(path).unwrap(),
        Fate::Renamed => std::fs::rename(path, &moved).unwrap(),
        Fate::Replaced => {
            std::fs::rename(path, &moved).unwrap();
            let other = Connection::open(path).unwrap();
            other.execute_batch("CREATE TABLE other(a)").unwrap();
        }
    }
    let found = KINDS.iter().map(|kind| checkpoint(conn, kind)).collect();
    assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 100);
    integrity(conn);
    found
}

#[test]
fn a_database_that_was_deleted_or_renamed_is_checkpointed_as_with_the_setting_off() {
    for fate in [Fate::Deleted, Fate::Renamed, Fate::Replaced] {
        let fixture = Fixture::new();
        let path = fixture.path("theirs.db");
        let theirs = duralite_testkit::stock(&path);
        run(&theirs, "PRAGMA journal_mode=WAL").unwrap();
        super::rows(&theirs);
        let expected = checkpoints_after(&theirs, &path, fate);
        for mode in ["off", "on", "upgrade"] {
            let (fixture, [a]) = with_rows(mode);
            let path = fixture.path("c.db");
            assert_eq!(checkpoints_after(&a, &path, fate), expected, "{mode}, {fate:?}");
            if matches!(fate, Fate::Deleted) {
                continue;
            }
            // The file has all commits.
            let moved = path.with_extension("moved");
            let copy = fixture.path("copy.db");
            drop(a);
            std::fs::copy(&moved, &copy).unwrap();
            let plain = duralite_testkit::stock(&copy);
            assert_eq!(one::<i64>(&plain, "SELECT sum(v) FROM t"), 100, "{mode}, {fate:?}");
            integrity(&plain);
        }
    }
}

/// While a reader is open, a checkpoint must stop at the newest commit that the reader sees. A checkpoint after the
/// reader's end writes the rest.
#[test]
fn a_renamed_database_with_a_reader_is_checkpointed_in_part() {
    for mode in MODES {
        let (fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&a, "PRAGMA wal_autocheckpoint=0; UPDATE t SET v=1"), OK);
        assert_eq!(codes(&b, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=2"), OK);
        std::fs::rename(fixture.path("c.db"), fixture.path("moved.db")).unwrap();
        assert_eq!(KINDS.map(|kind| checkpoint(&a, kind)), [Ok(false), Ok(true), Ok(true), Ok(true)]);
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 100);
        integrity(&b);
        assert_eq!(codes(&b, "COMMIT"), OK);
        assert_eq!(KINDS.map(|kind| checkpoint(&a, kind)), [Ok(false); 4]);
        for value in 3..6 {
            assert_eq!(codes(&a, &format!("UPDATE t SET v={value}")), OK);
            assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 100 * value);
            assert_eq!(checkpoint(&b, "TRUNCATE"), Ok(false));
        }
        integrity(&b);
    }
}
