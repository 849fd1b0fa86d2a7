//! Tests what only `waldio` promises, beyond the promises of all engines.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod crowd;
mod device;
mod settings;
mod stopped;

use std::collections::HashMap;

use rusqlite::Connection;

/// Returns the lines of `PRAGMA duralite`, by name.
fn status_of(conn: &Connection) -> HashMap<String, String> {
    let text: String = duralite_testkit::one(conn, "PRAGMA duralite");
    text.lines().filter_map(|line| line.split_once('\t')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

fn number(conn: &Connection, name: &str) -> u64 {
    status_of(conn)[name].parse().unwrap()
}

/// Makes a table with one row.
fn prepare(conn: &Connection) {
    conn.execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t(b) VALUES('first')")
        .unwrap();
}

fn insert(conn: &Connection) -> rusqlite::Result<usize> {
    conn.execute("INSERT INTO t(b) VALUES(?1)", ["x".repeat(100)])
}
