//! Tests the tables `duralite` and `duralite_log`, and the function `duralite_json()`.

use duralite_testkit::{
    ABOVE, Engine, Fixture, Outcome, code, connect, integrity, one, register_above, run, stock,
};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::{fill, is_active, status_of};

/// Returns the table in the format of the pragma, without the values that change all the time.
fn lines_of(conn: &Connection, from: &str) -> String {
    let sql = format!("SELECT group_concat(name || char(9) || value, char(10)) FROM {from} WHERE {STEADY}");
    one(conn, &sql)
}

const STEADY: &str = "name <> 'oldest_reader_ms'";

fn state(conn: &Connection, from: &str) -> String {
    one(conn, &format!("SELECT value FROM {from} WHERE name = 'state'"))
}

fn error_of(conn: &Connection, sql: &str) -> String {
    match Outcome::of(run(conn, sql)) {
        Outcome::Error(_, text) => text,
        Outcome::Rows(rows) => panic!("{sql}: {rows:?}"),
    }
}

/// A transaction in the log, as a row of `duralite_log`.
#[derive(Debug, PartialEq)]
struct Logged {
    position: i64,
    number: i64,
    frames: (i64, i64),
    bytes: Option<i64>,
    db_pages: i64,
    durable: bool,
    pages: String,
}

