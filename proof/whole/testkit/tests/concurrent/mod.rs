//! Tests concurrent write transactions (`concurrent=on` and `concurrent=upgrade`), compared with stock
//! SQLite.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod allocation;
mod attach;
mod checkpoints;
mod conflicts;
mod cursors;
mod frames;
mod hooks;
mod large;
mod lifecycle;
mod maintenance;
mod same;
mod savepoints;
mod upgrade;

use duralite_testkit::{Engine, Fixture, code, run};
use rusqlite::{Connection, ffi};

/// The values of `concurrent` that make a connection concurrent.
const MODES: [&str; 2] = ["on", "upgrade"];
/// The code of a statement that succeeds.
const OK: i32 = ffi::SQLITE_OK;
const BUSY: i32 = ffi::SQLITE_BUSY;
/// The code of a statement that fails because another transaction has overtaken this one.
const OVERTAKEN: i32 = ffi::SQLITE_BUSY_SNAPSHOT;

/// Opens a connection to `c.db` with this setting.
fn open(fixture: &Fixture, mode: &str) -> Connection {
    fixture.open_with("c.db", &format!("concurrent={mode}"))
}

/// Makes a fixture and connections with this setting. The table `t(k, v, pad)` has the rows 0 to 99, three or
/// four in a page.
fn with_rows<const N: usize>(mode: &str) -> (Fixture, [Connection; N]) {
    on_engine(Engine::under_test(), mode)
}

/// Does the same as [`with_rows`], on this engine.
fn on_engine<const N: usize>(engine: Engine, mode: &str) -> (Fixture, [Connection; N]) {
    let fixture = Fixture::on(engine);
    let first = open(&fixture, "off");
    rows(&first);
    let conns = [(); N].map(|()| open(&fixture, mode));
    (fixture, conns)
}

fn rows(conn: &Connection) {
    conn.execute_batch(
        "CREATE TABLE t(k INTEGER PRIMARY KEY, v INTEGER, pad TEXT);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99)
         INSERT INTO t SELECT i, 0, hex(zeroblob(500)) FROM n",
    )
    .unwrap();
}

/// Runs statements up to the first that fails. Returns that statement's code, or `OK`.
#[track_caller]
fn codes(conn: &Connection, statements: &str) -> i32 {
    let failed = statements.split(';').find_map(|sql| run(conn, sql).err());
    failed.map_or(OK, |error| code(&error))
}
