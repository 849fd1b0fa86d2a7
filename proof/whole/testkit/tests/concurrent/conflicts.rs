//! Tests which transactions fail because another transaction overtakes them, and which transactions cannot be
//! overtaken.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duralite_testkit::{Fixture, connect, integrity, one, run};
use rusqlite::Connection;

use super::{BUSY, OK, OVERTAKEN, codes, with_rows};

/// Pairs of transactions. The second one commits while the first one is open. Each case has a name, the
/// statements of the first, the statements of the second, the result code of the first one's COMMIT, and
/// `sum(v)` after that COMMIT.
const CASES: &[(&str, &str, &str, i32, i64)] = &[
    ("other pages", "UPDATE t SET v=1 WHERE k=1", "UPDATE t SET v=2 WHERE k=90", OK, 3),
    ("the same row", "UPDATE t SET v=1 WHERE k=1", "UPDATE t SET v=2 WHERE k=1", OVERTAKEN, 2),
    ("the same page", "UPDATE t SET v=1 WHERE k=1", "UPDATE t SET v=2 WHERE k=0", OVERTAKEN, 2),
    (
        "a lost update",
        "SELECT v FROM t WHERE k=1; UPDATE t SET v=1 WHERE k=1",
        "UPDATE t SET v=v+2 WHERE k=1",
        OVERTAKEN,
        2,
    ),
    (
        "write skew",
        "SELECT v FROM t WHERE k=90; UPDATE t SET v=1 WHERE k=1",
        "SELECT v FROM t WHERE k=1; UPDATE t SET v=2 WHERE k=90",
        OVERTAKEN,
        2,
    ),
    (
        "a row that was read",
        "SELECT v FROM t WHERE k=90; UPDATE t SET v=1 WHERE k=1",
        "UPDATE t SET v=2 WHERE k=90",
        OVERTAKEN,
        2,
    ),
    (
        "a row that appears in a range of an index",
        "SELECT count(*) FROM t WHERE v BETWEEN 50 AND 60; UPDATE t SET pad='' WHERE k=1",
        "UPDATE t SET v=55 WHERE k=90",
        OVERTAKEN,
        55,
    ),
    (
        "a row that is missing and appears",
        "SELECT v FROM t WHERE k=1000; UPDATE t SET v=1 WHERE k=1",
        "UPDATE t SET k=1000, v=2 WHERE k=99",
        OVERTAKEN,
        2,
    ),
    ("a changed schema", "UPDATE t SET v=1 WHERE k=1", "CREATE TABLE u(a)", OVERTAKEN, 0),
    ("a changed pragma", "UPDATE t SET v=1 WHERE k=1", "PRAGMA user_version=7", OVERTAKEN, 0),
];

/// Deletes the rows with an `id` below 1640. The table has 260 rows, two on each leaf, and three interior
/// pages between the root and the leaves. The deletion nearly empties the first interior page. So SQLite
/// moves the cells of the three interior pages to two of them, and frees the third without writing it.
const PURGE: &str = "DELETE FROM t WHERE id < 1640";

/// Makes a database with the 260 rows, and with three interior pages below the root of their table.
fn with_three_interior_pages(fixture: &Fixture) -> Connection {
    let conn = connect(&fixture.uri("c.db", "")).unwrap();
    run(&conn, "PRAGMA page_size=512").unwrap();
    run(&conn, "PRAGMA auto_vacuum=0").unwrap();
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    run(&conn, "CREATE TABLE t(id INTEGER PRIMARY KEY, b)").unwrap();
    let rows = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<259)
                INSERT INTO t SELECT 1000+10*i, zeroblob(230) FROM n";
    run(&conn, rows).unwrap();
    conn
}

/// Returns statements that change the rowid by which the interior page divides two leaves, the second of which
/// begins with the row `id`. They allocate no page.
fn divide_elsewhere(id: i64) -> String {
    format!("DELETE FROM t WHERE id={id}; INSERT INTO t VALUES({}, zeroblob(230))", id - 15)
}

