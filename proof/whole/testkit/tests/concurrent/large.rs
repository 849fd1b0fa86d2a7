//! Tests transactions that are too large for memory.

use std::os::unix::fs::FileExt;

use duralite_testkit::{Actor, Engine, Fixture, integrity, one, run};
use duralite_wal::placement::{LOCKS_BYTES, LOCKS_OFFSET};
use rusqlite::{Connection, ffi};

use super::savepoints::same;
use super::{BUSY, MODES, OK, codes, on_engine, open, rows, with_rows};

/// The result code of a write for which there is no space: the transaction's memory is full, and Duralite cannot move
/// the transaction to the log. With this I/O error, SQLite rolls the transaction back.
const BLOCKED: i32 = 10 | 11 << 8;

/// Returns a statement that writes this many MiB to the table `big`.
fn load(megabytes: u32) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO big SELECT i, hex(zeroblob(1500)) FROM n",
        megabytes * 330
    )
}

const TABLE: &str = "CREATE TABLE big(i INTEGER, pad TEXT)";

/// A size in MiB. If possible, Duralite moves a transaction from memory to the log at half of this size.
const SOME: u32 = 8;
/// A size in MiB that is more than Duralite ever keeps in memory for a transaction.
const TOO_MUCH: u32 = 20;

fn anonymous_kib(actor: &Actor) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", actor.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns by how many KiB the memory of a process grows in a transaction that is much larger than both SQLite's cache
/// and Duralite's buffer.
fn growth(engine: Engine, mode: &str, begin: &str) -> u64 {
    let fixture = Fixture::on(engine);
    rows(&open(&fixture, "off"));
    let mut actor = Actor::sql(&fixture.uri("c.db", &format!("concurrent={mode}")));
    assert_eq!(actor.run(TABLE), "");
    for sql in [begin, "UPDATE t SET v=1 WHERE k=1"] {
        assert_eq!(actor.run(sql), "");
    }
    // The logs of the other engines have a limit, so the test inserts only half as much into them.
    let each = if ["nvwal", "waldio"].contains(&engine.name()) { 2 } else { 1 };
    let before = anonymous_kib(&actor);
    let mut most = before;
    for _ in 0..24 {
        assert_eq!(actor.run(&load(each)), "");
        most = most.max(anonymous_kib(&actor));
    }
    assert_eq!(actor.run("COMMIT"), "");
    most = most.max(anonymous_kib(&actor));
    assert_eq!(actor.run("SELECT count(*) FROM big"), (24 * each * 330).to_string());
    assert_eq!(actor.run("PRAGMA integrity_check"), "ok");
    actor.finish();
    fixture.assert_plain("c.db");
    most - before
}

#[test]
fn a_bulk_load_takes_little_more_memory_than_with_the_setting_off() {
    for engine in Engine::all() {
        let off = growth(engine, "off", "BEGIN");
        for (mode, begin) in [("on", "BEGIN"), ("on", "BEGIN IMMEDIATE"), ("upgrade", "BEGIN")] {
            let on = growth(engine, mode, begin);
            assert!(on < off + (10 << 10), "{engine:?}, {mode}, {begin}: {on} KiB, with off {off} KiB");
        }
    }
}

