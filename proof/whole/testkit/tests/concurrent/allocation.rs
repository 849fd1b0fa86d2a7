//! Tests transactions that allocate and free pages at the same time. The list of free pages must stay correct
//! (invariant 64).

use std::collections::BTreeMap;
use std::time::Duration;

use duralite_testkit::{Actor, Engine, Fixture, Rng, code, integrity, one, run};
use rusqlite::{Connection, ffi, params};

use super::{BUSY, OVERTAKEN, open};

/// One connection's rows in the table, each with the size of its value.
type Rows = BTreeMap<i64, i64>;

fn number(rng: &mut Rng, below: u64) -> i64 {
    i64::try_from(rng.below(below)).unwrap()
}

/// Runs one transaction of up to eight changes. Returns the rows that the table should have after it.
fn change(conn: &Connection, own: i64, before: &Rows, rng: &mut Rng) -> Result<Rows, rusqlite::Error> {
    let mut rows = before.clone();
    run(conn, if rng.below(8) == 0 { "BEGIN IMMEDIATE" } else { "BEGIN" })?;
    for _ in 0..=rng.below(8) {
        let bytes = [20, 300, 2000, 9000][rng.below(4) as usize];
        let old = rows.keys().nth(rng.below(rows.len().max(1) as u64) as usize).copied();
        match (rng.below(8), old) {
            (0..=1, Some(key)) => {
                conn.execute("DELETE FROM t WHERE k=?1", [key])?;
                rows.remove(&key);
            }
            (2, Some(key)) => {
                conn.execute("UPDATE t SET v=randomblob(?2) WHERE k=?1", [key, bytes])?;
                rows.insert(key, bytes);
            }
            (3, _) => {
                run(conn, "SAVEPOINT s")?;
                conn.execute("INSERT INTO t VALUES(?1, randomblob(5000))", [number(rng, 1 << 40) * 8 + own])?;
                run(conn, "ROLLBACK TO s")?;
                run(conn, "RELEASE s")?;
            }
            _ => {
                let key = number(rng, 1 << 40) * 8 + own;
                conn.execute("INSERT INTO t VALUES(?1, randomblob(?2))", params![key, bytes])?;
                rows.insert(key, bytes);
            }
        }
    }
    run(
        conn,
        if rng.below(10) == 0 {
            rows.clone_from(before);
            "ROLLBACK"
        } else {
            "COMMIT"
        },
    )?;
    Ok(rows)
}