#[test]
fn inv63_a_page_that_a_transaction_frees_counts_with_all_its_cells() {
    let interior = "SELECT count(*) FROM dbstat WHERE name='t' AND pagetype='internal'";
    let alone = Fixture::new();
    let conn = with_three_interior_pages(&alone);
    assert_eq!(one::<i64>(&conn, interior), 4);
    run(&conn, PURGE).unwrap();
    assert_eq!(one::<i64>(&conn, interior), 3, "an interior page is free now");
    // With the smallest cache SQLite also writes pages that it frees later.
    for (secure, cache) in [("OFF", 2000), ("ON", 2000), ("OFF", 1), ("ON", 1)] {
        let fixture = Fixture::new();
        with_three_interior_pages(&fixture).close().unwrap();
        let [a, b] = [(); 2].map(|()| super::open(&fixture, "on"));
        run(&a, &format!("PRAGMA cache_size={cache}")).unwrap();
        assert_eq!(codes(&a, &format!("PRAGMA secure_delete={secure}; BEGIN; {PURGE}")), OK);
        assert_eq!(codes(&b, &format!("BEGIN; {}; COMMIT", divide_elsewhere(3220))), OK);
        assert_eq!(codes(&a, "COMMIT"), OVERTAKEN, "secure_delete={secure}, cache_size={cache}");
        integrity(&a);
        assert_eq!(one::<i64>(&a, "SELECT count(*) FROM t WHERE id IN (3200, 3205, 3210)"), 3);
    }
}

/// Returns the interior pages of a table of [`inv63_a_page_that_was_free_is_not_merged`].
fn interior_pages(conn: &Connection, table: &str) -> Vec<i64> {
    let sql =
        format!("SELECT pageno FROM dbstat WHERE name='{table}' AND pagetype='internal' ORDER BY pageno");
    let mut statement = conn.prepare(&sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Inserts rows, half a leaf each, until one more would split the table's root. Returns the rowid of that one.
fn fill(conn: &Connection, table: &str, first: i64, step: usize) -> i64 {
    for id in (first..).step_by(step) {
        run(conn, "SAVEPOINT s").unwrap();
        insert(conn, table, id);
        if interior_pages(conn, table).len() > 1 {
            run(conn, "ROLLBACK TO s").unwrap();
            run(conn, "RELEASE s").unwrap();
            return id;
        }
        run(conn, "RELEASE s").unwrap();
    }
    unreachable!("there are fewer rowids than pages")
}

fn insert(conn: &Connection, table: &str, id: i64) {
    run(conn, &format!("INSERT INTO {table} VALUES({id}, zeroblob(200))")).unwrap();
}

/// The root of `t` was split once, into pages 3 and 6, and joined again. A transaction splits it again. It takes the
/// same free pages, and on page 6 it makes the very page that is still there. Meanwhile others take page 6 for `u`,
/// and give it back.
#[test]
fn inv63_a_page_that_was_free_is_not_merged() {
    let fixture = Fixture::new();
    let other = connect(&fixture.uri("c.db", "")).unwrap();
    for pragma in ["secure_delete=OFF", "page_size=512", "auto_vacuum=0", "journal_mode=WAL"] {
        run(&other, &format!("PRAGMA {pragma}")).unwrap();
    }
    // SQLite takes the free page that is nearest to another page of the table. So page 3 is near the root of `t`,
    // page 7 is near that of `u`, and page 6 is the next one for both. The leaves are far away.
    let far = (0..27).map(|table| format!("d{table}"));
    let create =
        |table: &str| run(&other, &format!("CREATE TABLE {table}(k INTEGER PRIMARY KEY, v)")).unwrap();
    ["t", "p3", "d", "e", "p6", "p7", "u"]
        .map(str::to_owned)
        .into_iter()
        .chain(far)
        .for_each(|table| drop(create(&table)));
    let (_, _) = (fill(&other, "t", 20_000, 100), fill(&other, "u", 20_000, 100));
    for table in ["z", "f0", "f1", "f2", "f3", "f4"] {
        create(table);
    }
    for table in ["f0", "p3", "p6", "p7", "d24", "d25", "d26", "f1", "f2", "f3", "f4"] {
        run(&other, &format!("DROP TABLE {table}")).unwrap();
    }
    for id in (20_001..).step_by(3) {
        insert(&other, "t", id);
        if interior_pages(&other, "t").len() > 1 {
            break;
        }
    }
    assert_eq!(interior_pages(&other, "t"), [2, 3, 6]);
    while interior_pages(&other, "t").len() > 1 {
        assert!(one::<i64>(&other, "SELECT count(*) FROM t WHERE k<22500") > 0);
        run(&other, "DELETE FROM t WHERE k=(SELECT max(k) FROM t WHERE k<22500)").unwrap();
    }
    let last = fill(&other, "t", 20_051, 3);
    // The connection gets a lease when it allocates while others commit.
    let conn = super::open(&fixture, "on");
    run(&conn, "PRAGMA secure_delete=OFF").unwrap();
    assert_eq!(codes(&conn, "BEGIN; SELECT count(*) FROM z"), OK);
    run(&other, "INSERT INTO d VALUES(1, 1)").unwrap();
    let free = |conn: &Connection| one::<i64>(conn, "PRAGMA freelist_count");
    let before = free(&conn);
    for _ in 0..1000 {
        if free(&conn) != before {
            break;
        }
        run(&conn, "INSERT INTO z VALUES(NULL, NULL)").unwrap();
    }
    run(&conn, "COMMIT").unwrap();
    // The transaction of this test.
    run(&conn, "BEGIN").unwrap();
    insert(&conn, "t", last);
    for id in (21_001..).step_by(3) {
        insert(&other, "u", id);
        if interior_pages(&other, "u").len() > 1 {
            break;
        }
    }
    assert_eq!(interior_pages(&other, "u"), [6, 7, 8]);
    run(&other, "DELETE FROM u").unwrap();
    let rows: i64 = one(&other, "SELECT count(*) FROM t");
    assert_eq!(codes(&conn, "COMMIT"), OVERTAKEN);
    integrity(&conn);
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), rows);
}

