//! Tests idle connections of programs without Duralite, and of Duralite.

use std::fs;

use duralite_testkit::{Actor, code, connect, one, run, stock};
use rusqlite::ffi;

use super::{NAME, each, make, open};

/// An idle connection of stock SQLite holds no lock. Its cache may be outdated, and it does not see a journal
/// in a log.
#[test]
fn inv22_an_idle_stock_connection_with_a_warm_cache_is_refused_under_the_guard() {
    each(|fixture, mode| {
        make(fixture);
        let stranger = stock(&fixture.path(NAME));
        assert_eq!(one::<i64>(&stranger, "SELECT sum(length(b)) FROM t"), 14005);
        assert_eq!(one::<i64>(&stranger, "SELECT count(*) FROM t WHERE a > 0"), 3);
        let mut actor = Actor::sql(&fixture.uri(NAME, ""));
        actor.run(&format!("PRAGMA journal_mode={mode}"));
        actor.run("PRAGMA cache_size=1");
        assert_eq!(actor.run("BEGIN"), "");
        assert_eq!(actor.run("UPDATE t SET b = zeroblob(40000)"), "");
        actor.kill();
        let before = fs::read(fixture.path(NAME)).unwrap();
        for sql in
            ["SELECT count(*) FROM t WHERE a > 0", "INSERT INTO t VALUES(9, 9)", "PRAGMA user_version=9"]
        {
            let refused = run(&stranger, sql).unwrap_err();
            assert!([ffi::SQLITE_NOTADB, ffi::SQLITE_READONLY].contains(&code(&refused)), "{sql}: {refused}");
        }
        assert!(before == fs::read(fixture.path(NAME)).unwrap(), "it changed the database");
        let conn = open(fixture, mode);
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 14005);
        run(&conn, "UPDATE t SET b = 'new'").unwrap();
        assert_eq!(code(&run(&stranger, "SELECT * FROM t").unwrap_err()), ffi::SQLITE_NOTADB);
        conn.close().unwrap();
        fixture.assert_plain(NAME);
        assert_eq!(one::<i64>(&stranger, "SELECT count(*) FROM t WHERE b = 'new'"), 3);
    });
}

/// While a program without Duralite is in a transaction, Duralite cannot put the guard on (invariant 2).
#[test]
fn inv02_a_stock_reader_keeps_the_guard_off() {
    each(|fixture, mode| {
        make(fixture);
        let stranger = stock(&fixture.path(NAME));
        run(&stranger, "BEGIN").unwrap();
        assert_eq!(one::<i64>(&stranger, "SELECT count(*) FROM t"), 3);
        let conn = open(fixture, mode);
        run(&conn, "BEGIN").unwrap();
        run(&conn, "UPDATE t SET b = 'changed'").unwrap();
        assert_eq!(code(&run(&conn, "COMMIT").unwrap_err()), ffi::SQLITE_BUSY);
        assert!(!fixture.is_guarded(NAME));
        assert_eq!(one::<i64>(&stranger, "SELECT sum(length(b)) FROM t"), 14005);
        run(&stranger, "COMMIT").unwrap();
        run(&conn, "COMMIT").unwrap();
        assert!(fixture.is_guarded(NAME));
        assert_eq!(code(&run(&stranger, "SELECT * FROM t").unwrap_err()), ffi::SQLITE_NOTADB);
        drop(conn);
        assert_eq!(one::<i64>(&stranger, "SELECT count(*) FROM t WHERE b = 'changed'"), 3);
    });
}

/// An idle connection of Duralite with a warm cache continues to work after another connection has written,
/// even if its settings name another engine.
#[test]
fn an_idle_connection_of_ours_with_a_warm_cache_sees_what_is_new() {
    each(|fixture, mode| {
        make(fixture);
        let others = duralite_testkit::Fixture::on(duralite_testkit::Engine::NVWAL);
        let uri = format!(
            "file:{}?vfs=duralite&journal=nvwal&nvram=emulate&nvram_dir={}",
            fixture.path(NAME).display(),
            fixture.log_dir().display()
        );
        drop(others);
        let (same, other) = (connect(&fixture.uri(NAME, "")).unwrap(), connect(&uri).unwrap());
        for conn in [&same, &other] {
            assert_eq!(one::<i64>(conn, "SELECT count(*) FROM t"), 3);
        }
        let conn = open(fixture, mode);
        run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
        assert_eq!(one::<i64>(&same, "SELECT count(*) FROM t"), 4);
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 4);
        run(&other, "INSERT INTO t VALUES(5, 5)").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 5);
        drop((conn, same, other));
        fixture.assert_plain(NAME);
    });
}