#[test]
fn savepoints_and_rollbacks_do_what_they_do_with_stock() {
    for cache in [-400, -20_000] {
        for begin in ["BEGIN", "BEGIN IMMEDIATE"] {
            same(&format!(
                "PRAGMA cache_size={cache}; {TABLE}; CREATE INDEX byi ON big(i);
                 {begin}; {load}; ROLLBACK;
                 {begin}; {load}; UPDATE big SET pad = i WHERE i % 3 = 0;
                 SAVEPOINT one; UPDATE big SET pad = hex(zeroblob(1400)) WHERE i % 2;
                 SAVEPOINT two; DELETE FROM big; ROLLBACK TO two; DELETE FROM big WHERE i <= 200; RELEASE two;
                 ROLLBACK TO one; UPDATE big SET pad = 'x' || i WHERE i > 1000; RELEASE one; COMMIT;
                 {begin}; {load}; DELETE FROM big WHERE i > 100; {load}; COMMIT;
                 {begin}; SAVEPOINT s; {load}; ROLLBACK TO s; {load}; COMMIT;
                 {begin}; UPDATE big SET pad = 7; {load}; SELECT sum(length(pad)) FROM big;
                 UPDATE OR ROLLBACK big SET i = abs(-9223372036854775808); COMMIT;
                 SAVEPOINT s; {load}; RELEASE s; DELETE FROM big WHERE i % 7; {load}; SELECT count(*) FROM big",
                load = load(SOME)
            ));
        }
    }
}

/// Lets both connections run overlapping transactions that allocate pages, so that both lease free pages.
fn lease(conns: [&Connection; 2]) {
    for (round, k) in (0..6).zip([1, 50].into_iter().cycle()) {
        let [a, b] = if round % 2 == 0 { conns } else { [conns[1], conns[0]] };
        assert_eq!(
            codes(a, &format!("BEGIN; INSERT INTO t VALUES({}, 0, hex(zeroblob(9000)))", 1000 + round)),
            OK
        );
        assert_eq!(codes(b, &format!("UPDATE t SET v=v+1 WHERE k={k}")), OK);
        if codes(a, "COMMIT") != OK && !a.is_autocommit() {
            run(a, "ROLLBACK").unwrap();
        }
    }
    // This commit makes the other connection drop its cache. Otherwise the pages that it has read would still be in its
    // read set.
    assert_eq!(codes(conns[1], "DELETE FROM t WHERE k >= 1000; UPDATE t SET v=0"), OK);
}

/// The connections lease free pages. The transaction takes some free pages and gives others back.
#[test]
fn a_large_transaction_keeps_what_others_have_committed_before_it_took_the_lock() {
    for leases in [false, true] {
        let (fixture, [a, b]) = with_rows("on");
        run(&b, TABLE).unwrap();
        if leases {
            lease([&a, &b]);
        }
        assert_eq!(codes(&a, "PRAGMA cache_size=-500; BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
        assert_eq!(codes(&b, "BEGIN; UPDATE t SET v=2 WHERE k=50; COMMIT"), OK);
        assert_eq!(codes(&a, "DELETE FROM t WHERE k BETWEEN 80 AND 99"), OK);
        assert_eq!(codes(&a, &load(SOME)), OK);
        // The transaction now has WRITE, so no other transaction can overtake it.
        assert_eq!(codes(&b, "UPDATE t SET v=3 WHERE k=60"), BUSY, "leases: {leases}");
        assert_eq!(one::<i64>(&b, "SELECT count(*) FROM big"), 0);
        assert_eq!(one::<i64>(&a, "SELECT sum(v) FROM t"), 3);
        assert_eq!(codes(&a, &format!("{}; COMMIT", load(SOME))), OK);
        for conn in [&a, &b] {
            integrity(conn);
            assert_eq!(one::<u32>(conn, "SELECT count(*) FROM big"), 2 * SOME * 330);
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 3);
        }
        assert_eq!(
            codes(&b, "BEGIN; DELETE FROM big WHERE i % 2; INSERT INTO t VALUES(500, 4, ''); COMMIT"),
            OK
        );
        assert_eq!(
            codes(&a, "BEGIN; UPDATE t SET v=9 WHERE k=1; INSERT INTO big VALUES(1, 'x'); COMMIT"),
            OK
        );
        assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 15);
        integrity(&b);
        drop((a, b));
        fixture.assert_plain("c.db");
    }
}