/// Runs one connection's transactions. Returns how many of them failed because another transaction overtook them.
fn work(fixture: &Fixture, mode: &str, own: i64, seed: u64) -> u64 {
    let conn = open(fixture, mode);
    conn.busy_timeout(Duration::from_secs(60)).unwrap();
    let mut rng = Rng::new(seed * 16 + own as u64);
    run(&conn, if own % 2 == 0 { "PRAGMA cache_size=20" } else { "PRAGMA cache_size=2000" }).unwrap();
    let (mut rows, mut overtaken) = (Rows::new(), 0);
    for _ in 0..60 {
        match change(&conn, own, &rows, &mut rng) {
            Ok(after) => rows = after,
            Err(error) => {
                assert_eq!(code(&error), OVERTAKEN, "{error}");
                overtaken += 1;
                if !conn.is_autocommit() {
                    run(&conn, "ROLLBACK").unwrap();
                }
            }
        }
    }
    let mut statement = conn.prepare("SELECT k, length(v) FROM t WHERE k % 8 = ?1").unwrap();
    let found = statement.query_map([own], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(found.collect::<Result<Rows, _>>().unwrap(), rows);
    integrity(&conn);
    overtaken
}

#[test]
fn inv64_pages_that_are_leased_taken_and_given_back_stay_one_list() {
    for (seed, page_bytes, auto_vacuum, modes) in [
        (1, 512, 0, &["on", "on", "on"][..]),
        (2, 4096, 0, &["on", "off", "on", "upgrade"]),
        (3, 1024, 0, &["on"]),
        (4, 512, 1, &["on", "on", "on"]),
        (5, 4096, 1, &["on", "off", "on", "upgrade"]),
        (6, 1024, 2, &["on", "on"]),
    ] {
        let fixture = Fixture::new();
        let first = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
        run(&first, &format!("PRAGMA page_size={page_bytes}")).unwrap();
        run(&first, &format!("PRAGMA auto_vacuum={auto_vacuum}")).unwrap();
        run(&first, "PRAGMA journal_mode=WAL").unwrap();
        run(&first, "CREATE TABLE t(k INTEGER PRIMARY KEY, v)").unwrap();
        run(&first, "CREATE INDEX i ON t(substr(v, 1, 8))").unwrap();
        let overtaken: u64 = std::thread::scope(|scope| {
            let fixture = &fixture;
            let start = |(own, mode): (usize, &&'static str)| {
                let mode = *mode;
                scope.spawn(move || work(fixture, mode, own as i64, seed))
            };
            let threads: Vec<_> = modes.iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        eprintln!("seed {seed}: {overtaken} overtaken");
        assert!(modes.len() > 1 || overtaken == 0, "nobody else writes");
        integrity(&first);
        let (pages, free) =
            (one::<i64>(&first, "PRAGMA page_count"), one::<i64>(&first, "PRAGMA freelist_count"));
        assert!(free < pages / 2 + 2000, "{free} of {pages} pages are free");
        first.close().unwrap();
        fixture.assert_plain("c.db");
    }
}

/// Returns a connection that leases free pages, and a reader with an open transaction. The connection began to lease
/// pages because it allocated some while the reader was in its transaction. The tables are `t` and `u`.
fn leasing(fixture: &Fixture) -> (Connection, Connection) {
    let [conn, reader] = ["on", "off"].map(|mode| open(fixture, mode));
    run(&conn, "CREATE TABLE t(a)").unwrap();
    run(&conn, "CREATE TABLE u(a)").unwrap();
    run(&reader, "BEGIN").unwrap();
    run(&reader, "SELECT * FROM u").unwrap();
    for _ in 0..3 {
        for sql in ["BEGIN", "INSERT INTO t VALUES(zeroblob(9000))", "COMMIT"] {
            run(&conn, sql).unwrap();
        }
    }
    assert!(one::<i64>(&conn, "PRAGMA freelist_count") > 0, "the connection has no lease");
    (conn, reader)
}

/// A transaction that holds WRITE from its first write on does not add free pages for leases to the database. So the
/// database does not become larger than on stock SQLite.
#[test]
fn inv64_only_a_transaction_that_is_validated_adds_free_pages() {
    let fixture = Fixture::new();
    let (conn, _reader) = leasing(&fixture);
    let free = || one::<i64>(&conn, "PRAGMA freelist_count");
    for round in 0..100 {
        let before = free();
        run(&conn, "INSERT INTO t VALUES(zeroblob(9000))").unwrap();
        assert!(free() <= before, "round {round}: {} of {before} pages are free", free());
    }
    assert_eq!(free(), 0);
    integrity(&conn);
}

/// A connection without `concurrent` ignores leases, and takes pages that another connection has leased.
#[test]
fn inv64_a_leased_page_that_another_one_has_taken_is_a_conflict() {
    let fixture = Fixture::new();
    let (a, _reader) = leasing(&fixture);
    let b = open(&fixture, "off");
    // This commit makes the leasing connection drop its cache. After that, the connection's read set has no page of the
    // free list.
    run(&b, "INSERT INTO u VALUES(1)").unwrap();
    run(&a, "BEGIN").unwrap();
    run(&a, "INSERT INTO t VALUES(zeroblob(9000))").unwrap();
    while one::<i64>(&b, "PRAGMA freelist_count") > 0 {
        run(&b, "INSERT INTO u VALUES(zeroblob(9000))").unwrap();
    }
    assert_eq!(code(&run(&a, "COMMIT").unwrap_err()), OVERTAKEN);
    integrity(&b);
    for sql in ["BEGIN", "INSERT INTO t VALUES(zeroblob(9000))", "COMMIT"] {
        run(&a, sql).unwrap();
    }
    integrity(&b);
}

/// Duralite shows SQLite the free list in an order that is private to the connection. A commit does not write that
/// order to the database. So it does not write a page that stays free.
#[test]
fn inv64_a_page_that_stays_free_is_not_written() {
    let fixture = Fixture::new();
    let (conn, _reader) = leasing(&fixture);
    let frames = || {
        let status: String = one(&conn, "PRAGMA duralite");
        let frames = status.lines().find_map(|line| line.strip_prefix("log_frames\t")).unwrap();
        frames.parse::<u32>().unwrap()
    };
    let before = frames();
    for sql in ["BEGIN", "INSERT INTO u VALUES(zeroblob(9000))", "COMMIT"] {
        run(&conn, sql).unwrap();
    }
    // The frames are page 1, the table, two pages of the value, and the trunk page of the free list that had listed
    // these two pages.
    assert_eq!(frames() - before, 5);
}

/// The connection's last commit changed trunk pages of the database's free list. SQLite's cache does not have these
/// pages, so they are not in the read set.
#[test]
fn inv58_trunks_that_the_last_commit_has_changed_were_not_read() {
    let fixture = Fixture::new();
    let (a, _reader) = leasing(&fixture);
    let b = open(&fixture, "off");
    let allocates_without_growth = || {
        let pages = || one::<i64>(&a, "PRAGMA page_count");
        let before = pages();
        for sql in ["BEGIN", "INSERT INTO t VALUES(zeroblob(9000))", "COMMIT"] {
            run(&a, sql).unwrap();
        }
        pages() == before
    };
    assert!((0..10).any(|_| allocates_without_growth()), "the connection has no lease");
    run(&a, "BEGIN").unwrap();
    run(&a, "INSERT INTO t VALUES(1)").unwrap();
    // This insert takes pages off the first trunk.
    run(&b, "INSERT INTO u VALUES(zeroblob(9000))").unwrap();
    run(&a, "COMMIT").unwrap();
    integrity(&b);
}

#[test]
fn two_transactions_that_allocate_both_commit() {
    let fixture = Fixture::new();
    let [a, b] = [(); 2].map(|()| open(&fixture, "on"));
    run(&a, "CREATE TABLE t(k INTEGER PRIMARY KEY, v)").unwrap();
    run(&a, "CREATE TABLE u(k INTEGER PRIMARY KEY, v)").unwrap();
    let pair = |first: &Connection, second: &Connection| {
        let steps = [
            (first, "BEGIN"),
            (second, "BEGIN"),
            (first, "INSERT INTO t(v) VALUES(randomblob(30000))"),
            (second, "INSERT INTO u(v) VALUES(randomblob(30000))"),
            (first, "COMMIT"),
            (second, "COMMIT"),
        ];
        let failed = steps.into_iter().find_map(|(conn, sql)| run(conn, sql).err());
        let Some(error) = failed else { return true };
        assert!([OVERTAKEN, BUSY].contains(&code(&error)), "{error}");
        for conn in [first, second].into_iter().filter(|conn| !conn.is_autocommit()) {
            run(conn, "ROLLBACK").unwrap();
        }
        false
    };
    // The first conflicts show Duralite that both connections allocate pages. From then on it adds free pages to the
    // database, so that each of them can lease some.
    let lost = (0..100).filter(|_| !pair(&a, &b)).count();
    assert!(lost < 60, "{lost} of 100 pairs were overtaken");
    [&a, &b].into_iter().for_each(integrity);
    // No page is in use twice, and none is lost.
    run(&a, "DELETE FROM t").unwrap();
    run(&b, "DELETE FROM u").unwrap();
    integrity(&a);
    run(&a, "VACUUM").unwrap();
    assert!(one::<i64>(&a, "PRAGMA page_count") < 10);
}

/// A transaction takes the page after the end of the database, enters it in the pointer map, and cuts it off again.
/// Meanwhile a second transaction adds a page at the same place. The second one does not write the pointer map, because
/// the right entry is still there from an earlier transaction.
#[test]
fn inv64_a_page_that_was_taken_and_cut_off_again_was_allocated() {
    let fixture = Fixture::new();
    let first = duralite_testkit::connect(&fixture.uri("c.db", "")).unwrap();
    run(&first, "PRAGMA auto_vacuum=FULL").unwrap();
    run(&first, "PRAGMA journal_mode=WAL").unwrap();
    let [a, b] = [(); 2].map(|()| open(&fixture, "on"));
    // Each row has a leaf of its own.
    let add = |conn, table| run(conn, &format!("INSERT INTO {table}(v) VALUES(zeroblob(3000))")).unwrap();
    for table in ["t", "u"] {
        run(&a, &format!("CREATE TABLE {table}(k INTEGER PRIMARY KEY, v)")).unwrap();
        (0..10).for_each(|_| _ = add(&a, table));
    }
    // The new row takes the page after the end. SQLite then moves that page to the place of the first row.
    let replace = |conn, table| {
        run(conn, "BEGIN").unwrap();
        add(conn, table);
        run(conn, &format!("DELETE FROM {table} WHERE k = 1")).unwrap();
    };
    let pages = || one::<i64>(&first, "PRAGMA page_count");
    let before = pages();
    replace(&a, "t");
    run(&a, "COMMIT").unwrap();
    assert_eq!(pages(), before);
    replace(&b, "u");
    run(&a, "BEGIN").unwrap();
    add(&a, "t");
    run(&a, "COMMIT").unwrap();
    assert_eq!(pages(), before + 1);
    assert_eq!(run(&b, "COMMIT").map_err(|error| code(&error)), Err(OVERTAKEN));
    integrity(&first);
}

/// When a transaction allocates, its commit also adds free pages to the database for leases. The added pages must not
/// make the transaction too large for a small log.
#[test]
fn inv64_free_pages_do_not_fill_a_small_log() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open_with("c.db", "concurrent=on&layout=embedded&log_limit=262144");
    for sql in ["BEGIN", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(30000))", "COMMIT"] {
        run(&conn, sql).unwrap();
    }
    for _ in 0..50 {
        run(&conn, "BEGIN").unwrap();
        run(&conn, "INSERT INTO t VALUES(randomblob(30000))").unwrap();
        match run(&conn, "COMMIT") {
            Err(error) if code(&error) == ffi::SQLITE_FULL => {
                run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
                run(&conn, "INSERT INTO t VALUES(randomblob(30000))").unwrap();
            }
            done => _ = done.unwrap(),
        }
    }
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 51);
    integrity(&conn);
}

