//! Tests how the first connection after a crash recovers the database, and what SQLite finds after the
//! recovery.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::fs;

use duralite_testkit::{Actor, Engine, Fixture, connect, integrity, one, run};

/// Makes a database whose writer was killed with commits in the log. Returns the sum of the values that the
/// writer has written.
fn crashed(fixture: &Fixture) -> i64 {
    let mut writer = Actor::sql(&fixture.uri("r.db", ""));
    for sql in
        ["PRAGMA journal_mode=WAL", "PRAGMA wal_autocheckpoint=0", "CREATE TABLE t(a INTEGER PRIMARY KEY, b)"]
    {
        writer.run(sql);
    }
    for n in 1..=300 {
        writer.run(&format!("INSERT INTO t VALUES({n}, printf('%0200d', {n}))"));
    }
    // Some rows change again, and the database becomes shorter.
    writer.run("UPDATE t SET b = printf('%0200d', a + 1) WHERE a % 3 = 0");
    writer.run("DELETE FROM t WHERE a > 200");
    writer.run("VACUUM");
    writer.kill();
    (1..=200).map(|n| if n % 3 == 0 { n + 1 } else { n }).sum()
}

const SUM: &str = "SELECT sum(CAST(b AS INTEGER)) FROM t";

/// Returns whether this engine writes pages straight to the database file. Other engines may keep pages
/// elsewhere.
fn is_plain(fixture: &Fixture) -> bool {
    [Engine::WALDIO, Engine::NVWAL].contains(&fixture.engine())
}

fn frames(conn: &rusqlite::Connection) -> u64 {
    let status: String = one(conn, "PRAGMA duralite");
    let frames = status.lines().find_map(|line| line.strip_prefix("log_frames"));
    frames.unwrap().trim().parse().unwrap()
}

#[test]
fn inv05_the_first_connection_after_a_crash_puts_pages_home_and_empties_the_log() {
    let fixture = Fixture::new();
    let sum = crashed(&fixture);
    let conn = connect(&fixture.uri("r.db", "")).unwrap();
    assert_eq!(one::<i64>(&conn, SUM), sum);
    if is_plain(&fixture) {
        assert_eq!(frames(&conn), 0);
        let pages: u64 = one::<i64>(&conn, "PRAGMA page_count").try_into().unwrap();
        let page_bytes: u64 = one::<i64>(&conn, "PRAGMA page_size").try_into().unwrap();
        assert_eq!(fs::metadata(fixture.path("r.db")).unwrap().len(), pages * page_bytes);
    }
    integrity(&conn);
    run(&conn, "INSERT INTO t VALUES(1000, 5)").unwrap();
    let other = connect(&fixture.uri("r.db", "")).unwrap();
    assert_eq!(one::<i64>(&other, SUM), sum + 5);
    drop((conn, other));
    fixture.assert_plain("r.db");
}

#[test]
fn inv05_a_read_only_connection_leaves_recovery_to_sqlite() {
    let fixture = Fixture::new();
    let sum = crashed(&fixture);
    let before = fs::read(fixture.path("r.db")).unwrap();
    let conn = connect(&format!("{}&mode=ro", fixture.uri("r.db", ""))).unwrap();
    assert_eq!(one::<i64>(&conn, SUM), sum);
    if is_plain(&fixture) {
        assert!(frames(&conn) > 0);
        assert!(fs::read(fixture.path("r.db")).unwrap() == before, "it has written the database");
    }
}
