//! Workloads on tables and indices, by name.

use super::pages::{Change, Pages};

/// A workload. It has a function that prepares its tables, and one that runs a transaction.
pub struct Workload {
    pub name: &'static str,
    pub prepare: fn(&mut Pages),
    pub step: fn(&mut Pages, i64) -> Vec<Change>,
    /// The largest size that the encoded changes may have, in percent of the size of plain ranges, with pages
    /// of 4096 bytes.
    pub percent: usize,
    /// The same limit for `encode_rearranged`, which examines a page more closely only if its cells were
    /// rearranged.
    pub rearranged_percent: usize,
}

const ROWS: i64 = 400;

fn table(pages: &mut Pages) {
    pages.batch("CREATE TABLE t(id INTEGER PRIMARY KEY, n INT, body TEXT)");
    for _ in 0..ROWS {
        insert_random(pages, 0);
    }
}

fn empty(pages: &mut Pages) {
    pages.batch("CREATE TABLE t(id INTEGER PRIMARY KEY, n INT, body TEXT)");
}

fn without_rowid(pages: &mut Pages) {
    pages.batch("CREATE TABLE w(k TEXT PRIMARY KEY, n INT, body TEXT) WITHOUT ROWID");
    for i in 0..ROWS {
        insert_by_key(pages, i);
    }
}

fn indexed(pages: &mut Pages) {
    pages.batch("CREATE TABLE x(id INTEGER PRIMARY KEY, a TEXT, b INT); CREATE INDEX xa ON x(a); CREATE INDEX xb ON x(b, a)");
    for i in 0..ROWS {
        insert_indexed(pages, i);
    }
}

fn insert_random(pages: &mut Pages, _: i64) -> Vec<Change> {
    let (id, text) = (pages.rng.below(1 << 40) as i64, pages.text(100));
    let n = pages.rng.below(1 << 20) as i64;
    pages.run("INSERT INTO t VALUES(?, ?, ?)", &[&id, &n, &text])
}

fn append(pages: &mut Pages, i: i64) -> Vec<Change> {
    let text = pages.text(100);
    pages.run("INSERT INTO t(n, body) VALUES(?, ?)", &[&i, &text])
}

/// A condition that exactly one row satisfies.
const ANY_ROW: &str = "WHERE id = (SELECT id FROM t WHERE id >= ?1 LIMIT 1)";

fn on_any_row(pages: &mut Pages, sql: &str) -> Vec<Change> {
    let from = pages.rng.below(1 << 40) as i64;
    pages.run(&format!("{sql} {ANY_ROW}"), &[&from])
}

fn delete(pages: &mut Pages, i: i64) -> Vec<Change> {
    if i % 2 == 0 {
        insert_random(pages, i);
    }
    on_any_row(pages, "DELETE FROM t")
}

fn update_same_size(pages: &mut Pages, _: i64) -> Vec<Change> {
    on_any_row(pages, "UPDATE t SET n = (n + 1000000) % 2000000, body = upper(body)")
}

fn count_up(pages: &mut Pages, _: i64) -> Vec<Change> {
    on_any_row(pages, "UPDATE t SET n = n * 3 % 20000000")
}

fn update_growing(pages: &mut Pages, _: i64) -> Vec<Change> {
    on_any_row(pages, "UPDATE t SET body = body || 'and more'")
}

fn update_shrinking(pages: &mut Pages, _: i64) -> Vec<Change> {
    on_any_row(pages, "UPDATE t SET body = substr(body, 1, length(body) - 5)")
}

fn update_anew(pages: &mut Pages, _: i64) -> Vec<Change> {
    let (from, text) = (pages.rng.below(1 << 40) as i64, pages.text(100));
    pages.run(&format!("UPDATE t SET body = ?2 {ANY_ROW}"), &[&from, &text])
}

fn insert_by_key(pages: &mut Pages, i: i64) -> Vec<Change> {
    let (key, text) = (pages.text(16), pages.text(60));
    pages.run("INSERT OR REPLACE INTO w VALUES(?, ?, ?)", &[&key, &i, &text])
}

