//! Tests the settings of `waldio`, and what happens if connections disagree.

use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Engine, Fixture, code, connect, integrity, one, run};
use rusqlite::ffi;

use super::{insert, number, prepare, status_of};

fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn two_processes_with_different_settings_are_told_apart() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open_with("s.db", "durability=full");
    prepare(&conn);
    let mut other = Actor::sql(&fixture.uri("s.db", "durability=normal"));
    let said = other.run("SELECT count(*) FROM t");
    assert!(said.contains("unable to open"), "{said}");
    let mut same = Actor::sql(&fixture.uri("s.db", "durability=full"));
    assert_eq!(same.run("SELECT count(*) FROM t"), "1");
    same.finish();
    let error = connect(&fixture.uri("s.db", "layout=embedded"))
        .and_then(|conn| run(&conn, "SELECT count(*) FROM t"))
        .unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_CANTOPEN, "{error}");
    insert(&conn).unwrap();
}

#[test]
fn a_log_keeps_the_layout_and_block_size_it_was_made_with() {
    for (made, asked) in [
        ("layout=embedded&device_block=4096", "layout=delta&device_block=512"),
        ("layout=delta&device_block=4096", "layout=embedded"),
    ] {
        let fixture = Fixture::on(Engine::WALDIO);
        let mut actor = Actor::sql(&fixture.uri("l.db", made));
        assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
        assert_eq!(actor.run("CREATE TABLE t(a)"), "");
        assert_eq!(actor.run("INSERT INTO t VALUES(7)"), "");
        actor.kill();
        assert!(fixture.is_guarded("l.db"));
        let conn = fixture.open_with("l.db", asked);
        assert_eq!(one::<i64>(&conn, "SELECT a FROM t"), 7);
        assert!(made.contains(&status_of(&conn)["layout"]), "{made}");
        run(&conn, "INSERT INTO t VALUES(8)").unwrap();
        integrity(&conn);
        drop(conn);
        fixture.assert_plain("l.db");
    }
}

#[test]
fn pages_of_every_size_with_and_without_reserved_bytes() {
    for layout in ["delta", "embedded"] {
        for page_bytes in [512, 1024, 4096, 8192, 65536] {
            let fixture = Fixture::on(Engine::WALDIO);
            let conn = connect(&fixture.uri("p.db", &format!("layout={layout}"))).unwrap();
            run(&conn, &format!("PRAGMA page_size={page_bytes}")).unwrap();
            assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
            prepare(&conn);
            conn.execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
                 INSERT INTO t(b) SELECT hex(randomblob(i * 7)) FROM n; DELETE FROM t WHERE a % 3 = 0;
                 UPDATE t SET b = b || b WHERE a % 5 = 0; VACUUM",
            )
            .unwrap();
            let expected = one::<i64>(&conn, "SELECT sum(length(b)) FROM t");
            integrity(&conn);
            drop(conn);
            fixture.assert_plain("p.db");
            let stock = duralite_testkit::stock(&fixture.path("p.db"));
            assert_eq!(one::<i64>(&stock, "SELECT sum(length(b)) FROM t"), expected);
        }
    }
}

#[test]
fn group_synch_acknowledges_early_and_writes_in_time() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open_with("g.db", "group_synch=4&group_interval_ms=20");
    prepare(&conn);
    assert_eq!(status_of(&conn)["guarantee"], "ordered");
    let (commits, writes) = (number(&conn, "commits"), number(&conn, "device_writes"));
    for _ in 0..40 {
        insert(&conn).unwrap();
    }
    let (commits, writes) = (number(&conn, "commits") - commits, number(&conn, "device_writes") - writes);
    assert!(commits == 40 && writes <= 30, "{writes} writes for {commits} commits");
    // The engine writes the last commits within the interval, even if no further commit follows.
    insert(&conn).unwrap();
    let before = number(&conn, "commits_led");
    assert!(before < number(&conn, "commits") || before > 0);
    assert!(within(Duration::from_secs(20), || number(&conn, "commits_led") == number(&conn, "commits")));
    integrity(&conn);
    drop(conn);
    fixture.assert_plain("g.db");
}

#[test]
fn group_synch_goes_on_in_exclusive_locking_mode() {
    let fixture = Fixture::on(Engine::WALDIO);
    let settings = "group_synch=1000&group_interval_ms=5&background_checkpoint=2";
    let conn = connect(&fixture.uri("x.db", settings)).unwrap();
    conn.execute_batch("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL").unwrap();
    prepare(&conn);
    for _ in 0..20 {
        insert(&conn).unwrap();
        assert!(within(Duration::from_secs(20), || number(&conn, "commits_led") == number(&conn, "commits")));
    }
    conn.close().unwrap();
    fixture.assert_plain("x.db");
}

#[test]
fn a_background_checkpoint_keeps_the_log_short() {
    for engine in [Engine::WALDIO, Engine::NVWAL] {
        let fixture = Fixture::on(engine);
        let conn = fixture.open_with("b.db", "background_checkpoint=50");
        conn.busy_timeout(Duration::from_secs(10)).unwrap();
        prepare(&conn);
        conn.execute_batch("PRAGMA wal_autocheckpoint=0").unwrap();
        let restarted = within(Duration::from_secs(30), || {
            insert(&conn).unwrap();
            number(&conn, "log_restarts") >= 4
        });
        assert!(restarted, "{:?}", status_of(&conn));
        integrity(&conn);
        let rows = one::<i64>(&conn, "SELECT count(*) FROM t");
        drop(conn);
        fixture.assert_plain("b.db");
        let stock = duralite_testkit::stock(&fixture.path("b.db"));
        assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), rows);
    }
}

#[test]
fn inv01_what_works_in_the_background_does_not_outlast_the_last_close() {
    for engine in [Engine::WALDIO, Engine::NVWAL] {
        let fixture = Fixture::on(engine);
        for round in 0..100 {
            let conn = fixture.open_with("c.db", "background_checkpoint=2");
            conn.busy_timeout(Duration::from_secs(10)).unwrap();
            conn.execute_batch("CREATE TABLE IF NOT EXISTS t(a); INSERT INTO t VALUES(randomblob(100000))")
                .unwrap();
            // The statement has requested a checkpoint from the background thread. This sleep makes each
            // round close the connection at a different moment of that checkpoint.
            std::thread::sleep(Duration::from_micros(200 * (round % 20)));
            conn.close().unwrap();
            fixture.assert_plain("c.db");
            assert!(fixture.logs().is_empty(), "{engine:?}, round {round}: {:?}", fixture.logs());
        }
    }
}

#[test]
fn a_reader_that_wants_durable_content_gets_it() {
    let fixture = Fixture::on(Engine::WALDIO);
    let writer = fixture.open_with("r.db", "group_synch=1000&group_interval_ms=60000");
    prepare(&writer);
    insert(&writer).unwrap();
    assert!(number(&writer, "commits_led") < number(&writer, "commits"));
    let reader = connect(&fixture.uri("r.db", "read_durable=1")).unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 2);
    assert_eq!(number(&writer, "commits_led"), number(&writer, "commits"));
}

#[test]
fn a_pinned_log_names_its_oldest_reader() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open("o.db");
    prepare(&conn);
    assert_eq!(status_of(&conn)["readers"], "0");
    let reader = fixture.open("o.db");
    run(&reader, "BEGIN").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    assert_eq!(status_of(&conn)["readers"], "1");
    assert!(within(Duration::from_secs(20), || number(&conn, "oldest_reader_ms") >= 20));
    run(&reader, "COMMIT").unwrap();
    assert_eq!(status_of(&conn)["oldest_reader_ms"], "0");
}