#[test]
fn inv63_transactions_that_change_one_interior_page_both_commit() {
    let (low, high) = (divide_elsewhere(3020), divide_elsewhere(3220));
    for (first, second) in [(&low, &high), (&high, &low)] {
        let fixture = Fixture::new();
        with_three_interior_pages(&fixture).close().unwrap();
        let [a, b] = [(); 2].map(|()| super::open(&fixture, "on"));
        let written = "SELECT group_concat(id) FROM t WHERE id IN (3005, 3020, 3205, 3220)";
        assert_eq!(codes(&a, &format!("BEGIN; {first}")), OK);
        assert_eq!(codes(&b, &format!("BEGIN; {second}; COMMIT")), OK);
        assert_eq!(codes(&a, "COMMIT"), OK, "{first} is overtaken");
        for conn in [&a, &b] {
            integrity(conn);
            assert_eq!(one::<String>(conn, written), "3005,3205");
            assert_eq!(one::<i64>(conn, "SELECT count(*) FROM t"), 260);
        }
        // SQLite's cache of the page is out of date, and SQLite must not write from it.
        assert_eq!(codes(&a, &format!("BEGIN; {}; COMMIT", divide_elsewhere(3120))), OK);
        assert_eq!(codes(&b, &format!("BEGIN; {}; COMMIT", divide_elsewhere(2980))), OK);
        integrity(&a);
        assert_eq!(one::<i64>(&b, "SELECT count(*) FROM t"), 260);
    }
}

#[test]
fn inv63_transactions_that_divide_the_same_leaves_do_not_both_commit() {
    for near in [3220, 3240, 3180] {
        let fixture = Fixture::new();
        with_three_interior_pages(&fixture).close().unwrap();
        let [a, b] = [(); 2].map(|()| super::open(&fixture, "on"));
        assert_eq!(codes(&a, &format!("BEGIN; {}", divide_elsewhere(3220))), OK);
        assert_eq!(codes(&b, &format!("BEGIN; {}; COMMIT", divide_elsewhere(near))), OK);
        assert_eq!(codes(&a, "COMMIT"), OVERTAKEN, "{near}");
        integrity(&a);
    }
}