fn logged(conn: &Connection, from: &str) -> Vec<Logged> {
    let sql = format!(
        "SELECT position, number, first_frame, last_frame, bytes, db_pages, durable, pages, frames FROM {from}"
    );
    let mut statement = conn.prepare(&sql).unwrap();
    let rows = statement.query_map([], |row| {
        let frames: (i64, i64) = (row.get(2)?, row.get(3)?);
        assert_eq!(frames.1 - frames.0 + 1, row.get::<_, i64>(8)?);
        Ok(Logged {
            position: row.get(0)?,
            number: row.get(1)?,
            frames,
            bytes: row.get(4)?,
            db_pages: row.get(5)?,
            durable: row.get(6)?,
            pages: row.get(7)?,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn the_table_and_the_pragma_say_the_same() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    fill(&conn, 10);
    // A statement that reads the table makes its connection a reader, but the pragma does not. In this
    // transaction the connection is a reader anyway, so both give the same numbers.
    conn.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    let text: String = one(&conn, "PRAGMA duralite");
    let steady = |line: &&str| !line.starts_with("oldest_reader_ms");
    let text = text.lines().filter(steady).collect::<Vec<_>>().join("\n");
    assert_eq!(lines_of(&conn, "duralite"), text);
    assert_eq!(lines_of(&conn, "duralite('MAIN')"), text);
    assert_eq!(lines_of(&conn, "main.duralite(NULL)"), text);
    assert_eq!(state(&conn, "duralite"), "active");
    let names = run(&conn, "SELECT count(*) - count(DISTINCT name) FROM duralite").unwrap();
    assert_eq!(names, [[Value::Integer(0)]]);
    assert_eq!(one::<String>(&conn, "SELECT typeof(value) FROM duralite WHERE name = 'readers'"), "integer");
    assert_eq!(one::<String>(&conn, "SELECT typeof(value) FROM duralite WHERE name = 'log'"), "text");
}

#[test]
fn json_has_the_same_names_and_values() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    fill(&conn, 10);
    let same = format!(
        "SELECT (SELECT json_group_array(json_array(key, value)) FROM json_each(duralite_json()) WHERE {})
              = (SELECT json_group_array(json_array(name, value)) FROM duralite WHERE {STEADY})",
        STEADY.replace("name", "key")
    );
    assert!(one::<bool>(&conn, &same), "{}", one::<String>(&conn, "SELECT duralite_json()"));
    let in_a_named_schema = "SELECT json_extract(duralite_json('main'), '$.lock_waits')";
    assert_eq!(one::<i64>(&conn, in_a_named_schema).to_string(), status_of(&conn)["lock_waits"]);
}

#[test]
fn a_database_that_is_plain_sqlite_says_so() {
    let fixture = Fixture::new();
    let path = fixture.path("plain.db");
    let file = "off: opened through the VFS unix, not through Duralite";
    let conn = fixture.open("s.db");
    drop(stock(&path));
    let plain = stock(&path);
    run(&conn, &format!("ATTACH 'file:{}?vfs=unix' AS other", path.display())).unwrap();
    for (conn, from, expected) in [
        (&plain, "duralite", file),
        (&conn, "duralite('other')", file),
        (&conn, "duralite('temp')", "off: it has no file"),
        (&connect(":memory:").unwrap(), "duralite", "off: it has no file"),
    ] {
        assert_eq!(state(conn, from), expected);
        assert_eq!(one::<String>(conn, &format!("SELECT value FROM {from} WHERE name = 'engine'")), "off");
        assert_eq!(logged(conn, &from.replace("duralite", "duralite_log")), []);
    }
    conn.execute_batch("CREATE TEMP TABLE t(a)").unwrap();
    assert_eq!(state(&conn, "duralite('temp')"), "off: it has no file");
}

#[test]
fn each_schema_has_its_own_rows() {
    let fixture = Fixture::on(Engine::NVWAL);
    let conn = fixture.open("one.db");
    fill(&conn, 10);
    run(&conn, &format!("ATTACH '{}' AS two", fixture.uri("two.db", ""))).unwrap();
    assert_eq!(state(&conn, "duralite('two')"), "idle: journal_mode is not wal");
    conn.execute_batch("PRAGMA two.journal_mode = WAL; CREATE TABLE two.t(a)").unwrap();
    // The schemas' names come from another table, which the query reads first.
    let rows =
        "SELECT d.schema, l.value FROM pragma_database_list AS d, duralite(d.name) AS l WHERE l.name = 'log'";
    let logs = run(&conn, &rows.replace("d.schema", "d.name")).unwrap();
    assert_eq!(logs.len(), 2, "{logs:?}");
    assert_ne!(logs[0][1], logs[1][1]);
    assert_eq!(logged(&conn, "duralite_log('two')").len(), 1);
    for sql in [
        "SELECT * FROM duralite('none')",
        "SELECT * FROM duralite_log('none')",
        "SELECT duralite_json('none')",
    ] {
        let error = error_of(&conn, sql);
        assert!(error.contains("no such schema: none"), "{sql}: {error}");
    }
}

#[test]
fn the_log_has_a_row_for_each_transaction() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let conn = fixture.open("l.db");
        conn.execute_batch("PRAGMA wal_autocheckpoint = 0").unwrap();
        fill(&conn, 100);
        let before = logged(&conn, "duralite_log");
        for i in 0..5 {
            run(&conn, &format!("UPDATE t SET b = zeroblob(50) WHERE a = {}", i * 20 + 1)).unwrap();
        }
        let rows = logged(&conn, "duralite_log('main')");
        assert_eq!(rows[..before.len()], before, "{engine:?}");
        assert_eq!(rows.len(), before.len() + 5, "{engine:?}");
        assert!(rows.iter().all(|row| row.durable), "{engine:?}: {rows:?}");
        assert_eq!((rows[0].frames.0, rows[0].number), (1, 1), "{engine:?}");
        for pair in rows.windows(2) {
            assert_eq!(pair[1].frames.0, pair[0].frames.1 + 1, "{engine:?}");
            assert_eq!(pair[1].position - pair[0].position, pair[1].number - pair[0].number, "{engine:?}");
        }
        let pages: i64 = one(&conn, "PRAGMA page_count");
        let root: i64 = one(&conn, "SELECT min(json_each.value) FROM duralite_log, json_each(pages)");
        let last = &rows[rows.len() - 1];
        assert_eq!((root, last.db_pages), (1, pages), "{engine:?}");
        assert_eq!(last.pages.matches(',').count() as i64, last.frames.1 - last.frames.0, "{engine:?}");
        let times = "SELECT min(time_ms) > 1.6e12 AND max(time_ms) <= (julianday('now') - 2440587.5) * 86400000 + 1000 FROM duralite_log";
        assert!(one::<bool>(&conn, times), "{engine:?}");
        // `ppl` stores changes of pages instead of frames.
        match engine.name() {
            "ppl" => assert!(rows.iter().all(|row| row.bytes.is_none())),
            _ => assert!(
                rows.iter().all(|row| row.bytes.is_some_and(|bytes| bytes > 0 && bytes < 40_000)),
                "{rows:?}"
            ),
        }
    }
}

#[test]
fn the_log_is_empty_once_it_has_started_over() {
    let fixture = Fixture::new();
    let conn = fixture.open("l.db");
    fill(&conn, 10);
    let before = logged(&conn, "duralite_log");
    assert!(!before.is_empty());
    run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert_eq!(logged(&conn, "duralite_log"), []);
    run(&conn, "DELETE FROM t WHERE a = 1").unwrap();
    let after = logged(&conn, "duralite_log");
    assert_eq!((after.len(), after[0].number, after[0].frames.0), (1, 1, 1));
    assert!(after[0].position >= before[before.len() - 1].position, "{after:?} {before:?}");
}

#[test]
fn a_vfs_above_is_in_nobodys_way() {
    register_above();
    let fixture = Fixture::new();
    let uri = fixture.uri("a.db", "").replace("vfs=duralite", &format!("vfs={ABOVE}"));
    let conn = connect(&uri).unwrap();
    assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
    fill(&conn, 10);
    assert_eq!(state(&conn, "duralite"), "active");
    assert_eq!(one::<String>(&conn, "SELECT json_extract(duralite_json(), '$.state')"), "active");
    let rows = logged(&conn, "duralite_log");
    assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), [1, 2]);
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("a.db");
}