/// The transaction cannot move to the log, because another transaction has overtaken it or holds WRITE. Duralite then
/// keeps a larger part of it in memory, up to a limit. At the limit SQLite must roll it back.
#[test]
fn inv60_a_transaction_that_has_no_room_and_cannot_have_the_lock_is_rolled_back() {
    for overtaken in [false, true] {
        let (fixture, [a, b]) = with_rows("on");
        run(&b, TABLE).unwrap();
        assert_eq!(
            codes(&a, "PRAGMA cache_size=-500; BEGIN; UPDATE t SET v=1 WHERE k=1; SELECT v FROM t"),
            OK
        );
        let others = if overtaken {
            "UPDATE t SET v=2 WHERE k=90"
        } else {
            "BEGIN IMMEDIATE; UPDATE t SET v=2 WHERE k=90"
        };
        assert_eq!(codes(&b, others), OK);
        assert_eq!(codes(&a, &load(SOME)), OK);
        assert!(!a.is_autocommit());
        assert_eq!(codes(&a, &load(TOO_MUCH)), BLOCKED);
        assert!(a.is_autocommit(), "SQLite has rolled back");
        let reason: String = one(&a, "SELECT duralite_last_error()");
        assert!(reason.contains(if overtaken { "overtaken" } else { "write lock" }), "{reason}");
        assert_eq!(codes(&b, "COMMIT"), if overtaken { 1 } else { OK });
        for conn in [&a, &b] {
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), 2);
            assert_eq!(one::<i64>(conn, "SELECT count(*) FROM big"), 0);
            integrity(conn);
        }
        // The next transaction of this connection takes WRITE at its first write.
        assert_eq!(codes(&a, "BEGIN; UPDATE t SET v=1 WHERE k=1"), OK);
        assert_eq!(codes(&b, "UPDATE t SET v=2 WHERE k=90"), BUSY);
        assert_eq!(codes(&a, &format!("{}; COMMIT", load(TOO_MUCH))), OK);
        assert_eq!(one::<u32>(&b, "SELECT count(*) FROM big"), TOO_MUCH * 330);
        integrity(&b);
        drop((a, b));
        fixture.assert_plain("c.db");
    }
}

/// A transaction in memory can commit although others have made changes. Here they have changed the free list.
#[test]
fn a_transaction_that_cannot_have_the_lock_yet_goes_on_in_memory_and_commits() {
    let (fixture, [a, b]) = with_rows("on");
    run(&b, TABLE).unwrap();
    lease([&a, &b]);
    assert_eq!(codes(&a, "PRAGMA cache_size=-500; BEGIN; UPDATE t SET v=1"), OK);
    assert_eq!(codes(&b, "BEGIN IMMEDIATE"), OK);
    let update = "UPDATE t SET pad = pad || hex(zeroblob(20000))";
    assert_eq!(codes(&a, update), OK);
    assert_eq!(codes(&a, "COMMIT"), BUSY);
    assert_eq!(codes(&b, "COMMIT"), OK);
    assert_eq!(codes(&a, "COMMIT"), OK);
    assert_eq!(one::<i64>(&b, "SELECT sum(v) FROM t"), 100);
    integrity(&b);
    drop((a, b));
    fixture.assert_plain("c.db");
}

#[test]
fn a_process_that_is_killed_in_a_large_transaction_leaves_nothing_of_it() {
    for engine in Engine::all() {
        for (mode, begin) in [("on", "BEGIN"), ("upgrade", "BEGIN"), ("on", "BEGIN IMMEDIATE")] {
            let (fixture, [first]) = on_engine(engine, "off");
            run(&first, TABLE).unwrap();
            let mut actor = Actor::sql(&fixture.uri("c.db", &format!("concurrent={mode}")));
            for sql in ["PRAGMA cache_size=-500", begin, "UPDATE t SET v=100", &load(SOME), &load(SOME)] {
                assert_eq!(actor.run(sql), "");
            }
            assert_eq!(codes(&first, "UPDATE t SET v=1"), BUSY);
            actor.kill();
            for mode in ["off", "on"] {
                let conn = open(&fixture, mode);
                assert_eq!(codes(&conn, "BEGIN; UPDATE t SET v=v+1 WHERE k=50; COMMIT"), OK);
                integrity(&conn);
            }
            assert_eq!(one::<i64>(&first, "SELECT sum(v) FROM t"), 2, "{engine:?}, {mode}");
            assert_eq!(one::<i64>(&first, "SELECT count(*) FROM big"), 0);
            drop(first);
            fixture.assert_plain("c.db");
        }
    }
}

