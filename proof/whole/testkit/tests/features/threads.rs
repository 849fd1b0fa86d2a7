//! Tests connections that outlive almost all other values of their thread.

use std::sync::mpsc;

use duralite_testkit::{Fixture, one, run, stock, when_thread_ends};

/// A thread-local value in C or C++ may own a connection, and may close it only when the thread ends.
#[test]
fn a_connection_is_used_and_closed_in_the_last_destructors_of_its_thread() {
    let fixture = Fixture::new();
    let (said, hear) = mpsc::channel();
    let (uri, db) = (fixture.uri("t.db", ""), fixture.path("t.db"));
    std::thread::spawn(move || {
        let conn = duralite_testkit::connect(&uri).unwrap();
        for sql in ["PRAGMA journal_mode=WAL", "CREATE TABLE t(a)", "INSERT INTO t VALUES(1)"] {
            run(&conn, sql).unwrap();
        }
        when_thread_ends(move || {
            let written = run(&conn, "INSERT INTO t VALUES(2)").map(drop);
            let refused = duralite_testkit::connect(&format!("file:{}?vfs=duralite&journal=?", db.display()))
                .and_then(|conn| run(&conn, "SELECT 1 FROM t"));
            said.send((written, refused.is_err(), conn.close().map_err(|(_, error)| error))).unwrap();
        });
    })
    .join()
    .unwrap();
    let (written, refused, closed) = hear.recv().unwrap();
    written.unwrap();
    closed.unwrap();
    assert!(refused);
    fixture.assert_plain("t.db");
    assert!(fixture.logs().is_empty());
    assert_eq!(one::<i64>(&stock(&fixture.path("t.db")), "SELECT sum(a) FROM t"), 3);
}