fn change_by_key(pages: &mut Pages, i: i64) -> Vec<Change> {
    let (key, text) = (pages.text(4), pages.text(60));
    let one = "WHERE k = (SELECT k FROM w WHERE k >= ?1 LIMIT 1)";
    match i % 3 {
        0 => pages.run(&format!("DELETE FROM w {one}"), &[&key]),
        1 => pages.run(&format!("UPDATE w SET body = ?2 {one}"), &[&key, &text]),
        _ => insert_by_key(pages, i),
    }
}

fn insert_indexed(pages: &mut Pages, _: i64) -> Vec<Change> {
    let (text, b) = (pages.text(30), pages.rng.below(1000) as i64);
    pages.run("INSERT INTO x(a, b) VALUES(?, ?)", &[&text, &b])
}

fn change_indexed(pages: &mut Pages, i: i64) -> Vec<Change> {
    let (b, text) = (pages.rng.below(1000) as i64, pages.text(30));
    let one = "WHERE id = (SELECT id FROM x WHERE b >= ?1 LIMIT 1)";
    match i % 3 {
        0 => pages.run(&format!("DELETE FROM x {one}"), &[&b]),
        1 => pages.run(&format!("UPDATE x SET a = ?2 {one}"), &[&b, &text]),
        _ => insert_indexed(pages, i),
    }
}

fn long_rows(pages: &mut Pages, i: i64) -> Vec<Change> {
    let size = if i % 4 == 0 { 9000 } else { 700 };
    let (text, from) = (pages.text(size), pages.rng.below(1 << 40) as i64);
    match i % 3 {
        0 => on_any_row(pages, "DELETE FROM t"),
        1 => pages.run(&format!("UPDATE t SET body = ?2 {ANY_ROW}"), &[&from, &text]),
        _ => pages.run("INSERT INTO t VALUES(?, 1, ?)", &[&from, &text]),
    }
}

fn several_rows(pages: &mut Pages, i: i64) -> Vec<Change> {
    let from = pages.rng.below(1 << 40);
    let few = format!("WHERE id IN (SELECT id FROM t WHERE id >= {from} LIMIT {})", 2 + i % 7);
    let change = match i % 4 {
        0 => format!("DELETE FROM t {few}"),
        1 => format!("UPDATE t SET body = body || 'grows' {few}"),
        2 => format!("UPDATE t SET n = n + 1, body = substr(body, 4) {few}"),
        _ => (1..=6)
            .map(|by| {
                format!("INSERT OR REPLACE INTO t VALUES({}, {by}, '{}');", from + by * by, pages.text(90))
            })
            .collect(),
    };
    pages.batch(&change)
}

pub const WORKLOADS: [Workload; 13] = [
    Workload { name: "append", prepare: empty, step: append, percent: 95, rearranged_percent: 100 },
    Workload {
        name: "random insert",
        prepare: table,
        step: insert_random,
        percent: 85,
        rearranged_percent: 80,
    },
    Workload { name: "delete", prepare: table, step: delete, percent: 75, rearranged_percent: 35 },
    Workload {
        name: "update same size",
        prepare: table,
        step: update_same_size,
        percent: 90,
        rearranged_percent: 90,
    },
    Workload { name: "count up", prepare: table, step: count_up, percent: 30, rearranged_percent: 45 },
    Workload {
        name: "update growing",
        prepare: table,
        step: update_growing,
        percent: 20,
        rearranged_percent: 25,
    },
    Workload {
        name: "update shrinking",
        prepare: table,
        step: update_shrinking,
        percent: 35,
        rearranged_percent: 30,
    },
    Workload { name: "update anew", prepare: table, step: update_anew, percent: 35, rearranged_percent: 35 },
    Workload {
        name: "without rowid",
        prepare: without_rowid,
        step: change_by_key,
        percent: 50,
        rearranged_percent: 50,
    },
    Workload {
        name: "index insert",
        prepare: indexed,
        step: insert_indexed,
        percent: 60,
        rearranged_percent: 50,
    },
    Workload {
        name: "index change",
        prepare: indexed,
        step: change_indexed,
        percent: 30,
        rearranged_percent: 35,
    },
    Workload { name: "long rows", prepare: table, step: long_rows, percent: 95, rearranged_percent: 95 },
    Workload {
        name: "several rows",
        prepare: table,
        step: several_rows,
        percent: 72,
        rearranged_percent: 85,
    },
];
