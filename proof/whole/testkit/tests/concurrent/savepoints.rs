//! Tests savepoints, rollbacks of statements and transactions, and transactions larger than the cache.

use duralite_testkit::{Fixture, dump, integrity, one, run, stock};
use rusqlite::Connection;

use super::{BUSY, MODES, OK, codes, open, with_rows};

/// Runs a script statement by statement, and continues after errors. Returns the code of each statement, and
/// the final content.
fn outcome(conn: &Connection, script: &str) -> (Vec<i32>, String) {
    let codes = script.split(';').map(|sql| codes(conn, sql)).collect();
    (codes, format!("{:?}", dump(conn)))
}

/// Asserts that a script gives the same results in each mode as on stock SQLite, and that another connection
/// then sees the same content.
pub(super) fn same(script: &str) {
    let fixture = Fixture::new();
    let theirs = stock(&fixture.path("theirs.db"));
    run(&theirs, "PRAGMA journal_mode=WAL").unwrap();
    let expected = outcome(&theirs, script);
    for mode in MODES {
        let fixture = Fixture::new();
        let ours = open(&fixture, mode);
        assert_eq!(outcome(&ours, script), expected, "{mode}");
        integrity(&ours);
        let other = open(&fixture, "off");
        assert_eq!(format!("{:?}", dump(&other)), expected.1, "{mode}: what is committed");
        integrity(&other);
        drop((ours, other));
        fixture.assert_plain("c.db");
    }
}

const FILL: &str = "CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB, c UNIQUE);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
    INSERT INTO t SELECT i, hex(zeroblob(100)), -i FROM n";

#[test]
fn savepoints_with_and_without_spill() {
    for cache in [5, 2000] {
        same(&format!(
            "PRAGMA cache_size={cache}; {FILL};
             BEGIN; DELETE FROM t WHERE a <= 10;
             SAVEPOINT one; UPDATE t SET b = hex(zeroblob(1500));
             SAVEPOINT two; DELETE FROM t; ROLLBACK TO two; DELETE FROM t WHERE a <= 20; RELEASE two;
             ROLLBACK TO one; INSERT INTO t VALUES(1000, x'01', 1); RELEASE one; COMMIT;
             SAVEPOINT outer; UPDATE t SET b = 7; SAVEPOINT inner; UPDATE t SET b = 8; ROLLBACK TO outer;
             UPDATE t SET b = 9 WHERE a > 100; RELEASE outer;
             BEGIN; UPDATE t SET b = hex(zeroblob(1400)); ROLLBACK;
             SAVEPOINT outer; UPDATE t SET b = 7; ROLLBACK; UPDATE t SET b = 3 WHERE a = 50"
        ));
    }
}

#[test]
fn statements_that_fail_are_rolled_back_alone() {
    same(&format!(
        "PRAGMA cache_size=5; {FILL}; BEGIN;
         UPDATE t SET b = hex(zeroblob(900)), c = CASE a WHEN 250 THEN -251 ELSE c END;
         UPDATE OR IGNORE t SET b = 1, c = CASE a WHEN 250 THEN -251 ELSE c END;
         UPDATE OR REPLACE t SET b = 2, c = CASE a WHEN 240 THEN -251 ELSE c END WHERE a > 200;
         UPDATE OR FAIL t SET b = 3, c = CASE a WHEN 50 THEN -49 ELSE c END WHERE a < 100;
         INSERT INTO t VALUES(5000, zeroblob(3000), 9), (1, 1, 1);
         INSERT INTO t VALUES(5000, zeroblob(3000), -2) ON CONFLICT(c) DO UPDATE SET b = 'upsert';
         COMMIT;
         BEGIN; UPDATE t SET b = 5; UPDATE OR ROLLBACK t SET b = 4, c = -3; SELECT 1; COMMIT"
    ));
}

