//! Tests transactions in each journal mode, and changes of the mode.

use duralite_testkit::{Engine, Fixture, Outcome, code, connect, dump, integrity, one, run, stock};
use rusqlite::ffi;

use super::{NAME, each, has_file, make, open};

#[test]
fn a_transaction_has_its_journal_in_the_log_and_its_guard_until_the_last_close() {
    each(|fixture, mode| {
        make(fixture);
        let conn = open(fixture, mode);
        run(&conn, "INSERT INTO t VALUES(4, zeroblob(9000))").unwrap();
        assert!(fixture.is_guarded(NAME) && !has_file(fixture, "-journal"));
        run(&conn, "BEGIN").unwrap();
        run(&conn, "UPDATE t SET b = 'changed'").unwrap();
        run(&conn, "ROLLBACK").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 23005);
        let second = open(fixture, mode);
        run(&second, "DELETE FROM t WHERE a = 1").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 3);
        conn.close().unwrap();
        assert!(fixture.is_guarded(NAME));
        integrity(&second);
        second.close().unwrap();
        fixture.assert_plain(NAME);
        assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
        let conn = stock(&fixture.path(NAME));
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 14005);
    });
}

#[test]
fn a_new_database_is_made_and_served() {
    each(|fixture, mode| {
        let conn = connect(&fixture.uri(NAME, "")).unwrap();
        run(&conn, &format!("PRAGMA journal_mode={mode}")).unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(1)").unwrap();
        assert!(fixture.is_guarded(NAME));
        conn.close().unwrap();
        fixture.assert_plain(NAME);
        assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT sum(a) FROM t"), 1);
    });
}

const ALL: [&str; 6] = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF", "WAL"];

#[test]
fn the_mode_changes_in_every_direction() {
    for engine in Engine::keeping_rollback_journals() {
        for (from, to) in ALL.iter().flat_map(|from| ALL.iter().map(move |to| (from, to))) {
            eprintln!("{engine:?}: {from} to {to}");
            let fixture = Fixture::on(engine);
            make(&fixture);
            let (ours, theirs) =
                (connect(&fixture.uri(NAME, "")).unwrap(), stock(&fixture.path("theirs.db")));
            run(&theirs, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)").unwrap();
            run(&theirs, "INSERT INTO t VALUES(1, zeroblob(9000)), (2, zeroblob(5000)), (3, 'three')")
                .unwrap();
            let steps = [
                format!("PRAGMA journal_mode={from}"),
                "INSERT INTO t VALUES(4, 4)".to_owned(),
                format!("PRAGMA journal_mode={to}"),
                "PRAGMA journal_mode".to_owned(),
                "UPDATE t SET b = zeroblob(8000)".to_owned(),
                "BEGIN".to_owned(),
                "DELETE FROM t".to_owned(),
                "ROLLBACK".to_owned(),
                format!("PRAGMA journal_mode={from}"),
                "INSERT INTO t VALUES(7, 7)".to_owned(),
                "SELECT a, length(b) FROM t".to_owned(),
            ];
            for sql in steps {
                let (found, expected) = (Outcome::of(run(&ours, &sql)), Outcome::of(run(&theirs, &sql)));
                // Without a journal, SQLite cannot roll a transaction back. Stock SQLite damages its file
                // in the same way.
                assert!(found == expected, "{sql}: {found:?} for {expected:?}");
            }
            ours.close().unwrap();
            fixture.assert_plain(NAME);
            assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
            assert_eq!(dump(&stock(&fixture.path(NAME))), dump(&theirs));
        }
    }
}

