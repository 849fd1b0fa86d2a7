//! Tests that Duralite raises the guard only when no program without Duralite is connected (invariant 2).

use duralite_testkit::{Fixture, code, connect, one, run, stock};
use rusqlite::ffi;

#[test]
fn inv02_busy_while_a_stock_connection_is_open_in_wal_mode() {
    let fixture = Fixture::new();
    let theirs = stock(&fixture.path("s.db"));
    theirs.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(6)").unwrap();
    let before = fixture.snapshot();
    let conn = connect(&fixture.uri("s.db", "")).unwrap();
    let error = run(&conn, "SELECT * FROM t").unwrap_err();
    assert_eq!(code(&error) & 0xff, ffi::SQLITE_BUSY, "{error}");
    assert!(fixture.snapshot() == before, "a refused open changed something");
    assert_eq!(one::<i64>(&theirs, "SELECT sum(a) FROM t"), 6);
    run(&theirs, "INSERT INTO t VALUES(7)").unwrap();
    theirs.close().unwrap();
    // The program without Duralite has closed the database, so the same connection can now make a log.
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 13);
    assert!(fixture.is_guarded("s.db"));
}

#[test]
fn inv02_busy_also_when_the_stock_connection_has_nothing_in_its_wal() {
    let fixture = Fixture::new();
    let theirs = stock(&fixture.path("s.db"));
    theirs
        .execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a); PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    let conn = connect(&fixture.uri("s.db", "")).unwrap();
    let error = run(&conn, "SELECT * FROM t").unwrap_err();
    assert_eq!(code(&error) & 0xff, ffi::SQLITE_BUSY, "{error}");
    assert!(!fixture.is_guarded("s.db"));
    assert!(fixture.logs().is_empty());
    run(&theirs, "INSERT INTO t VALUES(1)").unwrap();
}

/// The new database file replaces the old one under the same path. So the `-wal` and the `-shm` at that path
/// belong to the new file.
#[test]
fn inv02_a_connection_whose_file_was_replaced_leaves_the_files_beside_the_new_one() {
    for has_frames in [false, true] {
        let fixture = Fixture::new();
        for name in ["r.db", "new.db"] {
            let made = stock(&fixture.path(name));
            made.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(6)")
                .unwrap();
            made.close().unwrap();
        }
        let conn = connect(&fixture.uri("r.db", "")).unwrap();
        let reader = connect(&fixture.uri("r.db", "mode=ro")).unwrap();
        std::fs::rename(fixture.path("new.db"), fixture.path("r.db")).unwrap();
        let theirs = stock(&fixture.path("r.db"));
        assert_eq!(one::<i64>(&theirs, "SELECT sum(a) FROM t"), 6);
        if has_frames {
            run(&theirs, "INSERT INTO t VALUES(1)").unwrap();
        }
        let before = fixture.snapshot();
        for conn in [&conn, &reader] {
            let error = run(conn, "SELECT * FROM t").unwrap_err();
            assert_eq!(code(&error), ffi::SQLITE_READONLY_DBMOVED, "{error}");
            assert!(duralite::last_error().unwrap().contains("is another file now"));
        }
        drop((conn, reader));
        assert!(fixture.snapshot() == before, "a refused statement changed something");
        run(&theirs, "INSERT INTO t VALUES(2)").unwrap();
        let sum = one::<i64>(&theirs, "SELECT sum(a) FROM t");
        // A program that opens the database now reads the same `-wal`.
        assert_eq!(one::<i64>(&stock(&fixture.path("r.db")), "SELECT sum(a) FROM t"), sum);
    }
}

/// Leaves a database as a killed process does: only the `-wal` has the committed rows.
fn leave_wal(fixture: &Fixture) {
    let theirs = stock(&fixture.path("live.db"));
    theirs.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(1), (2)").unwrap();
    for suffix in ["", "-wal"] {
        std::fs::copy(fixture.path(&format!("live.db{suffix}")), fixture.path(&format!("left.db{suffix}")))
            .unwrap();
    }
}

fn takes_the_wal_over(fixture: &Fixture, conn: rusqlite::Connection) {
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 3);
    assert!(fixture.is_guarded("left.db"));
    assert!(!fixture.path("left.db-wal").exists());
    run(&conn, "INSERT INTO t VALUES(3)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("left.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("left.db")), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn a_wal_that_a_stock_program_left_is_taken_over() {
    let fixture = Fixture::new();
    leave_wal(&fixture);
    takes_the_wal_over(&fixture, connect(&fixture.uri("left.db", "")).unwrap());
}

