//! Tests VACUUM, backups, and changes of the journal mode and the locking mode while transactions run. Also
//! tests how a program notices that a database has changed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duralite_testkit::{Fixture, code, integrity, one, run};
use rusqlite::backup::Backup;
use rusqlite::{Connection, ffi};

use super::{BUSY, MODES, OK, OVERTAKEN, codes, open, rows, with_rows};

fn end(conn: &Connection) {
    if !conn.is_autocommit() {
        run(conn, "ROLLBACK").unwrap();
    }
}

#[test]
fn inv59_a_database_that_has_become_smaller_overtakes_everyone() {
    for (mode, vacuum) in [("on", "none"), ("upgrade", "none"), ("on", "full"), ("upgrade", "full")] {
        let fixture = Fixture::new();
        let first = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
        let mode_of_file = format!("PRAGMA auto_vacuum={vacuum}; PRAGMA journal_mode=WAL");
        assert_eq!(codes(&first, &mode_of_file), OK);
        rows(&first);
        let [a, b] = [(); 2].map(|()| open(&fixture, mode));
        let shrink = if vacuum == "none" { "VACUUM" } else { "DELETE FROM t WHERE k BETWEEN 30 AND 60" };
        assert_eq!(codes(&first, "DELETE FROM t WHERE k BETWEEN 20 AND 29"), OK);
        let read = if mode == "on" { "UPDATE t SET v=1 WHERE k=1" } else { "SELECT v FROM t WHERE k=1" };
        assert_eq!(codes(&a, &format!("BEGIN; {read}")), OK);
        assert_eq!(codes(&b, shrink), OK);
        assert_eq!(one::<i64>(&a, "SELECT count(*) FROM t"), 90);
        assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=99; COMMIT"), OVERTAKEN, "{mode}, {vacuum}");
        end(&a);
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=99; COMMIT"), OK);
        for conn in [&a, &b, &first] {
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 1);
            integrity(conn);
        }
        drop((a, b, first));
        fixture.assert_plain("c.db");
    }
}

/// The other connection has removed only free pages from the end of the database. So nothing that the
/// transaction uses has changed.
#[test]
fn inv59_a_database_that_has_lost_nothing_but_free_pages_overtakes_everyone_too() {
    let fixture = Fixture::new();
    let first = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
    assert_eq!(codes(&first, "PRAGMA auto_vacuum=incremental; PRAGMA journal_mode=WAL"), OK);
    rows(&first);
    let free = "CREATE TABLE u(a); INSERT INTO u VALUES(zeroblob(40000)); DELETE FROM u";
    assert_eq!(codes(&first, free), OK);
    let a = open(&fixture, "on");
    assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
    run(&first, "PRAGMA incremental_vacuum").unwrap();
    assert_eq!(one::<i64>(&first, "PRAGMA freelist_count"), 0);
    assert_eq!(codes(&a, "COMMIT"), OVERTAKEN);
    assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1; COMMIT"), OK);
    integrity(&first);
}

#[test]
fn vacuum_beside_an_open_transaction_of_its_own_kind() {
    for mode in MODES {
        let (fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&a, "DELETE FROM t WHERE k % 2"), OK);
        let pages = one::<i64>(&a, "PRAGMA page_count");
        assert_eq!(codes(&b, "BEGIN IMMEDIATE"), OK);
        assert_eq!(codes(&a, "VACUUM"), BUSY);
        assert_eq!(codes(&b, "COMMIT; BEGIN; SELECT sum(v) FROM t"), OK);
        assert_eq!(codes(&a, "VACUUM"), OK);
        assert!(one::<i64>(&a, "PRAGMA page_count") < pages);
        assert_eq!(one::<i64>(&b, "PRAGMA page_count"), pages);
        assert_eq!(one::<i64>(&b, "SELECT count(*) FROM t"), 50);
        integrity(&b);
        assert_eq!(codes(&b, "COMMIT; UPDATE t SET v=v+1"), OK);
        integrity(&a);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 50);
        run(&a, &format!("VACUUM INTO '{}'", fixture.path("copy.db").display())).unwrap();
        fixture.assert_plain("copy.db");
    }
}

#[test]
fn incremental_vacuum_beside_an_open_transaction() {
    for mode in MODES {
        let fixture = Fixture::new();
        let first = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
        assert_eq!(codes(&first, "PRAGMA auto_vacuum=incremental; PRAGMA journal_mode=WAL"), OK);
        rows(&first);
        let [a, b] = [(); 2].map(|()| open(&fixture, mode));
        assert_eq!(codes(&first, "DELETE FROM t WHERE k BETWEEN 10 AND 60"), OK);
        assert_eq!(codes(&a, "BEGIN; SELECT v FROM t WHERE k=99"), OK);
        run(&b, "PRAGMA incremental_vacuum(3)").unwrap();
        assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=99; COMMIT"), OVERTAKEN);
        end(&a);
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=99"), OK);
        run(&a, "PRAGMA incremental_vacuum").unwrap();
        assert_eq!(codes(&a, "COMMIT"), OK);
        assert_eq!(one::<i64>(&b, "PRAGMA freelist_count"), 0);
        integrity(&b);
        drop((a, b, first));
        fixture.assert_plain("c.db");
    }
}

