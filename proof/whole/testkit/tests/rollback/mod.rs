//! Tests real SQLite with rollback journals in a log, on every engine that keeps rollback journals.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod calls;
mod hot;
mod idle;
mod modes;
mod playback;
mod rights;
mod several;

use duralite_testkit::{Engine, Fixture, connect, one, run};
use rusqlite::Connection;

/// The journal modes that use a rollback journal.
const MODES: [&str; 3] = ["DELETE", "TRUNCATE", "PERSIST"];
const NAME: &str = "r.db";

/// Runs a test on every engine that keeps rollback journals, in each journal mode.
fn each(test: impl Fn(&Fixture, &str)) {
    for engine in Engine::keeping_rollback_journals() {
        for mode in MODES {
            eprintln!("{engine:?}, {mode}");
            test(&Fixture::on(engine), mode);
        }
    }
}

/// Opens a connection in this journal mode.
fn open(fixture: &Fixture, mode: &str) -> Connection {
    let conn = connect(&fixture.uri(NAME, "")).unwrap();
    let set = one::<String>(&conn, &format!("PRAGMA journal_mode={mode}"));
    assert_eq!(set.to_uppercase(), mode);
    conn
}

/// Makes a database with a table of a few pages on stock SQLite.
fn make(fixture: &Fixture) {
    let conn = duralite_testkit::stock(&fixture.path(NAME));
    run(&conn, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)").unwrap();
    run(&conn, "INSERT INTO t VALUES(1, zeroblob(9000)), (2, zeroblob(5000)), (3, 'three')").unwrap();
}

fn has_file(fixture: &Fixture, end: &str) -> bool {
    fixture.path(&format!("{NAME}{end}")).exists()
}
