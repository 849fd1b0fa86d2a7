//! Tests the guard on the database, and the identity of its log (invariants 1 to 3). Bad input must lead to a
//! clear error, and must not change or lose anything.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod deleted;
mod directory;
mod exclusion;
mod identity;
mod live;
mod log_damage;
mod provisional;
mod refusals;

use duralite_testkit::{Actor, Fixture, run};
use rusqlite::Error;

/// Makes a database that a killed process has left. The database is guarded, and only the log has its rows 1
/// to 3.
fn abandoned(fixture: &Fixture, name: &str) {
    let mut actor = Actor::sql(&fixture.uri(name, ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(a)"), "");
    assert_eq!(actor.run("INSERT INTO t VALUES(1), (2), (3)"), "");
    actor.kill();
    assert!(fixture.is_guarded(name));
}

/// Returns the answer of another process, which opens the database and reads it.
fn read_elsewhere(uri: &str) -> String {
    Actor::start_with(&["sql", uri], &[("DURALITE_LOG", "stderr")]).run("SELECT sum(a) FROM t")
}

/// Returns the error when this process opens the database and reads it.
fn refused(uri: &str) -> Error {
    match duralite_testkit::connect(uri).and_then(|conn| run(&conn, "SELECT * FROM t")) {
        Ok(rows) => panic!("not refused: {rows:?}"),
        Err(error) => error,
    }
}