/// The first transaction after a complete checkpoint may be a large one.
#[test]
fn a_large_transaction_may_be_the_first_in_the_log() {
    for mode in MODES {
        for end in ["ROLLBACK", "COMMIT"] {
            let (fixture, [a, b]) = with_rows(mode);
            assert_eq!(codes(&a, &format!("{TABLE}; PRAGMA wal_checkpoint(TRUNCATE)")), OK);
            assert_eq!(codes(&a, &format!("PRAGMA cache_size=-500; BEGIN; {}; {end}", load(SOME))), OK);
            let count = if end == "COMMIT" { SOME * 330 } else { 0 };
            for conn in [&a, &b] {
                assert_eq!(codes(conn, "BEGIN; UPDATE t SET v=v+1 WHERE k=1; COMMIT"), OK);
                assert_eq!(one::<u32>(conn, "SELECT count(*) FROM big"), count);
            }
            integrity(&b);
            drop((a, b));
            fixture.assert_plain("c.db");
        }
    }
}

/// Makes a COMMIT find the log locked, as if a process had been stopped while it changed the log. After that, either a
/// second COMMIT commits the whole transaction, or SQLite has rolled it back.
fn commit_that_finds_the_log_busy(mode: &str, is_in_log: bool) {
    let (fixture, [conn]) = on_engine(Engine::PPL, mode);
    let mut other = Actor::sql(&fixture.uri("c.db", "concurrent=off"));
    assert_eq!(other.run("SELECT count(*) FROM t"), "100");
    let mut files = std::fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let segment = files.find(|path| path.to_string_lossy().ends_with("-shm")).unwrap();
    let segment = std::fs::OpenOptions::new().write(true).open(segment).unwrap();
    // This word is the lock on the structure of the log. The test writes it as if the other process held the lock. That
    // process has the second process slot.
    let lock = |word: u64| segment.write_all_at(&word.to_ne_bytes(), LOCKS_OFFSET + LOCKS_BYTES).unwrap();
    assert_eq!(codes(&conn, &format!("{TABLE}; PRAGMA wal_checkpoint; PRAGMA cache_size=-500")), OK);
    let work = if is_in_log { load(SOME) } else { "INSERT INTO big VALUES(1, 'x')".to_owned() };
    assert_eq!(codes(&conn, &format!("BEGIN IMMEDIATE; {work}")), OK);
    lock(1 << 32 | 2);
    let first = codes(&conn, "COMMIT");
    lock(0);
    let ended = if first == BUSY { codes(&conn, "COMMIT") } else { first };
    if is_in_log {
        assert_eq!((ended & 0xff, conn.is_autocommit()), (ffi::SQLITE_IOERR, true), "{mode}: {first}");
        assert_eq!(codes(&conn, &work), OK, "{mode}");
    } else {
        assert_eq!((first, ended), (BUSY, OK), "{mode}");
    }
    let rows = if is_in_log { i64::from(SOME) * 330 } else { 1 };
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM big"), rows, "{mode}, {is_in_log}");
    integrity(&conn);
    assert_eq!(other.run("SELECT count(*) FROM big"), rows.to_string());
    other.finish();
}

#[test]
fn a_commit_that_finds_the_log_busy_is_whole_or_rolled_back() {
    std::thread::scope(|scope| {
        for mode in ["off", "on", "upgrade"] {
            for is_in_log in [false, true] {
                scope.spawn(move || commit_that_finds_the_log_busy(mode, is_in_log));
            }
        }
    });
}
