//! Tests that a program can add an engine to the registry, and that the engine serves databases as the
//! product's own engines do.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use duralite_testkit::{Actor, Engine, Fixture, connect, integrity, one, run};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::placement;

fn place() -> Fixture {
    Fixture::on(Engine::named("vec").unwrap())
}

#[test]
fn an_engine_that_was_added_serves_a_database() {
    let fixture = place();
    let (first, second) = (fixture.open("v.db"), fixture.open("v.db"));
    assert!(one::<String>(&first, "PRAGMA duralite").contains("engine\tvec"));
    run(&first, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)").unwrap();
    for number in 1..=50 {
        run(&first, &format!("INSERT INTO t VALUES({number}, randomblob(500))")).unwrap();
        assert_eq!(one::<i64>(&second, "SELECT count(*) FROM t"), number);
    }
    second.execute_batch("BEGIN; DELETE FROM t; ROLLBACK").unwrap();
    assert_eq!(one::<i64>(&first, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    run(&second, "DELETE FROM t WHERE a > 40").unwrap();
    assert_eq!(one::<i64>(&first, "SELECT count(*) FROM t"), 40);
    integrity(&first);
    assert!(fixture.is_guarded("v.db"));
    drop((first, second));
    fixture.assert_plain("v.db");
    assert!(fixture.logs().is_empty());
}

#[test]
fn the_tools_look_at_its_logs() {
    let fixture = place();
    let conn = fixture.open("v.db");
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    conn.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1); INSERT INTO t VALUES(2)").unwrap();
    let about = placement::describe(&fixture.log()).unwrap();
    assert_eq!((about.engine.name, about.database.as_path()), ("vec", &*fixture.path("v.db")));
    let mut transactions = Vec::new();
    let summary =
        placement::walk(&fixture.log(), &NoDatabase, &mut |found| transactions.push(found.last_frame))
            .unwrap();
    let log = placement::open_log_read_only(&fixture.log()).unwrap();
    assert_eq!((summary.frames, summary.mismatch), (log.committed(), None));
    assert_eq!(
        (transactions.len(), transactions.last()),
        (summary.transactions as usize, Some(&summary.frames))
    );
}

#[test]
fn another_process_is_refused_and_so_is_one_that_comes_after() {
    let fixture = place();
    let conn = fixture.open("v.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let mut other = Actor::sql(&fixture.uri("v.db", ""));
    let refusal = other.run("SELECT * FROM t");
    assert!(refusal.contains("error"), "{refusal}");
    other.finish();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 0);
}

#[test]
fn its_name_is_known_like_those_of_the_product() {
    let fixture = place();
    let uri = |journal| format!("file:{}?vfs=duralite&journal={journal}", fixture.path("v.db").display());
    assert!(connect(&uri("vec")).is_ok());
    assert!(connect(&uri("vector")).is_err());
    let told: String = one(&connect(&uri("vec")).unwrap(), "SELECT duralite_last_error()");
    assert!(
        told.contains("use auto, nvwal, scratchpad, waldio, ppl, vec, side, undo, sideundo or off"),
        "{told}"
    );
    let conn = connect(&uri("auto")).unwrap();
    assert!(one::<String>(&conn, "PRAGMA duralite").contains("engine\twaldio"));
}
