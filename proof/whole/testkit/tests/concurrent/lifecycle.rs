//! Tests opening, closing, killing and forking, with concurrent connections and ordinary ones side by side.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use duralite_format::wal_index::IndexHeader;
use duralite_testkit::{Actor, Engine, Fixture, integrity, one, run, stock};
use duralite_wal::placement::{ACKNOWLEDGED, HOME_FAILURES};
use rusqlite::{Connection, OpenFlags};

use super::{MODES, OK, OVERTAKEN, codes, on_engine, open, rows, with_rows};

/// Runs two rounds of disjoint transactions on two connections, and a conflict. Returns the final `sum(v)`.
fn use_both(a: &Connection, b: &Connection) -> i64 {
    for conn in [a, b] {
        for k in 0..5 {
            assert_eq!(codes(conn, &format!("BEGIN; UPDATE t SET v=v+1 WHERE k={}; COMMIT", 10 * k)), OK);
        }
    }
    assert_eq!(codes(a, "BEGIN; SELECT v FROM t WHERE k=1"), OK);
    assert_eq!(codes(b, "UPDATE t SET v=v+1 WHERE k=1"), OK);
    assert_eq!(codes(a, "UPDATE t SET v=v+1 WHERE k=1; COMMIT"), OVERTAKEN);
    if !a.is_autocommit() {
        assert_eq!(codes(a, "ROLLBACK"), OK);
    }
    11
}

#[test]
fn on_every_engine_the_last_close_leaves_an_ordinary_database() {
    for engine in Engine::all() {
        for modes in [["on", "on"], ["on", "off"], ["off", "on"], ["upgrade", "on"]] {
            // `last` is the connection that closes last.
            for last in [0, 1] {
                let fixture = Fixture::on(engine);
                let mut conns = Vec::from(modes.map(|mode| open(&fixture, mode)));
                rows(&conns[0]);
                let sum = use_both(&conns[0], &conns[1]);
                conns.iter().for_each(integrity);
                let last = conns.swap_remove(last);
                drop(conns);
                assert!(fixture.is_guarded("c.db"));
                assert_eq!(codes(&last, "BEGIN; UPDATE t SET v=v+1 WHERE k=99; COMMIT"), OK);
                last.close().unwrap();
                fixture.assert_plain("c.db");
                assert!(fixture.logs().is_empty(), "{engine:?}: {:?}", fixture.logs());
                let stock = stock(&fixture.path("c.db"));
                assert_eq!(one::<i64>(&stock, "SELECT sum(v) FROM t"), sum + 1);
                assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 100);
            }
        }
    }
}

#[test]
fn a_connection_that_closes_in_its_transaction_leaves_nothing_of_it() {
    for mode in MODES {
        for begin in ["BEGIN", "BEGIN IMMEDIATE"] {
            let (fixture, [a, b]) = with_rows(mode);
            assert_eq!(codes(&a, &format!("PRAGMA cache_size=5; {begin}; UPDATE t SET v=1")), OK);
            drop(a);
            assert_eq!(codes(&b, "UPDATE t SET v=v+2 WHERE k=3"), OK, "{mode}, {begin}: the lock was kept");
            assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 2);
            drop(b);
            fixture.assert_plain("c.db");
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_nothing_of_an_open_transaction() {
    for engine in Engine::all() {
        for (mode, begin) in [("on", "BEGIN"), ("on", "BEGIN IMMEDIATE"), ("upgrade", "BEGIN")] {
            let fixture = Fixture::on(engine);
            let first = open(&fixture, "off");
            rows(&first);
            let mut actor = Actor::sql(&fixture.uri("c.db", &format!("concurrent={mode}")));
            assert_eq!(actor.run("UPDATE t SET v=1 WHERE k=1"), "");
            for sql in [begin, "PRAGMA cache_size=5", "UPDATE t SET v=100"] {
                assert_eq!(actor.run(sql), "");
            }
            actor.kill();
            for mode in ["off", "on"] {
                let conn = open(&fixture, mode);
                assert_eq!(codes(&conn, "UPDATE t SET v=v+1 WHERE k=50"), OK);
                integrity(&conn);
            }
            assert_eq!(one::<i64>(&first, "SELECT sum(v) FROM t"), 3);
            drop(first);
            fixture.assert_plain("c.db");
        }
    }
}

#[test]
fn what_a_killed_process_has_committed_is_found_by_whoever_opens_it() {
    for engine in Engine::all() {
        for mode in ["off", "on"] {
            let fixture = Fixture::on(engine);
            let mut actor = Actor::sql(&fixture.uri("c.db", "concurrent=on"));
            for sql in
                ["PRAGMA journal_mode=WAL", "CREATE TABLE t(a)", "BEGIN", "INSERT INTO t VALUES(1)", "COMMIT"]
            {
                let _ = actor.run(sql);
            }
            for sql in ["BEGIN", "INSERT INTO t VALUES(2)", "COMMIT", "BEGIN", "INSERT INTO t VALUES(3)"] {
                assert_eq!(actor.run(sql), "");
            }
            actor.kill();
            let conn = open(&fixture, mode);
            assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 3, "{engine:?}, {mode}");
            assert_eq!(codes(&conn, "BEGIN; INSERT INTO t VALUES(4); COMMIT"), OK);
            integrity(&conn);
            drop(conn);
            fixture.assert_plain("c.db");
            assert_eq!(one::<i64>(&stock(&fixture.path("c.db")), "SELECT sum(a) FROM t"), 7);
        }
    }
}

/// Returns where the header of the wal-index is, as a file and the offset in it.
fn header(fixture: &Fixture) -> (PathBuf, usize) {
    let version = 3_007_000_u32.to_ne_bytes();
    let mut headers = Vec::new();
    for entry in std::fs::read_dir(fixture.log_dir()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = (0..bytes.len().saturating_sub(96)).step_by(8).filter(|at| {
            bytes[*at..].starts_with(&version) && bytes[*at..at + 48] == bytes[at + 48..at + 96]
        });
        headers.extend(found.map(|at| (path.clone(), at)));
    }
    assert_eq!(headers.len(), 1);
    headers.remove(0)
}

fn overwrite(path: &Path, at: usize, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at as u64).unwrap();
}