/// An idle connection of Duralite may have a log attached. It must still block nothing that SQLite allows.
/// Here another connection changes the page size and the journal mode, so the database needs another log.
#[test]
fn an_idle_connection_of_ours_follows_to_another_log() {
    each(|fixture, mode| {
        make(fixture);
        let idle = open(fixture, mode);
        run(&idle, "INSERT INTO t VALUES(4, 'idle')").unwrap();
        let conn = open(fixture, mode);
        for sql in
            ["PRAGMA page_size=8192", "VACUUM", "PRAGMA journal_mode=WAL", "INSERT INTO t VALUES(5, 'wal')"]
        {
            run(&conn, sql).unwrap();
        }
        let third = connect(&fixture.uri(NAME, "")).unwrap();
        assert_eq!(one::<i64>(&third, "SELECT count(*) FROM t"), 5);
        assert_eq!(one::<i64>(&idle, "SELECT count(*) FROM t"), 5);
        run(&idle, "INSERT INTO t VALUES(6, 'idle')").unwrap();
        drop((third, idle));
        for (sql, rows) in [(mode, 7), ("WAL", 8), (mode, 9)] {
            let idle = open(fixture, "WAL");
            assert_eq!(one::<i64>(&idle, "SELECT count(*) FROM t"), rows - 1);
            drop(idle);
            // When stock SQLite 3.40 leaves WAL mode, it keeps its old cache, even if the cache is outdated.
            assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), rows - 1);
            run(&conn, &format!("PRAGMA journal_mode={sql}")).unwrap();
            run(&conn, &format!("INSERT INTO t VALUES({rows}, 'more')")).unwrap();
        }
        drop(conn);
        fixture.assert_plain(NAME);
    });
}

/// An idle connection does not keep another one from leaving WAL mode. After the last close there is one
/// ordinary database file.
#[test]
fn an_idle_connection_of_ours_keeps_nobody_from_leaving_wal_mode() {
    each(|fixture, mode| {
        make(fixture);
        let idle = open(fixture, mode);
        run(&idle, "INSERT INTO t VALUES(4, 'idle')").unwrap();
        for rows in [6, 8, 10] {
            let conn = connect(&fixture.uri(NAME, "")).unwrap();
            assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
            run(&conn, "INSERT INTO t VALUES(NULL, 'wal')").unwrap();
            assert_eq!(one::<String>(&conn, &format!("PRAGMA journal_mode={mode}")).to_uppercase(), mode);
            run(&conn, "INSERT INTO t VALUES(NULL, 'undo')").unwrap();
            if rows == 8 {
                assert_eq!(one::<i64>(&idle, "SELECT count(*) FROM t"), rows);
            }
        }
        let conn = connect(&fixture.uri(NAME, "")).unwrap();
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
        run(&conn, "INSERT INTO t VALUES(NULL, 'wal')").unwrap();
        drop(conn);
        drop(idle);
        fixture.assert_plain(NAME);
        assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT count(*) FROM t"), 11);
    });
}

/// A connection keeps its journal open from one transaction to the next. If another connection deletes the
/// log that holds this journal, the next journal goes into a new log. If a crash leaves that new journal hot,
/// a connection that was idle all the time must find it.
#[test]
fn inv21_an_idle_connection_finds_a_hot_journal_in_another_log() {
    each(|fixture, mode| {
        make(fixture);
        let idle = open(fixture, mode);
        run(&idle, "INSERT INTO t VALUES(4, 'idle')").unwrap();
        let mut actor = Actor::sql(&fixture.uri(NAME, ""));
        assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
        assert_eq!(actor.run("INSERT INTO t VALUES(5, 'wal')"), "");
        assert_eq!(actor.run(&format!("PRAGMA journal_mode={mode}")).to_uppercase(), mode);
        assert_eq!(actor.run("INSERT INTO t VALUES(6, 'undo')"), "");
        actor.run("PRAGMA cache_size=1");
        assert_eq!(actor.run("BEGIN"), "");
        assert_eq!(actor.run("UPDATE t SET b = zeroblob(40000)"), "");
        actor.kill();
        assert_eq!(one::<i64>(&idle, "SELECT count(*) FROM t WHERE length(b) < 10000"), 6);
        run(&idle, "INSERT INTO t VALUES(7, 'idle')").unwrap();
        drop(idle);
        fixture.assert_plain(NAME);
    });
}

/// If Duralite cannot make a log when a transaction spills pages, SQLite continues with RESERVED, and other
/// connections can read.
#[test]
fn a_transaction_that_cannot_have_a_log_keeps_nobody_from_reading() {
    each(|fixture, mode| {
        make(fixture);
        let (conn, other) = (open(fixture, mode), connect(&fixture.uri(NAME, "")).unwrap());
        let away = fixture.log_dir().with_extension("away");
        fs::rename(fixture.log_dir(), &away).unwrap();
        run(&conn, "PRAGMA cache_size=1").unwrap();
        run(&conn, "BEGIN IMMEDIATE").unwrap();
        run(&conn, "UPDATE t SET b = zeroblob(90000)").unwrap_err();
        if !conn.is_autocommit() {
            assert_eq!(one::<i64>(&other, "SELECT sum(length(b)) FROM t"), 14005, "it has EXCLUSIVE still");
            assert_eq!(code(&run(&other, "BEGIN IMMEDIATE").unwrap_err()), ffi::SQLITE_BUSY);
            fs::rename(&away, fixture.log_dir()).unwrap();
            run(&conn, "UPDATE t SET b = zeroblob(1000)").unwrap();
            run(&conn, "COMMIT").unwrap();
            assert_eq!(one::<i64>(&other, "SELECT sum(length(b)) FROM t"), 3000);
        } else {
            panic!("SQLite has rolled it back");
        }
        drop((conn, other));
        fixture.assert_plain(NAME);
    });
}