#[test]
fn the_same_log_goes_on_in_wal_mode_and_another_connection_follows() {
    each(|fixture, mode| {
        make(fixture);
        let (first, second) = (open(fixture, mode), open(fixture, mode));
        run(&first, "INSERT INTO t VALUES(4, 4)").unwrap();
        assert_eq!(one::<i64>(&second, "SELECT count(*) FROM t"), 4);
        let log = fixture.log();
        assert_eq!(one::<String>(&first, "PRAGMA journal_mode=WAL"), "wal");
        run(&first, "INSERT INTO t VALUES(5, 5)").unwrap();
        assert_eq!(fixture.log(), log);
        assert_eq!(one::<i64>(&second, "SELECT count(*) FROM t"), 5);
        run(&second, "INSERT INTO t VALUES(6, 6)").unwrap();
        assert_eq!(one::<i64>(&first, "SELECT count(*) FROM t"), 6);
        second.close().unwrap();
        assert_eq!(one::<String>(&first, "PRAGMA journal_mode=DELETE"), "delete");
        run(&first, "INSERT INTO t VALUES(7, 7)").unwrap();
        assert!(fixture.is_guarded(NAME) && !has_file(fixture, "-wal") && !has_file(fixture, "-journal"));
        first.close().unwrap();
        fixture.assert_plain(NAME);
        assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT count(*) FROM t"), 7);
    });
}

/// All pages of a WAL, and of the log that holds it, have the same size. But the pages in a rollback journal
/// may be larger or smaller than those of the log.
#[test]
fn vacuum_changes_the_page_size_and_the_wal_follows() {
    each(|fixture, mode| {
        make(fixture);
        let conn = open(fixture, mode);
        run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
        for page_bytes in [1024, 16384, 512] {
            run(&conn, &format!("PRAGMA page_size={page_bytes}")).unwrap();
            run(&conn, "VACUUM").unwrap();
            assert_eq!(one::<i64>(&conn, "PRAGMA page_size"), page_bytes);
            assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
            run(&conn, "INSERT INTO t(b) VALUES(4)").unwrap();
            integrity(&conn);
            assert_eq!(one::<String>(&conn, &format!("PRAGMA journal_mode={mode}")).to_uppercase(), mode);
            run(&conn, "INSERT INTO t(b) VALUES(4)").unwrap();
        }
        integrity(&conn);
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 10);
        conn.close().unwrap();
        fixture.assert_plain(NAME);
    });
}

#[test]
fn exclusive_locking_mode_comes_and_goes() {
    each(|fixture, mode| {
        make(fixture);
        let conn = open(fixture, mode);
        run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        for number in 10..20 {
            run(&conn, &format!("INSERT INTO t VALUES({number}, zeroblob(9000))")).unwrap();
        }
        assert!(fixture.is_guarded(NAME));
        let other = connect(&fixture.uri(NAME, "")).unwrap();
        assert_eq!(code(&run(&other, "SELECT * FROM t").unwrap_err()), ffi::SQLITE_BUSY);
        run(&conn, "PRAGMA locking_mode=NORMAL").unwrap();
        run(&conn, "DELETE FROM t WHERE a > 15").unwrap();
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 9);
        run(&other, "INSERT INTO t(b) VALUES(1)").unwrap();
        run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        run(&conn, "INSERT INTO t(b) VALUES(1)").unwrap();
        conn.close().unwrap();
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 11);
        integrity(&other);
        drop(other);
        fixture.assert_plain(NAME);
    });
}