/// The table shows neither an open transaction nor one that was rolled back. A single statement sees the log
/// as it was at one moment.
#[test]
fn a_statement_shows_the_log_as_it_was_when_it_began() {
    let fixture = Fixture::new();
    let conn = fixture.open("l.db");
    let other = fixture.open("l.db");
    fill(&conn, 10);
    let before = logged(&conn, "duralite_log");
    other.execute_batch("BEGIN; DELETE FROM t WHERE a < 5").unwrap();
    assert_eq!(logged(&other, "duralite_log"), before);
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(logged(&conn, "duralite_log"), before);
    let mut statement = conn.prepare("SELECT number FROM duralite_log").unwrap();
    let mut rows = statement.query([]).unwrap();
    let mut seen = usize::from(rows.next().unwrap().is_some());
    for a in 1..5 {
        run(&other, &format!("DELETE FROM t WHERE a = {a}")).unwrap();
    }
    while rows.next().unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, before.len());
    drop(rows);
    // The table shows the current log even to a connection that reads an older snapshot.
    conn.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    run(&other, "DELETE FROM t WHERE a = 5").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t WHERE a = 5"), 1);
    assert_eq!(logged(&conn, "duralite_log").len(), before.len() + 5);
}

#[test]
fn a_log_is_listed_while_others_write_and_checkpoint() {
    let fixture = Fixture::new();
    let conn = fixture.open("l.db");
    fill(&conn, 10);
    let uri = fixture.uri("l.db", "");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let conn = connect(&uri).unwrap();
            conn.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
            for i in 0..300 {
                run(&conn, &format!("UPDATE t SET b = randomblob({i}) WHERE a = {}", i % 10 + 1)).unwrap();
                if i % 50 == 49 {
                    run(&conn, "PRAGMA wal_checkpoint(RESTART)").unwrap();
                }
            }
        });
        let mut last = 0;
        while !writer.is_finished() {
            let rows = match run(&conn, "SELECT position, first_frame, last_frame FROM duralite_log") {
                Ok(rows) => rows,
                Err(error) if code(&error) & 0xff == 5 => continue,
                Err(error) => panic!("{error}"),
            };
            let rows: Vec<Vec<i64>> = rows
                .into_iter()
                .map(|row| {
                    row.into_iter()
                        .map(|value| if let Value::Integer(value) = value { value } else { -1 })
                        .collect()
                })
                .collect();
            assert!(
                rows.windows(2).all(|pair| pair[0][0] < pair[1][0] && pair[0][2] + 1 == pair[1][1]),
                "{rows:?}"
            );
            if let Some(newest) = rows.last() {
                assert!(newest[0] >= last, "{} after {last}", newest[0]);
                last = newest[0];
            }
        }
        writer.join().unwrap();
    });
    assert!(is_active(&conn));
}

#[test]
fn the_tables_are_read_only_and_not_for_views() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    for sql in
        ["INSERT INTO duralite VALUES('a', 1)", "DELETE FROM duralite_log", "UPDATE duralite SET value = 1"]
    {
        let error = error_of(&conn, sql);
        assert!(error.contains("may not be modified"), "{sql}: {error}");
    }
    conn.execute_batch(
        "CREATE VIEW v AS SELECT * FROM duralite; CREATE VIEW w AS SELECT duralite_json() AS j",
    )
    .unwrap();
    for sql in ["SELECT * FROM v", "SELECT * FROM w"] {
        let error = error_of(&conn, sql);
        assert!(error.contains("unsafe use of"), "{sql}: {error}");
    }
    let error = error_of(&conn, "CREATE VIRTUAL TABLE x USING duralite");
    assert!(error.contains("no such module"), "{error}");
    // A table of the application with this name takes precedence.
    conn.execute_batch("CREATE TABLE duralite(a); INSERT INTO duralite VALUES('mine')").unwrap();
    assert_eq!(one::<String>(&conn, "SELECT a FROM duralite"), "mine");
}

#[test]
fn a_log_with_fua_says_what_makes_its_commits_durable() {
    let fixture = Fixture::on(Engine::WALDIO);
    let sql = "SELECT value FROM duralite WHERE name = 'fua'";
    // Writes through the page cache never use FUA, whatever the device.
    let emulated = fixture.open_with("fua.db", "durability=fua&access=buffered");
    fill(&emulated, 10);
    assert_eq!(one::<String>(&emulated, sql), "emulated by a write and a flush");
    let full = fixture.open("full.db");
    fill(&full, 10);
    assert!(run(&full, sql).unwrap().is_empty());
}

#[test]
fn every_name_is_in_the_documents() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let page = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
    let pages = [page("status.md"), page("settings.md")];
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let idle = connect(&fixture.uri("idle.db", "")).unwrap();
        let active = fixture.open("active.db");
        fill(&active, 10);
        for conn in [idle, active] {
            for row in run(&conn, "SELECT name FROM duralite").unwrap() {
                let [Value::Text(name)] = &row[..] else { panic!("{row:?}") };
                let code = format!("`{name}`");
                assert!(pages.iter().any(|page| page.contains(&code)), "{engine:?}: {name}");
            }
        }
    }
}