/// Another process has made the database shorter. Two transactions then allocate the same page after its end. A process
/// that maps the database may still believe that the file is longer.
#[test]
fn a_conflict_on_a_page_that_was_cut_off_is_a_conflict() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let conn = fixture.open_with("c.db", "concurrent=on");
        let large = |table| format!("INSERT INTO {table}(v) VALUES(randomblob(400000))");
        for table in ["t", "u"] {
            run(&conn, &format!("CREATE TABLE {table}(k INTEGER PRIMARY KEY, v)")).unwrap();
        }
        run(&conn, &large("t")).unwrap();
        run(&conn, "PRAGMA wal_checkpoint").unwrap();
        let bytes = || std::fs::metadata(fixture.path("c.db")).unwrap().len();
        let long = bytes();

        let mut other = Actor::sql(&fixture.uri("c.db", "concurrent=on"));
        for sql in ["DELETE FROM t", "VACUUM", "PRAGMA wal_checkpoint"] {
            other.run(sql);
        }
        // With `ppl` the file may stay long, because `ppl` may keep pages in the log instead of the file.
        assert!(bytes() < long || engine == Engine::PPL, "{engine:?}: {} of {long} bytes", bytes());

        run(&conn, "BEGIN").unwrap();
        run(&conn, &large("t")).unwrap();
        assert_eq!(other.run(&large("u")), "", "{engine:?}");
        assert_eq!(run(&conn, "COMMIT").map_err(|error| code(&error)), Err(OVERTAKEN), "{engine:?}");
        run(&conn, &large("t")).unwrap();
        integrity(&conn);
        other.finish();
    }
}
