//! Stops a process while it leads a group. The other processes must continue.

use duralite_testkit::{Actor, Engine, Fixture, integrity, one};
use rusqlite::Connection;

use super::{insert, number, prepare};

/// Returns whether the log was able to start over.
fn restart(conn: &Connection) -> bool {
    one::<i64>(conn, "PRAGMA wal_checkpoint(RESTART)") == 0
}

/// Starts a process that inserts a row. The process is stopped while it writes its group.
fn stop_in_a_commit(fixture: &Fixture, settings: &str) -> Actor {
    let mut stopped =
        Actor::start(&["stopping", &fixture.uri("s.db", settings), fixture.log_dir().to_str().unwrap()]);
    assert_eq!(stopped.run("SELECT count(*) FROM t"), "1");
    assert_eq!(stopped.run(".stop"), "");
    stopped.tell("INSERT INTO t(b) VALUES('of the stopped one')");
    stopped.until_stopped();
    stopped
}

#[test]
fn inv11_a_process_that_is_stopped_while_it_leads_holds_up_neither_readers_nor_writers() {
    for settings in ["", "layout=embedded"] {
        let fixture = Fixture::on(Engine::WALDIO);
        let conn = fixture.open_with("s.db", settings);
        prepare(&conn);
        let mut reader = Actor::sql(&fixture.uri("s.db", settings));
        let mut stopped = stop_in_a_commit(&fixture, settings);
        assert_eq!(reader.run("SELECT count(*) FROM t"), "2");
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 2);
        for _ in 0..20 {
            insert(&conn).unwrap();
        }
        assert_eq!(reader.run("INSERT INTO t(b) VALUES('of the reader')"), "");
        // The stopped process may still write to the log, so the log must not start over. But checkpoints
        // must still write pages to the database file, and commits must continue.
        assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(PASSIVE)"), 0);
        assert!(!restart(&conn));
        insert(&conn).unwrap();
        assert_eq!(number(&conn, "log_restarts"), 1);
        stopped.go_on();
        assert_eq!(stopped.line(), "");
        assert_eq!(stopped.run("SELECT count(*) FROM t"), "24");
        assert!(restart(&conn));
        insert(&conn).unwrap();
        assert_eq!(number(&conn, "log_restarts"), 2);
        integrity(&conn);
        reader.finish();
        stopped.finish();
        conn.close().unwrap();
        fixture.assert_plain("s.db");
        let rows = one::<i64>(&duralite_testkit::stock(&fixture.path("s.db")), "SELECT count(*) FROM t");
        assert_eq!(rows, 25);
    }
}

#[test]
fn inv11_a_stopped_leader_that_dies_lets_the_log_start_over() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open("s.db");
    prepare(&conn);
    let stopped = stop_in_a_commit(&fixture, "");
    insert(&conn).unwrap();
    assert!(!restart(&conn));
    stopped.kill();
    assert!(restart(&conn));
    insert(&conn).unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 4);
    conn.close().unwrap();
    fixture.assert_plain("s.db");
}

#[test]
fn inv11_readers_go_on_while_a_large_transaction_waits_for_a_stopped_leader() {
    let fixture = Fixture::on(Engine::WALDIO);
    let (conn, writer) = (fixture.open("s.db"), fixture.open("s.db"));
    prepare(&conn);
    let mut stopped = stop_in_a_commit(&fixture, "");
    let mut reads = 0;
    std::thread::scope(|scope| {
        let large = scope.spawn(|| {
            let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
                       INSERT INTO t(b) SELECT hex(randomblob(500)) FROM n";
            let writer = writer;
            writer.execute_batch(sql).unwrap();
        });
        while !large.is_finished() {
            let rows = one::<i64>(&conn, "SELECT count(*) FROM t");
            assert!([2, 4002].contains(&rows), "{rows} rows");
            reads += 1;
        }
    });
    // If each read had waited for the large transaction, there would be fewer reads.
    assert!(reads > 10, "{reads} reads");
    stopped.go_on();
    assert_eq!(stopped.line(), "");
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 4002);
    integrity(&conn);
    stopped.finish();
}
