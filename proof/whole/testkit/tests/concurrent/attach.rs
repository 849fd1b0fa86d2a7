//! Tests that a transaction that writes several databases commits in all of them or in none, even if other
//! connections write at the same time.

use duralite_testkit::{Fixture, integrity, one, run, stock};
use rusqlite::{Connection, ffi};

use super::{MODES, OK, codes, open, rows};

/// Opens `c.db` with `concurrent` set to the first mode. Attaches `z.db` as `z` with `concurrent` set to the
/// second mode.
fn with_attached(fixture: &Fixture, modes: [&str; 2]) -> Connection {
    let conn = open(fixture, modes[0]);
    attach(fixture, &conn, modes[1]);
    conn
}

fn attach(fixture: &Fixture, conn: &Connection, mode: &str) {
    run(conn, &format!("ATTACH '{}' AS z", fixture.uri("z.db", &format!("concurrent={mode}")))).unwrap();
}

/// Makes a fixture with two databases, and an ordinary connection to each.
fn two() -> (Fixture, [Connection; 2]) {
    let fixture = Fixture::new();
    let conns = ["c.db", "z.db"].map(|name| fixture.open(name));
    conns.iter().for_each(rows);
    (fixture, conns)
}

const BOTH: [[&str; 2]; 5] =
    [["on", "on"], ["on", "off"], ["off", "on"], ["upgrade", "on"], ["on", "upgrade"]];

fn sums(conns: &[Connection; 2]) -> [i64; 2] {
    [0, 1].map(|at| one(&conns[at], "SELECT sum(v) FROM t"))
}

#[test]
fn inv62_a_transaction_writes_both_or_none() {
    // Before the commit, another connection commits to the first database, to the second, to both, or to
    // neither.
    for modes in BOTH {
        for (in_first, in_second) in [(false, false), (true, false), (false, true), (true, true)] {
            let (fixture, plain) = two();
            let conn = with_attached(&fixture, modes);
            assert_eq!(codes(&conn, "BEGIN; SELECT sum(v) FROM main.t; SELECT sum(v) FROM z.t"), OK);
            for (at, writes) in [in_first, in_second].into_iter().enumerate() {
                if writes {
                    assert_eq!(codes(&plain[at], "UPDATE t SET v=100 WHERE k=50"), OK);
                }
            }
            let foreign = [in_first, in_second].map(|writes| if writes { 100 } else { 0 });
            let result =
                codes(&conn, "UPDATE main.t SET v=v+1 WHERE k=1; UPDATE z.t SET v=v+1 WHERE k=1; COMMIT");
            let own = if result == OK { 1 } else { 0 };
            assert_eq!(result == OK, !in_first && !in_second, "{modes:?} {foreign:?}: {result}");
            if !conn.is_autocommit() {
                assert_eq!(codes(&conn, "ROLLBACK"), OK);
            }
            assert_eq!(sums(&plain), foreign.map(|sum| sum + own), "{modes:?} {foreign:?}");
            assert_eq!(codes(&conn, "BEGIN; UPDATE main.t SET v=0; UPDATE z.t SET v=0; COMMIT"), OK);
            assert_eq!(sums(&plain), [0, 0]);
        }
    }
}

#[test]
fn a_database_that_is_attached_when_the_transaction_has_written() {
    for mode in MODES {
        for other_commits in [false, true] {
            let (fixture, plain) = two();
            let conn = open(&fixture, "on");
            assert_eq!(codes(&conn, "BEGIN; UPDATE t SET v=v+1 WHERE k=1"), OK);
            attach(&fixture, &conn, mode);
            assert_eq!(codes(&conn, "UPDATE z.t SET v=v+1 WHERE k=1"), OK);
            if other_commits {
                assert_eq!(codes(&plain[0], "UPDATE t SET v=v+1 WHERE k=1"), OK);
            }
            let result = codes(&conn, "COMMIT");
            assert_eq!(result == OK, !other_commits);
            assert!(conn.is_autocommit());
            assert_eq!(sums(&plain), if other_commits { [1, 0] } else { [1, 1] });
            // The connection has released the locks of both databases.
            plain.iter().for_each(|conn| assert_eq!(codes(conn, "UPDATE t SET v=5 WHERE k=1"), OK));
        }
    }
}

