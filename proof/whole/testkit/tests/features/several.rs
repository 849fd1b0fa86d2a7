//! Tests several databases at once, with ATTACH, the backup API, and temporary and in-memory databases.

use duralite_testkit::{Fixture, integrity, one, run, stock};
use rusqlite::Connection;
use rusqlite::backup::Backup;

use super::{content, fill, is_active};

#[test]
fn attached_databases_with_and_without_an_engine() {
    let fixture = Fixture::new();
    let conn = fixture.open("one.db");
    let plain = stock(&fixture.path("plain.db"));
    plain.execute_batch("CREATE TABLE plain(a); INSERT INTO plain VALUES(1)").unwrap();
    plain.close().unwrap();
    let attach = |uri: &str, name| run(&conn, &format!("ATTACH '{uri}' AS {name}")).unwrap();
    attach(&fixture.uri("two.db", ""), "two");
    attach(&format!("file:{}?vfs=unix", fixture.path("plain.db").display()), "three");
    assert_eq!(one::<String>(&conn, "PRAGMA two.journal_mode=WAL"), "wal");
    conn.execute_batch(
        "CREATE TABLE main.t(a); CREATE TABLE two.u(a);
         BEGIN; INSERT INTO t VALUES(1); INSERT INTO u VALUES(2); INSERT INTO plain VALUES(3); COMMIT;
         BEGIN; INSERT INTO t VALUES(4); INSERT INTO u VALUES(4); INSERT INTO plain VALUES(4); ROLLBACK;",
    )
    .unwrap();
    let sums =
        "SELECT (SELECT sum(a) FROM t) || ' ' || (SELECT sum(a) FROM u) || ' ' || (SELECT sum(a) FROM plain)";
    assert_eq!(one::<String>(&conn, sums), "1 2 4");
    assert_eq!(fixture.logs().len(), 2);
    assert!(fixture.is_guarded("one.db") && fixture.is_guarded("two.db") && !fixture.is_guarded("plain.db"));
    run(&conn, "DETACH two").unwrap();
    fixture.assert_plain("two.db");
    conn.close().unwrap();
    for name in ["one.db", "plain.db"] {
        fixture.assert_plain(name);
    }
    assert!(fixture.logs().is_empty());
}

fn copy(from: &Connection, to: &mut Connection) {
    Backup::new(from, to).unwrap().run_to_completion(20, std::time::Duration::ZERO, None).unwrap();
}

#[test]
fn backup_from_and_to_a_live_database() {
    let fixture = Fixture::new();
    let source = fixture.open("source.db");
    fill(&source, 1000);
    let before = content(&source);
    // This backup copies a database that has a log of Duralite to an ordinary database.
    let mut plain = stock(&fixture.path("plain.db"));
    copy(&source, &mut plain);
    assert_eq!(content(&plain), before);
    plain.close().unwrap();
    fixture.assert_plain("plain.db");
    assert_eq!(std::fs::read(fixture.path("plain.db")).unwrap()[72..92], [0; 20]);
    // These backups replace the content of a database that has a log of Duralite. They copy it from an
    // ordinary database, and from a database with another log.
    let plain = stock(&fixture.path("plain.db"));
    for from in [&plain, &source] {
        let mut target = fixture.open("target.db");
        fill(&target, 10);
        copy(from, &mut target);
        assert_eq!(content(&target), before);
        run(&target, "DELETE FROM t WHERE a > 10").unwrap();
        integrity(&target);
        target.close().unwrap();
        fixture.assert_plain("target.db");
        assert_eq!(content(&stock(&fixture.path("target.db"))).len(), 10);
        std::fs::remove_file(fixture.path("target.db")).unwrap();
    }
    assert!(is_active(&source));
}

#[test]
fn backup_while_others_write() {
    let fixture = Fixture::new();
    let (source, writer) = (fixture.open("source.db"), fixture.open("source.db"));
    fill(&source, 1000);
    let mut target = Connection::open_in_memory().unwrap();
    let backup = Backup::new(&source, &mut target).unwrap();
    backup.step(5).unwrap();
    run(&writer, "DELETE FROM t WHERE a % 2 = 0").unwrap();
    backup.run_to_completion(5, std::time::Duration::ZERO, None).unwrap();
    drop(backup);
    assert_eq!(content(&target), content(&source));
    integrity(&target);
}

#[test]
fn temporary_and_memory_databases() {
    let fixture = Fixture::new();
    let settings = format!("vfs=duralite&{}", fixture.engine().settings(fixture.log_dir()));
    for (name, extra) in [(":memory:", ""), ("", ""), ("shared", "&mode=memory&cache=shared")] {
        let conn = duralite_testkit::connect(&format!("file:{name}?{settings}{extra}")).unwrap();
        run(&conn, "PRAGMA journal_mode=WAL").unwrap();
        conn.execute_batch("PRAGMA cache_size=5; PRAGMA temp_store=FILE").unwrap();
        fill(&conn, 1000);
        conn.execute_batch("CREATE TEMP TABLE x AS SELECT * FROM t; CREATE INDEX temp.i ON x(b); VACUUM")
            .unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM x JOIN t USING(a)"), 1000);
        assert!(fixture.logs().is_empty(), "{name:?}");
    }
    let conn = fixture.open("d.db");
    conn.execute_batch("PRAGMA cache_size=5; PRAGMA temp_store=FILE; CREATE TEMP TABLE x(a)").unwrap();
    fill(&conn, 1000);
    run(&conn, "INSERT INTO x SELECT b FROM t ORDER BY b").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM x"), 1000);
    assert_eq!(fixture.logs().len(), 1);
}
