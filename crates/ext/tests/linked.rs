//! Tests of a program that is linked to this crate and to a SQLite, and loads no extension.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use rusqlite::{Connection, Result, TransactionBehavior};

const ADD: &str = "UPDATE t SET x = x + 1";

fn status(conn: &Connection) -> Result<String> {
    conn.query_row("PRAGMA duralite", [], |row| row.get(0))
}

#[test]
fn a_database_whose_uri_says_so_goes_through_duralite_and_others_do_not() {
    duralite::register().unwrap();
    duralite::register().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a b?c#%41.db");
    let conn = Connection::open(duralite::uri(&path, &[])).unwrap();
    conn.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(x); INSERT INTO t VALUES(1)",
    )
    .unwrap();
    let status = status(&conn).unwrap();
    assert!(status.contains("state\tactive") && status.contains("commits\t2"), "{status}");
    drop(conn);
    let plain = Connection::open(&path).unwrap();
    assert_eq!(plain.query_row("SELECT x FROM t", [], |row| row.get(0)), Ok(1));
    assert!(is_stock(&plain));
}

/// Returns whether plain SQLite serves the database. Plain SQLite returns no row for a pragma that it does
/// not know.
fn is_stock(conn: &Connection) -> bool {
    matches!(status(conn), Err(rusqlite::Error::QueryReturnedNoRows))
}

#[test]
fn what_is_refused_has_a_reason() {
    duralite::register().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let before = duralite::last_refusal();
    assert!(Connection::open(duralite::uri(&path, &[("journal", "no")])).is_err());
    assert!(duralite::last_refusal() > before);
    assert!(duralite::last_error().unwrap().contains("journal=no is not valid"));

    let conn = Connection::open(duralite::uri(&path, &[])).unwrap();
    assert!(conn.execute_batch("CREATE TABLE t(x)").is_err(), "strict, and not in WAL mode");
    assert!(duralite::last_error().unwrap().contains("strict=on refuses to write"));
    let lax = Connection::open(duralite::uri(&path, &[("strict", "off")])).unwrap();
    lax.execute_batch("CREATE TABLE t(x)").unwrap();
}

#[test]
fn a_transaction_that_is_overtaken_runs_again() {
    duralite::register().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open =
        || Connection::open(duralite::uri(dir.path().join("app.db"), &[("concurrent", "on")])).unwrap();
    let rival = open();
    rival
        .execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA busy_timeout=0; CREATE TABLE t(x); INSERT INTO t VALUES(0)",
        )
        .unwrap();
    let mut conn = open();
    let read = |conn: &Connection| conn.query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0));
    let code = |error: &rusqlite::Error| error.sqlite_error().map(|error| error.extended_code);
    for times in [0, 2, 5] {
        let before = read(&rival).unwrap();
        let mut count = 0;
        duralite::run(code, |attempts| {
            let takes_lock = attempts.takes_lock();
            let behavior =
                if takes_lock { TransactionBehavior::Immediate } else { TransactionBehavior::Deferred };
            let transaction = conn.transaction_with_behavior(behavior)?;
            read(&transaction)?;
            count += 1;
            if count <= times {
                rival.execute(ADD, []).unwrap();
            }
            assert!(!takes_lock || rival.execute(ADD, []).is_err(), "others are kept out");
            transaction.execute(ADD, [])?;
            transaction.commit()
        })
        .unwrap();
        assert_eq!((count, read(&rival).unwrap()), (times + 1, before + times + 1));
    }
}
