//! Tests which conflicts between transactions Duralite finds, and how a user learns of these conflicts:
//! `PRAGMA duralite_conflicts`, the message, and the counts.

use std::time::Duration;

use duralite_testkit::{Engine, Fixture, Outcome, one, run};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::status_of;

fn open(fixture: &Fixture, concurrent: &str) -> Connection {
    fixture.open_with("c.db", &format!("concurrent={concurrent}"))
}

/// Makes a table `t` with an index, each of many pages, and a table `u` of one page.
fn make(conn: &Connection) {
    conn.execute_batch(
        "CREATE TABLE t(k INTEGER PRIMARY KEY, v INT, pad TEXT); CREATE INDEX by_pad ON t(pad); CREATE TABLE u(x);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999)
         INSERT INTO t SELECT i, 0, printf('%05d', i * 777 % 1000) || hex(zeroblob(100)) FROM n;
         INSERT INTO u VALUES(1), (2);",
    )
    .unwrap();
}

/// Runs a transaction of `loser` that begins with `read`. `winner` overtakes it with `change`. Returns the
/// message that the user of `loser` gets.
fn lose(loser: &Connection, read: &str, winner: &Connection, change: &str) -> String {
    loser.execute_batch("BEGIN").unwrap();
    run(loser, read).unwrap();
    winner.execute_batch(change).unwrap();
    let ended = loser.execute_batch("UPDATE t SET v = v + 1 WHERE k = 500; COMMIT");
    let code = ended.unwrap_err().sqlite_error().map(|error| error.extended_code);
    assert_eq!(code, Some(517), "{change}");
    if !loser.is_autocommit() {
        loser.execute_batch("ROLLBACK").unwrap();
    }
    one(loser, "SELECT duralite_last_error()")
}

/// Returns the count and the name in each line of `PRAGMA duralite_conflicts`.
fn conflicts(conn: &Connection) -> Vec<(u32, String)> {
    let text: String = one(conn, "PRAGMA duralite_conflicts");
    let line = |line: &str| {
        let [count, page, name] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(page.parse::<u32>().unwrap() > 0);
        (count.parse().unwrap(), name.to_owned())
    };
    text.lines().map(line).collect()
}

fn count_of(conn: &Connection, name: &str) -> u32 {
    status_of(conn)[name].parse().unwrap()
}

const READ_ROW: &str = "SELECT v FROM t WHERE k = 900";
const CHANGE_ROW: &str = "UPDATE t SET v = v + 1 WHERE k = 901";

