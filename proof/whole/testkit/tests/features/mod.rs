//! Tests SQLite's features on Duralite.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod conflicts;
mod controls;
mod durability;
mod keeping;
mod maintenance;
mod opening;
mod outgrowing;
mod rights;
mod several;
mod space;
mod status;
mod tables;
mod threads;
mod transactions;

use std::collections::HashMap;

use rusqlite::Connection;

/// Returns the lines of `PRAGMA duralite`, by name.
fn status_of(conn: &Connection) -> HashMap<String, String> {
    let text: String = duralite_testkit::one(conn, "PRAGMA duralite");
    text.lines().filter_map(|line| line.split_once('\t')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

fn is_active(conn: &Connection) -> bool {
    status_of(conn)["state"] == "active"
}

/// Makes rows 1 to `count` of `t(a, b)`, each with 100 bytes.
fn fill(conn: &Connection, count: u32) {
    conn.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b BLOB);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO t SELECT i, randomblob(100) FROM n;"
    ))
    .unwrap();
}

/// Returns the rows of `t`.
fn content(conn: &Connection) -> Vec<Vec<rusqlite::types::Value>> {
    duralite_testkit::run(conn, "SELECT * FROM t ORDER BY a").unwrap()
}
