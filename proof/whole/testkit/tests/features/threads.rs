//! Tests connections of several threads, and connections that outlive almost all other values of their thread.

use std::sync::mpsc;
use std::time::Duration;

use duralite_testkit::{Fixture, integrity, one, run, stock, when_thread_ends};
use rusqlite::{Connection, ErrorCode, OpenFlags};

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

/// A connection that joins a shared cache finds SQLite's pointer to the connection that has used the cache last,
/// which another thread may have closed.
#[test]
fn connections_of_several_threads_join_and_leave_a_shared_cache() {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 3000;
    let fixture = Fixture::new();
    // With a mutex for each connection, which a connection that is closed no longer has.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_SHARED_CACHE
        | OpenFlags::SQLITE_OPEN_FULL_MUTEX;
    let uri = fixture.uri("t.db", "");
    let kept = fixture.open("t.db");
    run(&kept, "PRAGMA journal_mode=WAL").unwrap();
    run(&kept, "CREATE TABLE t(id INTEGER PRIMARY KEY, n)").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let uri = &uri;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let conn = Connection::open_with_flags(uri, flags).unwrap();
                    conn.busy_timeout(Duration::from_secs(20)).unwrap();
                    let insert = format!("INSERT INTO t VALUES({}, {round})", round * THREADS + thread);
                    // SQLite does not wait for the locks on tables of a shared cache.
                    while let Err(error) = run(&conn, &insert) {
                        let code = error.sqlite_error_code();
                        let waits = [ErrorCode::DatabaseLocked, ErrorCode::DatabaseBusy];
                        assert!(code.is_some_and(|code| waits.contains(&code)), "{error}");
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    integrity(&kept);
    assert_eq!(one::<i64>(&kept, "SELECT count(*) FROM t"), THREADS * ROUNDS);
}
