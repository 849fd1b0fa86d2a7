//! Tests transactions that are larger than a log of `ppl` usually is. The log grows for such a transaction, and gives
//! the memory back afterwards.

use duralite_testkit::{Actor, Engine, Fixture, TinyDirectory, code, connect, one, run};
use rusqlite::{Connection, ffi};

use super::space::space;
use super::status_of;

/// The setting for the usual size of a log. With `ROWS` rows the database is ten times as large as that.
const USUAL: &str = "usual_bytes=1m";
const ROWS: u32 = 10_000;
const USUAL_SPACE: u64 = 3 << 20;
const LARGE: u64 = 10 << 20;

fn applies() -> bool {
    Engine::under_test() == Engine::PPL
}

/// Makes the database, and checkpoints all of its pages into the database file. The table `pad` lies before the rows in
/// the file. So after `pad` is dropped, VACUUM moves every row.
fn large(conn: &Connection) {
    conn.execute_batch(&format!(
        "CREATE TABLE pad AS SELECT randomblob(9000);
         CREATE TABLE t(a INTEGER PRIMARY KEY, version, b BLOB);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
         INSERT INTO t SELECT i, 0, randomblob(1000) FROM n;
         PRAGMA wal_checkpoint(TRUNCATE)"
    ))
    .unwrap();
}

fn update(version: u32) -> String {
    format!("UPDATE t SET version = {version}, b = randomblob(1000)")
}

/// Returns the version that all rows have.
fn version(conn: &Connection) -> u32 {
    assert_eq!(one::<String>(conn, "PRAGMA integrity_check"), "ok");
    let rows = format!("SELECT count(*) = {ROWS} AND min(version) = max(version) FROM t");
    assert!(one::<bool>(conn, &rows), "a part of a transaction");
    one(conn, "SELECT max(version) FROM t")
}

#[test]
fn inv10_vacuum_and_an_update_of_everything_fit_beside_a_reader_of_an_old_snapshot() {
    if !applies() {
        return;
    }
    let fixture = Fixture::new();
    let conn = fixture.open_with("l.db", USUAL);
    large(&conn);
    assert!(space(&fixture, &conn) <= USUAL_SPACE, "{} bytes", space(&fixture, &conn));
    let mut reader = Actor::sql(&fixture.uri("l.db", ""));
    reader.run("BEGIN");
    let before = reader.run("SELECT sum(version), count(*), hex(max(b)) FROM t");
    for n in 1..=2 {
        run(&conn, &update(n)).unwrap();
        run(&conn, "DROP TABLE IF EXISTS pad").unwrap();
        run(&conn, "VACUUM").unwrap();
        assert!(space(&fixture, &conn) > LARGE, "{} bytes", space(&fixture, &conn));
        assert_eq!((version(&conn), status_of(&conn)["log_limit"].as_str()), (n, "none"));
        assert_eq!(reader.run("SELECT sum(version), count(*), hex(max(b)) FROM t"), before);
    }
    reader.run("COMMIT");
    assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    assert!(space(&fixture, &conn) <= USUAL_SPACE, "{} bytes", space(&fixture, &conn));
    let after = reader.run("SELECT sum(version), count(*) FROM t");
    assert!(after.contains(&(2 * ROWS).to_string()), "{after}");
    // The log grows again into memory that it gave back. This works even if the process that makes it grow does not
    // know yet that the log has shrunk.
    reader.run(&update(3));
    assert_eq!(version(&conn), 3);
    drop(conn);
    reader.finish();
    fixture.assert_plain("l.db");
}

/// The test kills a process when the log has grown beyond its usual size, in the middle of the commit or soon after it.
#[test]
fn inv07_a_process_killed_while_the_log_grows_leaves_all_of_its_transaction_or_nothing() {
    if !applies() {
        return;
    }
    let fixture = Fixture::new();
    let conn = fixture.open_with("l.db", USUAL);
    large(&conn);
    let mut last = version(&conn);
    for n in 1..=6 {
        let mut writer = Actor::sql(&fixture.uri("l.db", ""));
        writer.run("PRAGMA wal_autocheckpoint=0");
        writer.tell(&update(n));
        while space(&fixture, &conn) <= USUAL_SPACE + u64::from(n - 1) * (1 << 20) && !writer.has_ended() {
            std::hint::spin_loop();
        }
        writer.kill();
        let found = version(&conn);
        assert!([last, n].contains(&found), "{found} after {last} and {n}");
        last = found;
        run(&conn, "UPDATE t SET b = 'x' WHERE a = 7").unwrap();
        // The checkpoints that follow give the memory back. The first of them may still find the locks that the dead
        // process held.
        let mut checkpoints = 0;
        while space(&fixture, &conn) > USUAL_SPACE {
            assert!(checkpoints < 100, "{} bytes", space(&fixture, &conn));
            run(&conn, "UPDATE t SET b = 'y' WHERE a = 7").unwrap();
            run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            checkpoints += 1;
        }
    }
    drop(conn);
    fixture.assert_plain("l.db");
    assert_eq!(version(&fixture.open("l.db")), last);
}

#[test]
fn inv10_without_memory_for_a_large_transaction_nothing_is_lost() {
    if !applies() {
        return;
    }
    let Some(log_dir) = TinyDirectory::new(6 << 10) else { return };
    let fixture = Fixture::new();
    let conn = connect(&fixture.uri_with_log_dir("l.db", log_dir.path(), USUAL)).unwrap();
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    conn.execute_batch(
        "CREATE TABLE pad AS SELECT randomblob(9000); CREATE TABLE t(a INTEGER PRIMARY KEY, version, b BLOB)",
    )
    .unwrap();
    for from in (0..ROWS).step_by(1000) {
        run(
            &conn,
            &format!(
                "WITH RECURSIVE n(i) AS (SELECT {from} + 1 UNION ALL SELECT i + 1 FROM n WHERE i < {from} + 1000)
                 INSERT INTO t SELECT i, 0, randomblob(1000) FROM n"
            ),
        )
        .unwrap();
    }
    run(&conn, "DROP TABLE pad").unwrap();
    for sql in [update(1), "VACUUM".to_owned(), update(2)] {
        let failed = run(&conn, &sql).unwrap_err();
        assert_eq!(code(&failed), ffi::SQLITE_FULL, "{sql}");
        assert_eq!(version(&conn), 0);
        run(&conn, "UPDATE t SET b = randomblob(1000) WHERE a < 300").unwrap();
    }
    let other = connect(&fixture.uri_with_log_dir("l.db", log_dir.path(), "")).unwrap();
    assert_eq!(version(&other), 0);
    drop((conn, other));
    assert_eq!(version(&connect(&fixture.uri_with_log_dir("l.db", log_dir.path(), "")).unwrap()), 0);
}

/// The next process gives back the memory of a large log that was kept at the last close.
#[test]
fn inv10_a_large_log_that_was_kept_shrinks_with_the_next_checkpoint() {
    if !applies() {
        return;
    }
    let fixture = Fixture::new();
    let keeping = format!("{USUAL}&on_close=keep");
    let conn = fixture.open_with("l.db", &keeping);
    large(&conn);
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    run(&conn, &update(1)).unwrap();
    drop(conn);
    let conn = fixture.open_with("l.db", &keeping);
    assert_eq!(version(&conn), 1);
    run(&conn, "UPDATE t SET b = 'x' WHERE a = 7").unwrap();
    run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert!(space(&fixture, &conn) <= USUAL_SPACE, "{} bytes", space(&fixture, &conn));
    assert_eq!(version(&conn), 1);
}