/// Duralite takes over the WAL that a program without Duralite has left, also in exclusive locking mode. It
/// does so in the first statement, and needs no busy handler.
#[test]
fn inv44_a_wal_that_a_stock_program_left_is_taken_over_in_exclusive_locking_mode() {
    let fixture = Fixture::new();
    leave_wal(&fixture);
    let conn = connect(&fixture.uri("left.db", "")).unwrap();
    conn.busy_timeout(std::time::Duration::ZERO).unwrap();
    assert_eq!(one::<String>(&conn, "PRAGMA locking_mode=EXCLUSIVE"), "exclusive");
    takes_the_wal_over(&fixture, conn);
}

/// Leaves a database and its rollback journal, as a process that is killed in a large transaction does.
fn leave_journal(fixture: &Fixture) {
    let theirs = stock(&fixture.path("live.db"));
    theirs
        .execute_batch(
            "CREATE TABLE t(a, b); INSERT INTO t VALUES(1, zeroblob(9000)), (2, zeroblob(9000));
             PRAGMA cache_size=1; BEGIN; UPDATE t SET a = a + 100, b = randomblob(9000)",
        )
        .unwrap();
    for suffix in ["", "-journal"] {
        std::fs::copy(fixture.path(&format!("live.db{suffix}")), fixture.path(&format!("hot.db{suffix}")))
            .unwrap();
    }
}

#[test]
fn a_hot_rollback_journal_is_rolled_back_first() {
    let fixture = Fixture::new();
    leave_journal(&fixture);
    let conn = fixture.open("hot.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 3);
    conn.close().unwrap();
    fixture.assert_plain("hot.db");
}

/// The database's header says WAL mode, so Duralite makes a log. But first SQLite must play the journal back.
#[test]
fn inv44_a_hot_journal_beside_a_database_in_wal_mode_is_rolled_back_first() {
    let fixture = Fixture::new();
    leave_journal(&fixture);
    let mut database = std::fs::read(fixture.path("hot.db")).unwrap();
    database[18..20].fill(2);
    std::fs::write(fixture.path("hot.db"), database).unwrap();
    let conn = connect(&fixture.uri("hot.db", "")).unwrap();
    conn.busy_timeout(std::time::Duration::ZERO).unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 3);
    assert!(!fixture.path("hot.db-journal").exists());
    run(&conn, "INSERT INTO t VALUES(3, 3)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("hot.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("hot.db")), "SELECT sum(a) FROM t"), 6);
}

/// A power loss may leave both the journal of the transaction that set WAL mode, and a WAL with later
/// commits.
#[test]
fn inv44_a_hot_journal_beside_a_wal_keeps_nobody_from_opening_the_database() {
    let fixture = Fixture::new();
    let theirs = stock(&fixture.path("live.db"));
    theirs
        .execute_batch(
            "CREATE TABLE t(a, b); INSERT INTO t VALUES(1, 1), (2, 2); PRAGMA journal_mode=WAL; INSERT INTO t VALUES(3, 3)",
        )
        .unwrap();
    for suffix in ["", "-wal"] {
        std::fs::copy(fixture.path(&format!("live.db{suffix}")), fixture.path(&format!("both.db{suffix}")))
            .unwrap();
    }
    // This journal has no pages. It rolls the database back to the size that the database already has.
    let mut journal = vec![0; 512];
    journal[..8].copy_from_slice(&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    let pages = std::fs::metadata(fixture.path("both.db")).unwrap().len() / 4096;
    journal[16..20].copy_from_slice(&u32::try_from(pages).unwrap().to_be_bytes());
    journal[20..28].copy_from_slice(&[0, 0, 2, 0, 0, 0, 16, 0]);
    std::fs::write(fixture.path("both.db-journal"), journal).unwrap();
    let conn = connect(&fixture.uri("both.db", "")).unwrap();
    conn.busy_timeout(std::time::Duration::ZERO).unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    assert!(fixture.is_guarded("both.db"));
    run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("both.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("both.db")), "SELECT sum(a) FROM t"), 10);
}