/// Tears the header of the wal-index, so that its two copies differ, as if a process had died while it wrote
/// the header.
fn tear_header(fixture: &Fixture) {
    let (path, at) = header(fixture);
    let byte = std::fs::read(&path).unwrap()[at + 8];
    overwrite(&path, at + 8, &[byte ^ 0xff]);
}

/// The wal-index is in its state from before the commit, as if a process had died after it committed, but before it
/// published the commit in the wal-index.
#[test]
fn a_commit_that_its_process_could_not_publish_does_not_keep_the_last_close_from_its_work() {
    for engine in Engine::all() {
        for mode in ["off", "on", "upgrade"] {
            let (fixture, [a]) = on_engine(engine, mode);
            let mut actor = Actor::sql(&fixture.uri("c.db", "concurrent=off"));
            assert_eq!(actor.run("UPDATE t SET v=1 WHERE k=1"), "");
            let (path, at) = header(&fixture);
            let before = std::fs::read(&path).unwrap()[at..at + 96].to_vec();
            assert_eq!(actor.run("UPDATE t SET v=2 WHERE k=50"), "");
            overwrite(&path, at, &before);
            actor.kill();
            assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 1);
            a.close().unwrap();
            fixture.assert_plain("c.db");
            assert!(fixture.logs().is_empty(), "{engine:?}, {mode}: {:?}", fixture.logs());
            assert_eq!(one::<i64>(&stock(&fixture.path("c.db")), "SELECT sum(v) FROM t"), 3);
        }
    }
}

/// After a failed sync of the database file, Duralite must write all committed pages to it again. But a process may
/// have died after it sealed a transaction, and before it published the transaction in the wal-index. Duralite must
/// leave out that transaction, and the next commit replaces it.
#[test]
fn inv15_a_commit_that_its_process_could_not_publish_is_not_written_home() {
    for engine in Engine::all() {
        for mode in MODES {
            let (fixture, [a, reader]) = on_engine(engine, mode);
            let mut actor = Actor::sql(&fixture.uri("c.db", "concurrent=off"));
            assert_eq!(actor.run("UPDATE t SET v=1 WHERE k=1"), "");
            // This reader prevents the next commit from starting the log over, although all of the log's commits are
            // already in the database file.
            assert_eq!(codes(&reader, "BEGIN; SELECT * FROM t"), OK);
            assert_eq!(codes(&a, "PRAGMA wal_checkpoint"), OK);
            let (path, at) = header(&fixture);
            let bytes = std::fs::read(&path).unwrap();
            let acknowledged = ACKNOWLEDGED as usize;
            assert_eq!(actor.run("UPDATE t SET v=2 WHERE k=50"), "");
            overwrite(&path, at, &bytes[at..at + 96]);
            overwrite(&path, acknowledged, &bytes[acknowledged..acknowledged + 8]);
            overwrite(&path, HOME_FAILURES as usize, &1_u64.to_ne_bytes());
            actor.kill();
            assert_eq!(codes(&reader, "COMMIT"), OK);
            assert_eq!(codes(&a, "UPDATE t SET v=4 WHERE k=99"), OK, "{engine:?}, {mode}");
            assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 5, "{engine:?}, {mode}");
            assert_eq!(codes(&a, "PRAGMA wal_checkpoint(TRUNCATE)"), OK);
            assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 5, "{engine:?}, {mode}");
            integrity(&a);
        }
    }
}