#[test]
fn a_transaction_of_several_regions_of_the_wal_index() {
    // Pages are small, so that a transaction has more frames than a region of the wal-index holds.
    same(&format!(
        "PRAGMA page_size=512; PRAGMA journal_mode=DELETE; VACUUM; PRAGMA journal_mode=WAL; {FILL};
         PRAGMA cache_size=5;
         BEGIN; UPDATE t SET b = hex(zeroblob(4500));
         SAVEPOINT one; UPDATE t SET b = hex(zeroblob(300)); ROLLBACK TO one;
         UPDATE t SET b = hex(zeroblob(200)) WHERE a < 100; COMMIT;
         BEGIN; UPDATE t SET b = hex(zeroblob(4000)); ROLLBACK;
         BEGIN; DELETE FROM t WHERE a > 10; COMMIT; VACUUM"
    ));
}

#[test]
fn a_savepoint_that_is_rolled_back_leaves_no_conflict_behind_it_unnoticed() {
    let (_fixture, [a, b]) = with_rows("on");
    // The pages that the transaction read within the savepoint stay in its read set, although the savepoint
    // is rolled back.
    assert_eq!(codes(&a, "BEGIN; SAVEPOINT s; UPDATE t SET v=1 WHERE k=90; ROLLBACK TO s; RELEASE s"), OK);
    assert_eq!(codes(&a, "UPDATE t SET v=(SELECT v+1 FROM t WHERE k=90) WHERE k=1"), OK);
    assert_eq!(codes(&b, "UPDATE t SET v=5 WHERE k=90"), OK);
    assert_ne!(codes(&a, "COMMIT"), OK);
    assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 5);
}

/// If a RELEASE fails, SQLite keeps the savepoint, even if the transaction has ended. If Duralite ended the
/// transaction at that moment, a second RELEASE would succeed although nothing is committed. So Duralite must
/// leave the transaction open.
#[test]
fn the_last_release_fails_until_there_is_a_rollback() {
    for release in ["RELEASE s", "  -- again\n/* and */ release SAVEPOINT s"] {
        for is_locked in [false, true] {
            let (_fixture, [a, b]) = with_rows("on");
            assert_eq!(codes(&a, "SAVEPOINT s; UPDATE t SET v=1 WHERE k=1"), OK);
            assert_eq!(codes(&b, "BEGIN IMMEDIATE; UPDATE t SET v=2 WHERE k=1"), OK);
            if is_locked {
                assert_eq!(codes(&a, release), BUSY);
                assert!(!a.is_autocommit());
            }
            assert_eq!(codes(&b, "COMMIT"), OK);
            for _ in 0..3 {
                assert_eq!(codes(&a, release), BUSY);
                assert!(!a.is_autocommit());
                assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 1);
            }
            assert_eq!(codes(&a, "ROLLBACK; SAVEPOINT s; UPDATE t SET v=3 WHERE k=1; RELEASE s"), OK);
            for conn in [&a, &b] {
                assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 3);
                integrity(conn);
            }
        }
    }
}

/// Some versions of SQLite recompute checksums from a frame on that was written before the rollback. When they do,
/// the transaction is already committed, and an error would be that of `COMMIT`.
#[test]
fn a_commit_after_a_rollback_of_frames_that_were_written_twice_is_no_error() {
    for rows in [5, 20, 58, 80] {
        same(&format!(
            "CREATE TABLE t(k INTEGER PRIMARY KEY, v); CREATE TABLE u(k INTEGER PRIMARY KEY, v);
             PRAGMA cache_size=1; BEGIN; INSERT INTO t VALUES(55, 1); SAVEPOINT s;
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             INSERT INTO u SELECT i, zeroblob(2000) FROM n;
             UPDATE u SET v=zeroblob(2001) WHERE k > {rows} / 2; UPDATE u SET v=zeroblob(2002) WHERE k > {rows} / 2;
             UPDATE u SET v=zeroblob(2003) WHERE k > {rows} / 2;
             ROLLBACK TO s; RELEASE s; COMMIT; SELECT count(*) FROM t"
        ));
    }
}
