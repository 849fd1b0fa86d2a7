//! Tests a database in use, and a database that has been closed.

use duralite_testkit::{
    Actor, Engine, Fixture, code, connect, integrity, one, run, stock, stock_shell, with_stuck_guard,
    without_space_for_pages,
};
use rusqlite::ffi;

use super::{abandoned, read_elsewhere};

#[test]
fn inv01_stock_sqlite_is_refused_while_the_database_is_live() {
    let fixture = Fixture::new();
    let conn = fixture.open("g.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    run(&conn, "INSERT INTO t VALUES(6)").unwrap();
    assert!(fixture.is_guarded("g.db"));
    let error = run(&stock(&fixture.path("g.db")), "SELECT * FROM t").unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_NOTADB);
    let before = fixture.snapshot();
    for sql in ["SELECT * FROM t", "INSERT INTO t VALUES(7)", "PRAGMA journal_mode=DELETE", "VACUUM"] {
        let Some(said) = stock_shell(&fixture.path("g.db"), sql) else { break };
        assert!(said.contains("file is not a database"), "{sql}: {said}");
    }
    assert!(fixture.snapshot() == before, "a refused program changed something");
    run(&conn, "INSERT INTO t VALUES(8)").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 14);
}

#[test]
fn inv01_the_guard_stays_until_the_last_connection_closes() {
    let fixture = Fixture::new();
    let first = fixture.open("g.db");
    run(&first, "CREATE TABLE t(a)").unwrap();
    let second = fixture.open("g.db");
    let mut third = Actor::sql(&fixture.uri("g.db", ""));
    assert_eq!(third.run("INSERT INTO t VALUES(6)"), "");
    run(&first, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    first.close().unwrap();
    assert!(fixture.is_guarded("g.db"));
    assert_eq!(one::<i64>(&second, "SELECT sum(a) FROM t"), 6);
    second.close().unwrap();
    assert!(fixture.is_guarded("g.db"));
    assert_eq!(third.run("SELECT sum(a) FROM t"), "6");
    third.finish();
    fixture.assert_plain("g.db");
    assert!(fixture.logs().is_empty());
    assert_eq!(one::<i64>(&stock(&fixture.path("g.db")), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn inv01_a_closed_database_is_byte_for_byte_what_stock_sqlite_makes() {
    let fixture = Fixture::new();
    let work = |conn: &rusqlite::Connection| {
        conn.execute_batch(
            "PRAGMA journal_mode=WAL; CREATE TABLE t(a, b); CREATE INDEX i ON t(b);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)
             INSERT INTO t SELECT i, hex(zeroblob(i % 200)) FROM n;
             DELETE FROM t WHERE a % 3 = 0;",
        )
        .unwrap();
    };
    let (ours, theirs) = (fixture.open("ours.db"), stock(&fixture.path("theirs.db")));
    work(&ours);
    work(&theirs);
    ours.close().unwrap();
    theirs.close().unwrap();
    let read = |name| std::fs::read(fixture.path(name)).unwrap();
    assert!(read("ours.db") == read("theirs.db"), "the files differ");
}

#[test]
fn inv07_a_killed_process_leaves_the_guard_and_everything_is_there() {
    let fixture = Fixture::new();
    abandoned(&fixture, "k.db");
    let error = run(&stock(&fixture.path("k.db")), "SELECT * FROM t").unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_NOTADB);
    assert_eq!(read_elsewhere(&fixture.uri("k.db", "")), "6");
    // The reader was killed as well, so the guard is still on.
    let conn = fixture.open("k.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("k.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("k.db")), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn inv01_a_reader_elsewhere_keeps_guard_and_log() {
    // A reader in another process is still connected, so the close below is not the last.
    let fixture = Fixture::new();
    let conn = fixture.open("r.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let mut reader = Actor::sql(&fixture.uri("r.db", ""));
    assert_eq!(reader.run("BEGIN"), "");
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    run(&conn, "INSERT INTO t VALUES(5)").unwrap();
    conn.close().unwrap();
    assert!(fixture.is_guarded("r.db"));
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    reader.kill();
    let conn = fixture.open("r.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 5);
}

/// The journal mode changes while the guard cannot be lifted. SQLite finds that the WAL still exists, and
/// commits the new mode through the WAL.
#[test]
fn inv01_a_mode_that_changed_while_the_guard_was_stuck_lets_the_last_close_lift_it() {
    for pages_follow in [false, true] {
        let fixture = Fixture::new();
        let conn = fixture.open("m.db");
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(6)").unwrap();
        let mode = with_stuck_guard(|| one::<String>(&conn, "PRAGMA journal_mode=DELETE"));
        assert_eq!(mode, "delete");
        assert!(fixture.is_guarded("m.db"));
        if pages_follow {
            run(&conn, "INSERT INTO t VALUES(8)").unwrap();
        }
        let sum = if pages_follow { 14 } else { 6 };
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), sum);
        assert_eq!(read_elsewhere(&fixture.uri("m.db", "")), sum.to_string());
        conn.close().unwrap();
        fixture.assert_plain("m.db");
        assert!(fixture.logs().is_empty());
        let conn = stock(&fixture.path("m.db"));
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), sum);
        // The database file has the journal mode that SQLite has reported.
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode"), "delete");
    }
}

/// In exclusive locking mode SQLite keeps EXCLUSIVE, and does not tell the VFS that the journal mode is about
/// to change. Here a connection leaves WAL mode with an outdated cache, because another connection has
/// committed since.
#[test]
fn inv46_leaving_wal_mode_in_exclusive_locking_mode_loses_no_commit() {
    for (engine, settings) in
        [(Engine::NVWAL, ""), (Engine::WALDIO, ""), (Engine::PPL, ""), (Engine::PPL, "on_close=keep")]
    {
        let fixture = Fixture::on(engine);
        let uri = fixture.uri("x.db", settings);
        let conn = fixture.open_with("x.db", settings);
        run(&conn, "CREATE TABLE t(id INTEGER PRIMARY KEY, a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(1, 0), (2, 0)").unwrap();
        let warm = connect(&uri).unwrap();
        assert_eq!(one::<i64>(&warm, "SELECT sum(a) FROM t"), 0);
        run(&conn, "UPDATE t SET a = 7 WHERE id = 1").unwrap();
        conn.close().unwrap();
        run(&warm, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        assert_eq!(one::<String>(&warm, "PRAGMA journal_mode=DELETE"), "delete");
        assert_eq!(one::<i64>(&warm, "SELECT sum(a) FROM t"), 7);
        run(&warm, "UPDATE t SET a = 9 WHERE id = 2").unwrap();
        integrity(&warm);
        warm.close().unwrap();
        assert_eq!(one::<i64>(&stock(&fixture.path("x.db")), "SELECT sum(a) FROM t"), 16);
    }
}

/// The connection has tried to leave WAL mode. It has closed the WAL, but cannot open a journal. Later it
/// finds that the mode has not changed.
#[test]
fn inv46_who_could_not_leave_wal_mode_keeps_nobody_out() {
    for engine in [Engine::NVWAL, Engine::WALDIO, Engine::PPL] {
        let fixture = Fixture::on(engine);
        let conn = fixture.open("o.db");
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        let journal = fixture.path("o.db-journal");
        std::fs::create_dir(&journal).unwrap();
        let left = run(&conn, "PRAGMA journal_mode=DELETE");
        std::fs::remove_dir(&journal).unwrap();
        run(&conn, "PRAGMA locking_mode=NORMAL").unwrap();
        run(&conn, "INSERT INTO t VALUES(6)").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6, "{left:?}");
        let mut other = Actor::sql(&fixture.uri("o.db", ""));
        assert_eq!(other.run("INSERT INTO t VALUES(7)"), "");
        other.finish();
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 13);
    }
}

/// SQLite closes the WAL to leave WAL mode, but cannot checkpoint it. So it continues to use this WAL, and
/// has held EXCLUSIVE all the time.
#[test]
fn inv09_a_connection_in_exclusive_locking_mode_that_could_not_leave_wal_mode_goes_on() {
    for engine in [Engine::NVWAL, Engine::WALDIO] {
        let fixture = Fixture::on(engine);
        let conn = connect(&fixture.uri("e.db", "")).unwrap();
        run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
        run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(6)").unwrap();
        without_space_for_pages(|| run(&conn, "PRAGMA journal_mode=DELETE").unwrap_err());
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
        run(&conn, "INSERT INTO t VALUES(7)").unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 13);
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=DELETE"), "delete");
        run(&conn, "INSERT INTO t VALUES(8)").unwrap();
        conn.close().unwrap();
        fixture.assert_plain("e.db");
        assert_eq!(one::<i64>(&stock(&fixture.path("e.db")), "SELECT sum(a) FROM t"), 21);
    }
}