/// When the first transaction began, the database had no page yet. So SQLite's journal is an ordinary file,
/// which the base VFS has opened. SQLite keeps that file open.
#[test]
fn inv21_a_database_that_is_made_in_exclusive_locking_mode_is_served_from_its_second_transaction_on() {
    each(|fixture, mode| {
        let conn = connect(&fixture.uri(NAME, "strict=on")).unwrap();
        run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        run(&conn, &format!("PRAGMA journal_mode={mode}")).unwrap();
        // The rollback leaves the database without a page, so SQLite continues to use the open journal in the
        // base VFS.
        run(&conn, "BEGIN").unwrap();
        run(&conn, "CREATE TABLE other(a)").unwrap();
        run(&conn, "ROLLBACK").unwrap();
        run(&conn, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)").unwrap();
        assert!(!fixture.is_guarded(NAME));
        run(&conn, "INSERT INTO t VALUES(1, zeroblob(9000))").unwrap();
        assert!(fixture.is_guarded(NAME) && !has_file(fixture, "-journal"));
        assert!(one::<String>(&conn, "PRAGMA duralite").contains("state\tactive"));
        run(&conn, "BEGIN").unwrap();
        run(&conn, "UPDATE t SET b = 'changed'").unwrap();
        run(&conn, "ROLLBACK").unwrap();
        run(&conn, "INSERT INTO t VALUES(2, zeroblob(5000))").unwrap();
        run(&conn, "PRAGMA locking_mode=NORMAL").unwrap();
        run(&conn, "INSERT INTO t VALUES(3, 'three')").unwrap();
        let other = connect(&fixture.uri(NAME, "")).unwrap();
        assert_eq!(one::<i64>(&other, "SELECT sum(length(b)) FROM t"), 14005);
        drop(other);
        integrity(&conn);
        conn.close().unwrap();
        fixture.assert_plain(NAME);
        assert!(!has_file(fixture, "-journal") && fixture.logs().is_empty());
        let conn = stock(&fixture.path(NAME));
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 14005);
    });
}

/// The connection already holds EXCLUSIVE when its second transaction begins. So Duralite must make a log for
/// the journal at once, and the transaction fails if it cannot.
#[test]
fn inv21_a_log_that_cannot_be_made_fails_the_second_transaction_in_exclusive_locking_mode() {
    for engine in Engine::keeping_rollback_journals() {
        let fixture = Fixture::on(engine);
        let conn = connect(&fixture.uri(NAME, "")).unwrap();
        run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        let elsewhere = fixture.path("elsewhere");
        std::fs::rename(fixture.log_dir(), &elsewhere).unwrap_or_else(|_| {
            // `rename` fails if the two directories are on different file systems. Then the test removes the
            // log directory instead.
            std::fs::remove_dir_all(fixture.log_dir()).unwrap();
        });
        assert!(run(&conn, "INSERT INTO t VALUES(1)").is_err());
        assert!(!fixture.is_guarded(NAME));
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 0);
        std::fs::create_dir(fixture.log_dir()).unwrap();
        run(&conn, "INSERT INTO t VALUES(2)").unwrap();
        assert!(fixture.is_guarded(NAME));
        conn.close().unwrap();
        fixture.assert_plain(NAME);
        assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT sum(a) FROM t"), 2);
    }
}

#[test]
fn strict_takes_rollback_journals_that_a_log_keeps() {
    each(|fixture, mode| {
        let conn = connect(&fixture.uri(NAME, "strict=on")).unwrap();
        run(&conn, &format!("PRAGMA journal_mode={mode}")).unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(1)").unwrap();
        assert!(run(&conn, "PRAGMA journal_mode=MEMORY").is_err());
        run(&conn, "PRAGMA journal_mode=WAL").unwrap();
        run(&conn, "INSERT INTO t VALUES(2)").unwrap();
        run(&conn, &format!("PRAGMA journal_mode={mode}")).unwrap();
        run(&conn, "INSERT INTO t VALUES(3)").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    });
}

/// These rollbacks are no errors, so SQLite must keep its cache.
#[test]
fn a_first_transaction_that_is_rolled_back_leaves_nothing_and_no_error() {
    each(|fixture, mode| {
        make(fixture);
        let conn = open(fixture, mode);
        let before = one::<i64>(&conn, "PRAGMA data_version");
        for _ in 0..3 {
            run(&conn, "BEGIN").unwrap();
            run(&conn, "UPDATE t SET b = 'changed'").unwrap();
            run(&conn, "ROLLBACK").unwrap();
        }
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 14005);
        assert_eq!(one::<i64>(&conn, "PRAGMA data_version"), before);
        assert!(!fixture.is_guarded(NAME) && fixture.logs().is_empty() && !has_file(fixture, "-journal"));
    });
}