/// Each connection has rows of its own, which are spread over the whole table. So the connections divide, empty
/// and join leaves of the same interior pages all the time.
#[test]
fn inv63_a_table_that_several_connections_rearrange_stays_whole() {
    const WRITERS: i64 = 4;
    let fixture = Fixture::new();
    let first = with_three_interior_pages(&fixture);
    run(&first, "DELETE FROM t").unwrap();
    first.close().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let conn = super::open(&fixture, "on");
            scope.spawn(move || rearrange(&conn, writer, WRITERS));
        }
    });
    let conn = super::open(&fixture, "on");
    integrity(&conn);
    for writer in 0..WRITERS {
        assert_eq!(
            one::<i64>(&conn, &format!("SELECT count(*) FROM t WHERE id % {WRITERS} = {writer}")),
            LEFT
        );
    }
}

/// How many rows each writer leaves.
const LEFT: i64 = 50;

/// Inserts and deletes rows of one writer, first to a large table and then to a small one, and compares the
/// table with what it should hold.
fn rearrange(conn: &Connection, writer: i64, writers: i64) {
    conn.busy_timeout(Duration::from_secs(20)).unwrap();
    let mut random = fastrand::Rng::with_seed(writer as u64);
    let mut rows = BTreeSet::new();
    for most in [400, 100, 400, LEFT] {
        while rows.len() as i64 != most {
            let inserts = most > rows.len() as i64;
            let id = if inserts {
                writers * random.i64(0..5000) + writer
            } else {
                *rows.iter().nth(random.usize(..rows.len())).unwrap()
            };
            let change = if inserts {
                format!("INSERT OR REPLACE INTO t VALUES({id}, zeroblob(150))")
            } else {
                format!("DELETE FROM t WHERE id={id}")
            };
            let mut attempts = 0..100;
            let begin = |attempt| if attempt < 5 { "BEGIN" } else { "BEGIN IMMEDIATE" };
            let commits = |attempt| match codes(conn, &format!("{}; {change}; COMMIT", begin(attempt))) {
                OK => true,
                code => {
                    assert!([BUSY, OVERTAKEN].contains(&code), "{change}: {code}");
                    if !conn.is_autocommit() {
                        run(conn, "ROLLBACK").unwrap();
                    }
                    false
                }
            };
            assert!(attempts.any(commits), "{change} is overtaken for ever");
            if inserts {
                rows.insert(id)
            } else {
                rows.remove(&id)
            };
        }
        let own = format!("SELECT id FROM t WHERE id % {writers} = {writer} ORDER BY id");
        let found: Result<Vec<i64>, _> =
            conn.prepare(&own).unwrap().query_map([], |row| row.get(0)).unwrap().collect();
        assert_eq!(found.unwrap(), rows.iter().copied().collect::<Vec<_>>(), "writer {writer}");
    }
}

#[test]
fn a_transaction_that_was_overtaken_fails_at_its_commit() {
    for (case, first, second, result, sum) in CASES {
        let (_fixture, [a, b]) = with_rows("on");
        if case.contains("index") {
            run(&a, "CREATE INDEX i ON t(v)").unwrap();
        }
        assert_eq!(codes(&a, &format!("BEGIN; {first}")), OK, "{case}");
        assert_eq!(codes(&b, &format!("BEGIN; {second}; COMMIT")), OK, "{case}");
        assert_eq!(codes(&a, "COMMIT"), *result, "{case}");
        assert!(a.is_autocommit(), "{case}: the transaction is over");
        for conn in [&a, &b] {
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), *sum, "{case}");
            integrity(conn);
        }
        // The connection that was overtaken can continue.
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=100 WHERE k=50; COMMIT"), OK, "{case}");
        assert_eq!(one::<i64>(&b, "SELECT v FROM t WHERE k=50"), 100, "{case}");
    }
}