/// A process has died while it started the log over. According to the wal-index, the log has no frames, but the count
/// of frames in the database file is still the old one. While this connection is in a transaction, another process
/// finishes starting the log over.
#[test]
fn inv15_a_start_over_that_was_cut_short_hides_no_commit_from_a_transaction() {
    let (fixture, [a, b, c]) = with_rows("on");
    assert_eq!(codes(&b, "UPDATE t SET v=1 WHERE k=1; PRAGMA wal_checkpoint"), OK);
    let (path, at) = header(&fixture);
    let bytes = std::fs::read(&path).unwrap();
    let words = bytes[at..at + 48].chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    let words: Vec<u32> = words.collect();
    let started_over = IndexHeader::of(words.try_into().unwrap()).unwrap().started_over(7);
    let started_over: Vec<u8> = started_over.words().iter().flat_map(|word| word.to_ne_bytes()).collect();
    overwrite(&path, at, &[&started_over[..], &started_over[..]].concat());
    assert_eq!(codes(&a, "SELECT v FROM t WHERE k=50; BEGIN; UPDATE t SET v=2 WHERE k=50"), OK);
    assert_eq!(codes(&c, "CREATE TABLE z(x); INSERT INTO z VALUES(1)"), OK);
    assert_eq!(codes(&a, "COMMIT"), OVERTAKEN);
    for conn in [&a, &b, &c] {
        assert_eq!(one::<i64>(conn, "SELECT x FROM z"), 1);
        integrity(conn);
    }
}

#[test]
fn a_commit_survives_a_process_that_died_while_it_published() {
    for (mode, before, after) in [
        ("on", "BEGIN; UPDATE t SET v=v+1 WHERE k=1", "COMMIT"),
        ("on", "BEGIN; SELECT v FROM t WHERE k=1", "UPDATE t SET v=v+1 WHERE k=1; COMMIT"),
        ("upgrade", "BEGIN; SELECT v FROM t WHERE k=1", "UPDATE t SET v=v+1 WHERE k=1; COMMIT"),
        ("on", "SELECT v FROM t WHERE k=1", "UPDATE t SET v=v+1 WHERE k=1"),
        ("on", "SELECT v FROM t WHERE k=1", "BEGIN IMMEDIATE; UPDATE t SET v=v+1 WHERE k=1; COMMIT"),
    ] {
        let (fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&a, before), OK);
        tear_header(&fixture);
        assert_eq!(codes(&a, after), OK, "{mode}, {before}");
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 1);
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=v+1 WHERE k=90; COMMIT"), OK);
        integrity(&a);
    }
}

/// The parent and its children have one thread each. (If a process has several threads, its child may inherit a locked
/// mutex of SQLite that no thread will unlock.)
#[test]
fn children_commit_beside_their_parent_and_cannot_use_what_they_inherit() {
    for mode in MODES {
        for inherited in ["used", "closed-last", "rolled-back"] {
            let fixture = Fixture::new();
            drop(fixture.open("c.db"));
            let uri = fixture.uri("c.db", &format!("concurrent={mode}"));
            Actor::start_with(&["family", &uri, inherited, "4"], &[("MALLOC_PERTURB_", "165")]).finish();
            fixture.assert_plain("c.db");
        }
    }
}

#[test]
fn the_setting_is_fixed_by_the_first_statement() {
    let (fixture, [a]) = with_rows("on");
    assert_eq!(one::<String>(&a, "PRAGMA duralite_concurrent"), "on");
    let b = fixture.open("c.db");
    let fresh = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
    assert_eq!(one::<String>(&fresh, "PRAGMA duralite_concurrent=on"), "on");
    assert_eq!(codes(&fresh, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
    assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=2 WHERE k=90; COMMIT"), OK);
    assert_eq!(codes(&fresh, "COMMIT"), OK);
    assert!(run(&b, "PRAGMA duralite_concurrent=on").is_err(), "it has read already");
    assert!(run(&a, "PRAGMA duralite_concurrent=off").is_err());
    assert!(duralite_testkit::connect(&fixture.uri("c.db", "concurrent=maybe")).is_err());
    assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 3);
}

#[test]
fn the_status_tells_the_value_in_force() {
    let in_force = |conn: &Connection| {
        let status: String = one(conn, "PRAGMA duralite");
        let value = status.lines().find_map(|line| line.strip_prefix("concurrent\t").map(str::to_owned));
        value.unwrap_or_default()
    };
    for mode in ["off", "on", "upgrade"] {
        let (fixture, [conn]) = with_rows(mode);
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 100);
        assert_eq!(in_force(&conn), mode);
        let reader = fixture.open_with("c.db", &format!("mode=ro&concurrent={mode}"));
        assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 100);
        assert_eq!(in_force(&reader), "off", "it never writes");
    }
}

#[test]
fn a_read_only_connection_reads_beside_transactions() {
    for mode in MODES {
        let (fixture, [a]) = with_rows(mode);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let reader =
            Connection::open_with_flags(fixture.uri("c.db", &format!("concurrent={mode}")), flags).unwrap();
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
        assert_eq!(one::<i64>(&reader, "SELECT sum(v) FROM t"), 0);
        assert_eq!(codes(&a, "COMMIT"), OK);
        assert_eq!(one::<i64>(&reader, "SELECT sum(v) FROM t"), 1);
        assert_eq!(codes(&reader, "UPDATE t SET v=1"), rusqlite::ffi::SQLITE_READONLY);
        drop(a);
        assert_eq!(one::<i64>(&reader, "SELECT sum(v) FROM t"), 1);
    }
}
