//! Tests `sqlite3_file_control`, and other VFSs above and below Duralite's that use file controls.
#![allow(unsafe_code)] // calls SQLite's C interface

use std::ffi::c_int;
use std::os::unix::fs::FileExt;

use duralite_testkit::{Actor, Engine, Fixture, one, run, stock};
use rusqlite::{Connection, ffi};

/// Calls a file control of the main database with a pointer to `number`. Returns the value that the control leaves
/// there.
fn control(conn: &Connection, op: c_int, number: c_int) -> c_int {
    let mut number = number;
    // SAFETY: the connection is open, and the controls used here take a pointer to an int.
    let code =
        unsafe { ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), op, (&raw mut number).cast()) };
    assert_eq!(code, ffi::SQLITE_OK);
    number
}

#[test]
fn readers_in_other_processes_are_told_of() {
    let fixture = Fixture::new();
    let conn = fixture.open("r.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let external = |conn: &Connection| control(conn, ffi::SQLITE_FCNTL_EXTERNAL_READER, 7);
    assert_eq!(external(&conn), 0);
    let mut reader = Actor::sql(&fixture.uri("r.db", ""));
    assert_eq!(reader.run("BEGIN"), "");
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    assert_eq!(external(&conn), 1);
    // Only transactions of other processes count, and not the connection's own.
    run(&conn, "BEGIN").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 0);
    assert_eq!(reader.run("COMMIT"), "");
    assert_eq!(external(&conn), 0);
    run(&conn, "COMMIT").unwrap();
    reader.finish();
}

