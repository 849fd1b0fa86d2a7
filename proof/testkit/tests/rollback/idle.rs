//! Programs without this library.

use std::fs;

use duralite_testkit::{Actor, code, connect, one, run, stock};
use rusqlite::ffi;

use super::{NAME, each, make, open};

/// An idle connection of stock SQLite holds no lock. What it has in its cache is older than what the database holds by
/// now, and it sees no journal that is in a log.
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

/// Invariant 2: whoever has the database open without this library in a transaction keeps the guard off.
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

/// An idle connection of ours with a warm cache goes on, whatever engine it would choose itself.
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
        // It did not look for a guard, and begins again.
        let first = run(&other, "SELECT count(*) FROM t");
        assert!(first.as_ref().is_err_and(|error| code(error) == ffi::SQLITE_BUSY), "{first:?}");
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 4);
        run(&other, "INSERT INTO t VALUES(5, 5)").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 5);
        drop((conn, same, other));
        fixture.assert_plain(NAME);
    });
}