#[test]
fn conflicts_are_told_by_table_and_index_on_every_engine() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let (observer, winner) = (open(&fixture, "off"), open(&fixture, "off"));
        make(&observer);
        let loser = open(&fixture, "on");
        assert_eq!(conflicts(&observer), []);
        for _ in 0..3 {
            let message = lose(&loser, READ_ROW, &winner, CHANGE_ROW);
            for part in ["(table t)", "run it again", "PRAGMA duralite_conflicts"] {
                assert!(message.contains(part), "{engine:?}: {message}");
            }
        }
        let read = "SELECT pad FROM t INDEXED BY by_pad WHERE pad < '00001'";
        let message = lose(&loser, read, &winner, "UPDATE t SET pad = '00000' WHERE k = 3");
        assert!(message.contains("index by_pad of t"), "{engine:?}: {message}");
        for _ in 0..2 {
            lose(&loser, "SELECT * FROM u", &winner, "UPDATE u SET x = x + 1");
        }
        let message = lose(&loser, READ_ROW, &winner, "CREATE TABLE w(x)");
        assert!(message.contains("page 1 (schema, or size of the database)"), "{engine:?}: {message}");
        let names = [
            (3, "table t"),
            (2, "table u"),
            (1, "schema, or size of the database"),
            (1, "index by_pad of t"),
        ];
        let told = conflicts(&observer);
        assert_eq!(told, names.map(|(count, name)| (count, name.to_owned())), "{engine:?}");
        // The answer is the same for every connection, in every transaction.
        for begin in ["BEGIN; SELECT count(*) FROM t", "BEGIN IMMEDIATE"] {
            for conn in [&loser, &observer] {
                run(conn, "SELECT 1").unwrap();
                conn.execute_batch(begin).unwrap();
                assert_eq!(conflicts(conn), told, "{engine:?}: {begin}");
                conn.execute_batch("ROLLBACK").unwrap();
            }
        }
        let rows = run(&loser, "SELECT count, name FROM duralite_conflicts").unwrap();
        assert_eq!(rows[0], [Value::Integer(3), Value::Text("table t".to_owned())]);
        let fresh = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
        assert_eq!(conflicts(&fresh), told, "{engine:?}: before it has read");
        assert_eq!(count_of(&loser, "conflicts_page"), 6, "{engine:?}");
        assert_eq!(count_of(&observer, "conflicts_schema"), 1, "{engine:?}");
        assert_eq!(one::<String>(&loser, "PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn what_a_page_belongs_to_now_is_told() {
    let fixture = Fixture::new();
    let (winner, loser) = (open(&fixture, "off"), open(&fixture, "on"));
    make(&winner);
    lose(&loser, "SELECT * FROM u", &winner, "UPDATE u SET x = x + 1");
    winner.execute_batch("DROP TABLE u").unwrap();
    assert_eq!(conflicts(&loser), [(1, "free list".to_owned())]);
    winner.execute_batch("CREATE TABLE \"a\tb\"(x)").unwrap();
    assert_eq!(conflicts(&loser), [(1, "table a b".to_owned())]);
}

#[test]
fn where_nothing_can_have_happened_nothing_is_told() {
    let fixture = Fixture::new();
    let conn = duralite_testkit::connect(&fixture.uri("plain.db", "")).unwrap();
    assert_eq!(conflicts(&conn), []);
    conn.execute_batch("PRAGMA journal_mode=DELETE; CREATE TABLE t(x)").unwrap();
    assert_eq!(conflicts(&conn), []);
    assert_eq!(run(&conn, "SELECT * FROM duralite_conflicts").unwrap(), Vec::<Vec<Value>>::new());
    let Outcome::Error(_, text) = Outcome::of(run(&conn, "PRAGMA duralite_conflicts=1")) else { panic!() };
    assert!(text.contains("takes no value"), "{text}");
}

#[test]
fn what_concurrent_transactions_come_to_is_counted() {
    let fixture = Fixture::new();
    // The pages that a connection has written are in its read set too. So another connection makes the table.
    make(&open(&fixture, "off"));
    let (one, other) = (open(&fixture, "on"), open(&fixture, "on"));
    one.execute_batch("BEGIN; UPDATE t SET v = 1 WHERE k = 1").unwrap();
    other.execute_batch("BEGIN; UPDATE t SET v = 1 WHERE k = 900; COMMIT").unwrap();
    assert_eq!(count_of(&one, "commits_merged"), 0);
    one.execute_batch("COMMIT").unwrap();
    assert_eq!(count_of(&one, "commits_merged"), 1);
    // SQLite itself runs such a single statement again if another commit comes first. So no other transaction
    // overtakes it.
    for _ in 0..5 {
        one.execute_batch(CHANGE_ROW).unwrap();
        other.execute_batch(CHANGE_ROW).unwrap();
    }
    assert_eq!(conflicts(&one), []);

    let (first, second) = (open(&fixture, "upgrade"), open(&fixture, "upgrade"));
    second.busy_timeout(Duration::from_secs(60)).unwrap();
    first.execute_batch("BEGIN IMMEDIATE; UPDATE t SET v = 2 WHERE k = 1").unwrap();
    second.execute_batch("BEGIN; SELECT v FROM t WHERE k = 900").unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            second.execute_batch("UPDATE t SET v = 2 WHERE k = 900; COMMIT").unwrap();
            second
        });
        std::thread::sleep(Duration::from_millis(100));
        first.execute_batch("COMMIT").unwrap();
        let second = waits.join().unwrap();
        let moved = count_of(&second, "snapshots_moved");
        assert!(moved >= 1, "{moved}");
    });
    assert_eq!(count_of(&first, "upgrades_waited"), 1);
}