#[test]
fn inv58_what_a_transaction_read_from_the_cache_counts() {
    for (case, first, second, result, _) in CASES.iter().filter(|case| case.3 == OVERTAKEN) {
        let (_fixture, [a, b]) = with_rows("on");
        if case.contains("index") {
            run(&a, "CREATE INDEX i ON t(v)").unwrap();
        }
        for conn in [&a, &b] {
            run(conn, "SELECT * FROM t ORDER BY v").unwrap();
        }
        assert_eq!(codes(&a, &format!("BEGIN; {first}")), OK, "{case}");
        assert_eq!(codes(&b, &format!("BEGIN; {second}; COMMIT")), OK, "{case}");
        assert_eq!(codes(&a, "COMMIT"), *result, "{case}");
    }
}

/// This connection has never read the page of the new table from the database. The page is in its cache only
/// because the connection has written it.
#[test]
fn inv58_what_a_commit_of_its_own_left_in_the_cache_counts() {
    let (_fixture, [a, b]) = with_rows("on");
    assert_eq!(codes(&a, "BEGIN IMMEDIATE; CREATE TABLE u(v); INSERT INTO u VALUES(0); COMMIT"), OK);
    assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=(SELECT v + 1 FROM u) WHERE k=1"), OK);
    assert_eq!(codes(&b, "UPDATE u SET v=5"), OK);
    assert_eq!(codes(&a, "COMMIT"), OVERTAKEN);
    assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 0);
}

/// All commits were in the database file when the transaction began, so the log may start over while the
/// transaction is open. The frames of later commits then have lower numbers than the frames that the
/// transaction has seen.
#[test]
fn inv59_what_others_commit_to_a_log_that_has_started_over_counts() {
    for (k, result) in [(1, OVERTAKEN), (90, OK)] {
        let (_fixture, [a, b]) = with_rows("on");
        run(&b, "PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
        assert_eq!(codes(&b, &format!("UPDATE t SET v=5 WHERE k={k}")), OK);
        assert_eq!(codes(&a, "COMMIT"), result, "{k}");
        for conn in [&a, &b] {
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), if result == OK { 6 } else { 5 });
            integrity(conn);
        }
    }
}

#[test]
fn inv59_the_second_of_two_with_write_skew_fails_also_with_warm_caches() {
    let (_fixture, [a, b]) = with_rows("on");
    let skew = |own: u32, other: u32| {
        format!("UPDATE t SET v=1 WHERE k={own} AND (SELECT v FROM t WHERE k={other})=0")
    };
    // A connection's cache also holds the pages that the connection itself has committed.
    assert_eq!(codes(&a, &skew(1, 90)), OK);
    assert_eq!(codes(&a, "UPDATE t SET v=0"), OK);
    assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 0);
    assert_eq!(codes(&a, &format!("BEGIN; {}", skew(1, 90))), OK);
    assert_eq!(codes(&b, &format!("BEGIN; {}", skew(90, 1))), OK);
    assert_eq!([codes(&b, "COMMIT"), codes(&a, "COMMIT")], [OK, OVERTAKEN]);
    assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 1);
}

#[test]
fn what_takes_the_lock_cannot_be_overtaken() {
    for begin in ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"] {
        let (_fixture, [a, b]) = with_rows("on");
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
        assert_eq!(codes(&a, &format!("{begin}; UPDATE t SET v=2 WHERE k=1")), OK);
        assert_eq!(codes(&b, "COMMIT"), BUSY, "the lock is held");
        assert!(!b.is_autocommit(), "COMMIT can be tried again");
        assert_eq!(codes(&a, "COMMIT"), OK);
        assert_eq!(codes(&b, "COMMIT"), OVERTAKEN);
        // One conflict may be chance. After the second one in a row the connection takes the lock.
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=4 WHERE k=1"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=3 WHERE k=1"), OK);
        assert_eq!(codes(&b, "COMMIT"), OVERTAKEN);
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=4 WHERE k=99"), OK);
        assert_eq!(codes(&a, "UPDATE t SET v=3 WHERE k=1"), if b.is_autocommit() { OK } else { BUSY });
        assert_eq!(codes(&b, "COMMIT"), OK);
        integrity(&a);
    }
}