#[test]
fn inv01_a_vfs_above_may_fill_reserved_bytes_on_the_way_home() {
    const RESERVED: usize = 8;
    let fixture = Fixture::new();
    if fixture.engine() == Engine::PPL {
        // `ppl` refuses reserved bytes (see `an_engine_that_writes_pages_by_itself_refuses_reserved_bytes`).
        return;
    }
    let conn = stock(&fixture.path("c.db"));
    control(&conn, ffi::SQLITE_FCNTL_RESERVE_BYTES, RESERVED as c_int);
    run(&conn, "VACUUM").unwrap();
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    let bytes = std::fs::read(fixture.path("c.db")).unwrap();
    assert_eq!(usize::from(bytes[20]), RESERVED);

    let conn = fixture.open("c.db");
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(PASSIVE)"), 0);
    // Write into the reserved bytes, as a VFS that keeps checksums there would.
    let file = std::fs::OpenOptions::new().write(true).open(fixture.path("c.db")).unwrap();
    for page in 1..=2 {
        file.write_all_at(b"checksum", page * 4096 - RESERVED as u64).unwrap();
    }
    // The test keeps the file open, because closing it would release SQLite's locks.
    conn.close().unwrap();
    drop(file);
    fixture.assert_plain("c.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("c.db")), "SELECT sum(a) FROM t"), 1);
}

/// A VFS above Duralite's, such as `cksumvfs`, fills the reserved bytes when SQLite writes pages to the database file.
/// If Duralite wrote a page by itself, it would bypass that VFS, so it must not.
#[test]
fn pages_with_reserved_bytes_go_home_by_sqlite_only() {
    for engine in [Engine::NVWAL, Engine::WALDIO] {
        let fixture = Fixture::on(engine);
        let path = fixture.path("c.db");
        let conn = stock(&path);
        control(&conn, ffi::SQLITE_FCNTL_RESERVE_BYTES, 8);
        run(&conn, "CREATE TABLE t(a)").unwrap();
        conn.close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[20], 8);
        let mut writer = Actor::sql(&fixture.uri("c.db", ""));
        assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
        writer.run("PRAGMA wal_autocheckpoint=0");
        assert_eq!(writer.run("INSERT INTO t VALUES(6)"), "");
        writer.kill();
        let pages = || std::fs::read(&path).unwrap()[4096..].to_vec();
        let before = pages();
        let mut reader = Actor::sql(&fixture.uri("c.db", ""));
        assert_eq!(reader.run("SELECT sum(a) FROM t"), "6");
        assert!(pages() == before, "{engine:?}: pages went home past SQLite");
        assert_eq!(reader.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
        assert!(pages() != before);
        reader.finish();
        fixture.assert_plain("c.db");
        let uri = fixture.uri("c.db", "background_checkpoint=100");
        let refused = duralite_testkit::connect(&uri).and_then(|conn| run(&conn, "SELECT * FROM t"));
        assert_eq!(duralite_testkit::code(&refused.unwrap_err()), ffi::SQLITE_CANTOPEN);
        assert!(duralite::last_error().unwrap().contains("cksumvfs"));
    }
}

/// If pages have reserved bytes, only SQLite can start the log over, and Duralite cannot. So no connection may wait
/// until Duralite does so. Without checkpoints the log becomes full. A checkpoint makes space again.
#[test]
fn a_limited_log_of_pages_with_reserved_bytes_becomes_full_and_never_busy() {
    for engine in [Engine::NVWAL, Engine::WALDIO] {
        for checkpoint in [0, 1000] {
            let fixture = Fixture::on(engine);
            let conn = stock(&fixture.path("c.db"));
            control(&conn, ffi::SQLITE_FCNTL_RESERVE_BYTES, 8);
            run(&conn, "CREATE TABLE t(a)").unwrap();
            conn.close().unwrap();
            let conn = fixture.open_with("c.db", "log_limit=4194304");
            conn.execute_batch(&format!("PRAGMA wal_autocheckpoint={checkpoint}")).unwrap();
            let insert = || {
                run(&conn, "INSERT INTO t VALUES(randomblob(60000))")
                    .map_err(|error| duralite_testkit::code(&error))
            };
            let refused = (0..200).find_map(|_| insert().err());
            let expected = if checkpoint == 0 { Some(ffi::SQLITE_FULL) } else { None };
            assert_eq!(refused, expected, "{engine:?}, wal_autocheckpoint={checkpoint}");
            assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(RESTART)"), 0);
            assert_eq!(insert().map(drop), Ok(()), "{engine:?}, wal_autocheckpoint={checkpoint}");
            conn.close().unwrap();
            fixture.assert_plain("c.db");
        }
    }
}

/// The pages in a `-wal` of stock SQLite may have reserved bytes too. Only a VFS that fills these bytes may write the
/// pages to the database file. So Duralite leaves such a `-wal` unchanged, until SQLite closes it through that VFS.
#[test]
fn an_ordinary_wal_with_reserved_bytes_goes_home_by_its_users_only() {
    let fixture = Fixture::new();
    if fixture.engine() == Engine::PPL {
        // `ppl` refuses reserved bytes (see `an_engine_that_writes_pages_by_itself_refuses_reserved_bytes`).
        return;
    }
    let path = fixture.path("c.db");
    let mut writer = Actor::sql(&format!("file:{}?vfs=unix", path.display()));
    let conn = stock(&path);
    control(&conn, ffi::SQLITE_FCNTL_RESERVE_BYTES, 8);
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(writer.run("PRAGMA wal_autocheckpoint=0"), "0");
    assert_eq!(writer.run("INSERT INTO t VALUES(6)"), "");
    writer.kill();
    let pages = || std::fs::read(&path).unwrap()[4096..].to_vec();
    let before = pages();
    let refused = duralite_testkit::connect(&fixture.uri("c.db", "strict=on"))
        .and_then(|conn| run(&conn, "SELECT * FROM t"));
    assert_eq!(duralite_testkit::code(&refused.unwrap_err()), ffi::SQLITE_CANTOPEN);
    assert!(duralite::last_error().unwrap().contains("cksumvfs"));
    let mut reader = Actor::sql(&fixture.uri("c.db", ""));
    assert_eq!(reader.run("PRAGMA wal_autocheckpoint=0"), "0");
    assert_eq!(reader.run("INSERT INTO t VALUES(7)"), "");
    assert_eq!(reader.run("SELECT sum(a) FROM t"), "13");
    assert!(pages() == before, "pages went home past SQLite");
    assert!(!fixture.is_guarded("c.db"));
    reader.finish();
    let conn = fixture.open("c.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 13);
    assert!(fixture.is_guarded("c.db"));
    conn.close().unwrap();
}

#[test]
fn an_engine_that_writes_pages_by_itself_refuses_reserved_bytes() {
    let fixture = Fixture::on(Engine::PPL);
    let path = fixture.path("c.db");
    let conn = stock(&path);
    control(&conn, ffi::SQLITE_FCNTL_RESERVE_BYTES, 8);
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    run(&conn, "CREATE TABLE t(a)").unwrap();
    conn.close().unwrap();
    let refused =
        duralite_testkit::connect(&fixture.uri("c.db", "")).and_then(|conn| run(&conn, "SELECT * FROM t"));
    assert_eq!(duralite_testkit::code(&refused.unwrap_err()), ffi::SQLITE_CANTOPEN);
    assert!(duralite::last_error().unwrap().contains("journal=ppl writes pages past a VFS above"));
    fixture.assert_plain("c.db");
}