#[test]
fn inv01_a_guard_that_was_stuck_at_the_last_close_is_lifted_by_the_next() {
    let fixture = Fixture::new();
    let conn = fixture.open("m.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    run(&conn, "INSERT INTO t VALUES(6)").unwrap();
    with_stuck_guard(|| conn.close().unwrap());
    assert!(fixture.is_guarded("m.db"));
    let conn = fixture.open("m.db");
    run(&conn, "INSERT INTO t VALUES(8)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("m.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("m.db")), "SELECT sum(a) FROM t"), 14);
}

/// Another program has overwritten a checkpointed page in the database file.
#[test]
fn inv01_the_guard_stays_as_long_as_the_file_lacks_what_the_log_holds() {
    for engine in [Engine::NVWAL, Engine::WALDIO] {
        let fixture = Fixture::on(engine);
        let conn = fixture.open("l.db");
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(6)").unwrap();
        run(&conn, "PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        // The file stays open for as long as the connection, because closing it releases the locks that this
        // process has on the file.
        let file = std::fs::OpenOptions::new().write(true).open(fixture.path("l.db")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 4096).unwrap();
        conn.close().unwrap();
        assert!(fixture.is_guarded("l.db"), "{}", engine.name());
        drop(file);
        let conn = connect(&fixture.uri("l.db", "")).unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6, "{}", engine.name());
        conn.close().unwrap();
        fixture.assert_plain("l.db");
    }
}

/// The database has a log. But this connection did not get EXCLUSIVE, so it has never opened the WAL in the
/// log.
#[test]
fn inv01_who_was_refused_the_database_to_itself_lifts_the_guard_as_the_last() {
    let fixture = Fixture::new();
    let first = fixture.open("r.db");
    run(&first, "CREATE TABLE t(a)").unwrap();
    let second = connect(&fixture.uri("r.db", "")).unwrap();
    second.busy_timeout(std::time::Duration::ZERO).unwrap();
    run(&second, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
    assert!(run(&second, "SELECT * FROM t").is_err());
    first.close().unwrap();
    second.close().unwrap();
    fixture.assert_plain("r.db");
}