#[test]
fn pages_of_every_size() {
    for bytes in [512, 1024, 4096, 32_768, 65_536] {
        for mode in MODES {
            let fixture = Fixture::new();
            let first = duralite_testkit::connect(&fixture.uri("c.db", "psow=0")).unwrap();
            assert_eq!(codes(&first, &format!("PRAGMA page_size={bytes}; PRAGMA journal_mode=WAL")), OK);
            rows(&first);
            run(&first, "CREATE TABLE u AS SELECT * FROM t").unwrap();
            let [a, b] = [(); 2].map(|()| fixture.open_with("c.db", &format!("psow=0&concurrent={mode}")));
            assert_eq!(codes(&a, "PRAGMA synchronous=FULL; BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
            if mode == "on" {
                assert_eq!(
                    codes(&b, "PRAGMA synchronous=FULL; BEGIN; UPDATE u SET v=1 WHERE k=99; COMMIT"),
                    OK
                );
            }
            assert_eq!(codes(&a, "COMMIT; BEGIN; DELETE FROM t WHERE k > 50; COMMIT; VACUUM"), OK, "{bytes}");
            for conn in [&a, &b, &first] {
                assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 1);
                assert_eq!(one::<i64>(conn, "PRAGMA page_size"), bytes);
                integrity(conn);
            }
            drop((a, b, first));
            fixture.assert_plain("c.db");
        }
    }
}

fn copy(from: &Connection, to: &mut Connection) -> Result<(), i32> {
    let backup = Backup::new(from, to).map_err(|error| code(&error))?;
    backup.run_to_completion(7, Duration::ZERO, None).map_err(|error| code(&error))
}

#[test]
fn backups_from_and_to_a_concurrent_connection() {
    for mode in MODES {
        let (fixture, [a, mut b]) = with_rows(mode);
        assert_eq!(codes(&a, "UPDATE t SET v=1"), OK);
        let mut memory = Connection::open_in_memory().unwrap();
        copy(&a, &mut memory).unwrap();
        assert_eq!(one::<i64>(&memory, "SELECT sum(v) FROM t"), 100);
        assert_eq!(codes(&memory, "UPDATE t SET v=2; DELETE FROM t WHERE k >= 50; VACUUM"), OK);
        // A backup into the database overtakes an open transaction.
        assert_eq!(codes(&a, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        copy(&memory, &mut b).unwrap();
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 100);
        assert_eq!(codes(&a, "UPDATE t SET v=3 WHERE k=1; COMMIT"), OVERTAKEN);
        end(&a);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 100);
        assert_eq!(one::<i64>(&a, "SELECT count(*) FROM t"), 50);
        integrity(&a);
        drop((a, b));
        fixture.assert_plain("c.db");
    }
}

#[test]
fn a_backup_begins_anew_when_someone_commits() {
    for mode in MODES {
        let (_fixture, [a, b]) = with_rows(mode);
        let mut memory = Connection::open_in_memory().unwrap();
        let backup = Backup::new(&a, &mut memory).unwrap();
        backup.step(5).unwrap();
        assert_eq!(codes(&b, "UPDATE t SET v=1"), OK);
        backup.step(5).unwrap();
        // Commits of the backup's own connection reach the copy at once. Changes of a transaction that others
        // have overtaken do not.
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=2 WHERE k=99; COMMIT"), OK);
        backup.step(5).unwrap();
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=5 WHERE k=98"), OK);
        if codes(&b, "UPDATE t SET v=3 WHERE k=98") == OK {
            assert_eq!(codes(&a, "COMMIT"), OVERTAKEN);
        } else {
            assert_eq!(codes(&a, "ROLLBACK; UPDATE t SET v=3 WHERE k=98"), OK);
        }
        backup.run_to_completion(5, Duration::ZERO, None).unwrap();
        drop(backup);
        assert_eq!(one::<i64>(&memory, "SELECT sum(v) FROM t"), 103, "{mode}");
        integrity(&memory);
    }
}

#[test]
fn the_database_leaves_wal_mode_and_comes_back() {
    for mode in MODES {
        let (fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1; COMMIT"), OK);
        assert_eq!(codes(&a, "PRAGMA journal_mode=DELETE"), BUSY, "the other connection is open");
        assert_eq!(codes(&b, "UPDATE t SET v=2 WHERE k=2"), OK);
        drop(b);
        assert_eq!(one::<String>(&a, "PRAGMA journal_mode=DELETE"), "delete");
        if !fixture.engine().keeps_rollback_journals() {
            fixture.assert_plain("c.db");
        }
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=v+1 WHERE k=3; COMMIT"), OK);
        assert_eq!(one::<String>(&a, "PRAGMA journal_mode=WAL"), "wal");
        let b = open(&fixture, mode);
        assert_eq!(codes(&a, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        assert_eq!(codes(&b, "UPDATE t SET v=4 WHERE k=99"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=v+1 WHERE k=1; COMMIT"), OK, "it is concurrent again");
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 9);
        integrity(&b);
        drop((a, b));
        fixture.assert_plain("c.db");
    }
}

/// Waiting would not help, so SQLite does not call the busy handler.
#[test]
fn exclusive_locking_is_refused_at_once_with_a_reason() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    for mode in MODES {
        let (_fixture, [mut a]) = with_rows(mode);
        a.busy_handler(Some(|_| ASKED.fetch_add(1, Ordering::Relaxed) < 3)).unwrap();
        assert_eq!(codes(&a, "SELECT sum(v) FROM t; PRAGMA locking_mode=EXCLUSIVE"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=1"), ffi::SQLITE_LOCKED);
        assert_eq!(codes(&a, "BEGIN IMMEDIATE"), ffi::SQLITE_LOCKED);
        assert_eq!(ASKED.load(Ordering::Relaxed), 0, "{mode}");
        let reason: String = one(&a, "SELECT duralite_last_error()");
        assert!(reason.contains("locking_mode=EXCLUSIVE"), "{reason}");
        assert_eq!(codes(&a, "PRAGMA locking_mode=NORMAL; UPDATE t SET v=1"), OK);
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=2 WHERE k=1; COMMIT"), OK);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 101);
        integrity(&a);
    }
}

#[test]
fn inv61_data_version_moves_with_the_commits_of_others_alone() {
    for mode in MODES {
        let (_fixture, [a, b]) = with_rows(mode);
        let version = || one::<i64>(&a, "PRAGMA data_version");
        let mut last = version();
        let mut moves = |expected: bool, what: &str| {
            let now = version();
            assert_eq!(now != last, expected, "{mode}: {what}");
            last = now;
        };
        for sql in [
            "UPDATE t SET v=1 WHERE k=1",
            "BEGIN; UPDATE t SET v=2; COMMIT",
            "BEGIN; UPDATE t SET v=3; ROLLBACK",
        ] {
            assert_eq!(codes(&a, sql), OK);
            moves(false, sql);
        }
        assert_eq!(codes(&b, "UPDATE t SET v=4 WHERE k=1"), OK);
        moves(true, "another one's commit");
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=4 WHERE k=1; ROLLBACK"), OK);
        moves(false, "another one's rollback");
        // Another connection commits after the transaction has read and before it commits. The transaction
        // can still commit: with `upgrade` it moves to the newest snapshot when it writes, and with `on`
        // Duralite merges the two commits.
        assert_eq!(codes(&a, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        assert_eq!(codes(&b, "UPDATE t SET v=5 WHERE k=99"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=5 WHERE k=1; COMMIT"), OK);
        moves(true, "one that was absorbed");
        assert_eq!(codes(&a, "UPDATE t SET v=6 WHERE k=1"), OK);
        moves(false, "its own after that");
    }
}

#[test]
fn a_mapped_database_shows_the_snapshot() {
    for mode in MODES {
        let (_fixture, [a, b]) = with_rows(mode);
        for conn in [&a, &b] {
            run(conn, "PRAGMA mmap_size=100000000").unwrap();
        }
        assert_eq!(codes(&b, "PRAGMA wal_checkpoint(TRUNCATE)"), OK);
        assert_eq!(codes(&a, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
        assert_eq!(codes(&b, "UPDATE t SET v=1; PRAGMA wal_checkpoint; UPDATE t SET v=2"), OK);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 0);
        assert_eq!(codes(&a, "COMMIT"), OK);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 200);
    }
}

#[test]
fn connections_with_a_shared_cache_are_one() {
    for mode in MODES {
        let (fixture, [other]) = with_rows(mode);
        let shared = format!("cache=shared&concurrent={mode}");
        let [a, b] = [(); 2].map(|()| fixture.open_with("c.db", &shared));
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
        // SQLite's table locks keep the second connection out.
        assert_eq!(codes(&b, "SELECT sum(v) FROM t") & 0xff, rusqlite::ffi::SQLITE_LOCKED);
        let meanwhile = codes(&other, "UPDATE t SET v=2 WHERE k=90");
        assert_eq!(meanwhile, if mode == "on" { OK } else { BUSY });
        assert_eq!(codes(&a, "COMMIT"), OK);
        assert_eq!(codes(&b, "BEGIN; SELECT v FROM t WHERE k=90"), OK);
        assert_eq!(codes(&other, "UPDATE t SET v=3 WHERE k=90"), OK);
        assert_eq!(codes(&b, "UPDATE t SET v=5 WHERE k=1; COMMIT"), OVERTAKEN);
        end(&b);
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=v+1 WHERE k=1; COMMIT"), OK);
        for conn in [&a, &b, &other] {
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 5);
            integrity(conn);
        }
    }
}
