//! A parent that commits before and after it forks each of its children. Every second fork happens in the
//! middle of a transaction that is partly in the log. The children inherit the parent's connection, and open
//! their own connections.

use std::io::{Read, Write};
use std::time::Duration;

use duralite_testkit::{Ended, connect, fork, integrity, one};
use rusqlite::Connection;

/// The number of rows, which is more than the parent's cache holds.
const ROWS: i64 = 60;

fn open(uri: &str) -> Connection {
    let conn = connect(uri).unwrap();
    conn.busy_timeout(Duration::from_secs(30)).unwrap();
    conn
}

fn insert(conn: &Connection, rows: i64) {
    for _ in 0..rows {
        conn.execute("INSERT INTO t(filler) VALUES(randomblob(900))", []).unwrap();
    }
}

/// Runs the child. Returns the number of rows that the child has inserted.
fn child(uri: &str, conn: &mut Option<Connection>, inherited: &str, done: &mut impl Write) -> i64 {
    match inherited {
        "used" => {
            let conn = conn.as_ref().unwrap();
            let refused = duralite_testkit::run(conn, "UPDATE t SET filler = 0").is_err();
            assert!(refused, "an inherited connection writes");
        }
        "rolled-back" => drop(conn.as_ref().unwrap().execute_batch("ROLLBACK")),
        "closed-first" => drop(conn.take()),
        _ => {}
    }
    done.write_all(&[1]).unwrap();
    let own = open(uri);
    insert(&own, 1);
    if inherited == "closed-last" {
        drop(conn.take());
        insert(&own, 1);
    }
    integrity(&own);
    1
}

pub fn run(uri: &str, inherited: &str, children: i64) {
    let mut conn = Some(open(uri));
    let own = conn.as_ref().unwrap();
    own.execute_batch("PRAGMA cache_size=3; CREATE TABLE t(id INTEGER PRIMARY KEY, filler)").unwrap();
    let mut expected = 0;
    for number in 0..children {
        let own = conn.as_ref().unwrap();
        let in_transaction = number % 2 == 0;
        own.execute_batch(if in_transaction { "BEGIN IMMEDIATE" } else { "" }).unwrap();
        insert(own, ROWS);
        let (mut waits, mut done) = std::io::pipe().unwrap();
        let forked = fork(|| child(uri, &mut conn, inherited, &mut done) == 1);
        waits.read_exact(&mut [0]).unwrap();
        let own = conn.as_ref().unwrap();
        insert(own, ROWS);
        own.execute_batch(if in_transaction { "COMMIT" } else { "" }).unwrap();
        assert_eq!(forked.wait(), Ended::Well, "child {number}, {inherited}");
        insert(own, 1);
        expected += 2 * ROWS + 2 + i64::from(inherited == "closed-last");
        let count: i64 = one(own, "SELECT count(*) FROM t");
        assert_eq!(count, expected, "behind child {number}, {inherited}");
        integrity(own);
    }
    drop(conn);
}