#[test]
fn a_commit_that_found_the_lock_taken_can_be_tried_again() {
    let (_fixture, [a, b]) = with_rows("on");
    assert_eq!(codes(&a, "PRAGMA cache_size=5; BEGIN; UPDATE t SET v=1 WHERE k<50"), OK);
    assert_eq!(codes(&b, "BEGIN IMMEDIATE"), OK);
    assert_eq!([codes(&a, "COMMIT"), codes(&a, "COMMIT")], [BUSY; 2]);
    // The transaction can continue, and can use savepoints.
    assert_eq!(codes(&a, "SAVEPOINT s; UPDATE t SET v=5; ROLLBACK TO s; RELEASE s"), OK);
    assert_eq!(codes(&a, "UPDATE t SET v=2 WHERE k=60"), OK);
    assert_eq!(codes(&b, "COMMIT"), OK);
    assert_eq!(codes(&a, "COMMIT"), OK);
    for conn in [&a, &b] {
        assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 52);
        integrity(conn);
    }
}

/// If another connection holds WRITE at a COMMIT, Duralite validates the committing transaction before it
/// waits. During the wait, others may commit more changes.
#[test]
fn inv59_what_others_commit_while_a_commit_waits_counts() {
    static WAITS: AtomicBool = AtomicBool::new(false);
    for (row, result, sum) in [(50, OK, 3), (90, OVERTAKEN, 2)] {
        let (_fixture, [mut a, b]) = with_rows("on");
        assert_eq!(codes(&a, "BEGIN; SELECT v FROM t WHERE k=90; UPDATE t SET v=1 WHERE k=1"), OK);
        assert_eq!(codes(&b, &format!("BEGIN IMMEDIATE; UPDATE t SET v=2 WHERE k={row}")), OK);
        let commit = std::thread::spawn(move || {
            a.busy_handler(Some(|_| {
                WAITS.store(true, Ordering::Relaxed);
                true
            }))
            .unwrap();
            codes(&a, "COMMIT")
        });
        while !WAITS.load(Ordering::Relaxed) && !commit.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(codes(&b, "COMMIT"), OK);
        assert_eq!(commit.join().unwrap(), result, "row {row}");
        assert!(WAITS.swap(false, Ordering::Relaxed), "the commit did not wait");
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), sum);
        integrity(&b);
    }
}

#[test]
fn inv61_after_a_conflict_the_cache_shows_what_is_committed() {
    let (_fixture, [a, b]) = with_rows("on");
    for round in 1..20 {
        assert_eq!(codes(&a, &format!("BEGIN; UPDATE t SET v=-{round} WHERE k<10")), OK);
        let open = codes(&b, &format!("BEGIN; UPDATE t SET v={round} WHERE k<10; COMMIT"));
        let commit = codes(&a, "COMMIT");
        assert!(open == OK && commit == OVERTAKEN || open == BUSY && commit == OK, "{open} {commit}");
        if open == BUSY {
            // After several conflicts, `a` takes WRITE as soon as it begins to write.
            assert_eq!(codes(&b, "ROLLBACK"), OK);
        }
        let expected = if open == OK { 10 * round } else { -10 * round };
        for conn in [&a, &b] {
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), expected, "round {round}");
        }
    }
    integrity(&a);
}

#[test]
fn a_foreign_key_is_kept_between_two_transactions() {
    let (_fixture, [a, b]) = with_rows("on");
    a.execute_batch("CREATE TABLE c(id INTEGER PRIMARY KEY, parent REFERENCES t, pad TEXT)").unwrap();
    a.execute_batch("INSERT INTO c VALUES(1, NULL, hex(zeroblob(900)))").unwrap();
    for conn in [&a, &b] {
        run(conn, "PRAGMA foreign_keys=1").unwrap();
    }
    assert_eq!(codes(&a, "BEGIN; UPDATE c SET parent=50 WHERE id=1"), OK);
    assert_eq!(codes(&b, "BEGIN; DELETE FROM t WHERE k=50"), OK);
    let results = [codes(&a, "COMMIT"), codes(&b, "COMMIT")];
    assert_eq!(results, [OK, OVERTAKEN]);
    assert!(run(&a, "PRAGMA foreign_key_check").unwrap().is_empty());
}