/// A transaction that Duralite validates takes WRITE only during COMMIT, when SQLite has already opened the
/// super-journal. With `replicated=on` Duralite must refuse this COMMIT: the archive has only one database,
/// and so would get only a part of the transaction.
#[test]
fn inv62_a_super_journal_counts_also_if_the_databases_were_attached_in_the_transaction() {
    for mode in MODES {
        let (fixture, plain) = two();
        let conn = fixture.open_with("c.db", &format!("concurrent={mode}&replicated=on"));
        assert_eq!(codes(&conn, "BEGIN; UPDATE t SET v=v+1 WHERE k=1"), OK, "{mode}");
        for name in ["x", "y"] {
            let path = fixture.path(&format!("{name}.db"));
            stock(&path).execute_batch("CREATE TABLE t(v)").unwrap();
            run(&conn, &format!("ATTACH 'file:{}?vfs=unix' AS {name}", path.display())).unwrap();
            assert_eq!(codes(&conn, &format!("INSERT INTO {name}.t VALUES(1)")), OK, "{mode}");
        }
        assert_eq!(codes(&conn, "COMMIT"), ffi::SQLITE_READONLY, "{mode}");
        codes(&conn, "ROLLBACK");
        assert_eq!(sums(&plain), [0, 0], "{mode}");
        for name in ["x.db", "y.db"] {
            assert_eq!(one::<i64>(&stock(&fixture.path(name)), "SELECT count(*) FROM t"), 0, "{mode}");
        }
    }
}

#[test]
fn an_attached_database_of_another_vfs_or_in_memory() {
    for mode in MODES {
        let (fixture, [first, _]) = two();
        let plain = stock(&fixture.path("plain.db"));
        rows(&plain);
        for uri in [
            format!("file:{}?vfs=unix", fixture.path("plain.db").display()),
            "file:memory?mode=memory".into(),
        ] {
            let conn = open(&fixture, mode);
            run(&conn, &format!("ATTACH '{uri}' AS m")).unwrap();
            assert_eq!(codes(&conn, "CREATE TABLE IF NOT EXISTS m.u(a)"), OK);
            assert_eq!(codes(&conn, "BEGIN; SELECT sum(v) FROM t; INSERT INTO u VALUES(1)"), OK);
            assert_eq!(codes(&first, "UPDATE t SET v=v+1 WHERE k=50"), OK);
            assert_ne!(codes(&conn, "UPDATE t SET v=v+1 WHERE k=1"), OK, "it would not fail at its commit");
            assert_eq!(codes(&conn, "ROLLBACK"), OK);
            assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM u"), 0);
            assert_eq!(
                codes(&conn, "BEGIN; INSERT INTO u VALUES(1); UPDATE t SET v=v+1 WHERE k=1; COMMIT"),
                OK
            );
            assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM u"), 1);
            integrity(&conn);
        }
        assert_eq!(one::<i64>(&first, "SELECT sum(v) FROM t"), 4);
    }
}

#[test]
fn the_same_database_twice_excludes_itself() {
    for mode in MODES {
        let (fixture, plain) = two();
        let conn = open(&fixture, mode);
        run(&conn, &format!("ATTACH '{}' AS twice", fixture.uri("c.db", "concurrent=on"))).unwrap();
        assert_eq!(codes(&conn, "BEGIN; UPDATE main.t SET v=1 WHERE k=1"), OK);
        assert_eq!(codes(&conn, "UPDATE twice.t SET v=1 WHERE k=90"), super::BUSY, "as with stock SQLite");
        assert_eq!(codes(&conn, "COMMIT; UPDATE twice.t SET v=1 WHERE k=90"), OK);
        assert_eq!(sums(&plain), [2, 0]);
    }
}

#[test]
fn temporary_tables_belong_to_the_transaction() {
    for mode in MODES {
        let (fixture, [first, _]) = two();
        let conn = open(&fixture, mode);
        assert_eq!(
            codes(&conn, "CREATE TEMP TABLE x(a); BEGIN; INSERT INTO x SELECT v FROM t WHERE k<10"),
            OK
        );
        assert_eq!(codes(&first, "UPDATE t SET v=2 WHERE k=1"), OK);
        let result = codes(&conn, "UPDATE t SET v=3 WHERE k=90; COMMIT");
        assert_eq!(result, super::OVERTAKEN);
        if !conn.is_autocommit() {
            assert_eq!(codes(&conn, "ROLLBACK"), OK);
        }
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM x"), 0, "{mode}");
        // A transaction that writes only temporary tables conflicts with no other.
        assert_eq!(codes(&conn, "BEGIN; INSERT INTO x SELECT v FROM t"), OK);
        assert_eq!(codes(&first, "UPDATE t SET v=4 WHERE k=1"), OK);
        assert_eq!(codes(&conn, "COMMIT"), OK);
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM x"), 2);
    }
}
