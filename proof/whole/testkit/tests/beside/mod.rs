//! Lets stock SQLite run at each moment at which a process of Duralite is about to take or release a lock
//! (invariants 1, 2, 7).
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod place;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use place::{Place, at_every_lock, insert};

/// The values of the argument `stock` in checks: `STOCK` if a process of stock SQLite gave the answer, and
/// `OURS` if a process of Duralite gave it.
const STOCK: bool = true;
const OURS: bool = false;

/// Makes SQLite drop its cache. A connection that leaves WAL mode (`LEAVE`) may otherwise continue with
/// outdated pages, so a test runs this statement first.
const FORGET: &str = "PRAGMA shrink_memory";
const LEAVE: &str = "PRAGMA journal_mode=DELETE";
/// Changes more pages than a small cache holds. So SQLite writes to the database file before the commit.
const CHANGE_ALL: &str = "UPDATE pair SET a = a + 1";

/// Stock SQLite leaves WAL mode while Duralite opens the WAL. Stock SQLite has a transaction open when
/// Duralite continues.
#[test]
fn inv02_stock_sqlite_leaves_wal_mode_while_a_log_is_opened() {
    at_every_lock("", 4, |place, ours| {
        let mut stock = place.stock();
        stock.run("SELECT count(*) FROM t");
        let (n, of_stock) = (place.next(), place.next());
        let mut begun = String::from("not tried");
        let answer = ours.run(&insert(n), || {
            stock.run(FORGET);
            stock.run(LEAVE);
            begun = stock.run("BEGIN IMMEDIATE");
            begun += &stock.run(&insert(of_stock));
        });
        place.answered(n, &answer, OURS);
        let closed = ours.run(".close", || {});
        place.may_say(&closed, OURS);
        if begun.is_empty() {
            let committed = stock.run("COMMIT");
            place.answered(of_stock, &committed, STOCK);
        }
        stock.run("ROLLBACK");
        let rows = stock.run("SELECT n FROM t");
        if rows.starts_with("error: ") {
            place.may_say(&rows, STOCK);
        } else {
            place.has_all(&rows, "stock SQLite");
        }
        stock.finish();
    });
}

/// Stock SQLite leaves WAL mode, and begins to return to it. Its process dies just before it deletes the
/// rollback journal.
#[test]
fn inv02_a_hot_journal_is_left_while_a_log_is_opened() {
    // Stock SQLite first makes six writes: the journal's header, one page of the journal in three parts, the
    // journal's page count, and the page of the database. The seventh step deletes the journal. The process
    // dies just before that.
    const BEFORE_DELETION: u32 = 7;
    let deaths = AtomicU32::new(0);
    at_every_lock("", 4, |place, ours| {
        let mut stock = place.mortal();
        stock.run("SELECT count(*) FROM t");
        let (n, of_stock) = (place.next(), place.next());
        let mut inserted = String::from("not tried");
        let answer = ours.run(&insert(n), || {
            stock.run(FORGET);
            stock.run(LEAVE);
            inserted = stock.run(&insert(of_stock));
            stock.run(&format!("die {BEFORE_DELETION}"));
            if stock.run_or_end("PRAGMA journal_mode=WAL").is_none() {
                assert_eq!(place.versions(), [2, 2], "it died before it had changed the database");
                deaths.fetch_add(1, SeqCst);
            }
        });
        place.answered(n, &answer, OURS);
        if inserted != "not tried" {
            place.answered(of_stock, &inserted, STOCK);
        }
        drop(stock);
        place.insert_by(ours);
        let closed = ours.run(".close", || {});
        place.may_say(&closed, OURS);
    });
    assert!(deaths.into_inner() > 0, "no journal was left");
}

/// A killed program has left an ordinary `-wal`. A connection of Duralite with `locking_mode=EXCLUSIVE`
/// checkpoints that `-wal`. Meanwhile stock SQLite opens the database.
#[test]
fn inv02_stock_sqlite_comes_while_an_exclusive_connection_opens_a_log() {
    at_every_lock("", 4, |place, ours| {
        let mut dead = place.stock();
        place.insert(&mut dead, STOCK);
        dead.kill();
        let mut stock = place.stock();
        let exclusive = ours.run("PRAGMA locking_mode=EXCLUSIVE", || {});
        assert_eq!(exclusive, "exclusive");
        let n = place.next();
        let of_stock = place.next();
        let mut inserted = None;
        let answer = ours.run(&insert(n), || inserted = Some(stock.run(&insert(of_stock))));
        place.answered(n, &answer, OURS);
        if let Some(inserted) = inserted {
            place.answered(of_stock, &inserted, STOCK);
        }
        for _ in 0..2 {
            place.insert(&mut stock, STOCK);
            // This statement may checkpoint the frames that stock SQLite has just written. Even then, the
            // following statements must not take the `-wal` for unused, because stock SQLite still has it
            // open.
            place.insert_by(ours);
            let n = place.next();
            let begun = stock.run("BEGIN IMMEDIATE") + &stock.run(&insert(n));
            place.insert_by(ours);
            place.insert_by(ours);
            if begun.is_empty() {
                let committed = stock.run("COMMIT");
                place.answered(n, &committed, STOCK);
            }
            stock.run("ROLLBACK");
        }
        let closed = ours.run(".close", || {});
        place.may_say(&closed, OURS);
        place.insert(&mut stock, STOCK);
        stock.finish();
    });
}

/// While Duralite opens a database read-only, stock SQLite takes EXCLUSIVE and changes the database in place.
#[test]
fn inv13_stock_sqlite_writes_while_a_reader_opens_the_database() {
    at_every_lock("mode=ro", 40, |place, ours| {
        let mut stock = place.stock();
        stock.run("PRAGMA cache_size=3");
        stock.run("SELECT count(*) FROM t");
        let mut changed = None;
        let one_state = "SELECT count(DISTINCT a) FROM pair";
        let answer = ours.run(one_state, || {
            stock.run("PRAGMA locking_mode=EXCLUSIVE");
            stock.run(FORGET);
            let left = stock.run(LEAVE);
            // These statements change half of the pairs a second time, so that a reader of the database file
            // alone would see half a transaction.
            let steps = ["BEGIN IMMEDIATE", CHANGE_ALL, "UPDATE pair SET a = a + 1 WHERE id <= 20"];
            changed = (left == "delete").then(|| steps.map(|step| stock.run(step)).concat());
            if changed.is_none() {
                // This process could not leave WAL mode. It must not stay connected, so a new process takes
                // its place.
                stock = place.stock();
            }
        });
        place.sees_one_state(&answer);
        if changed.is_some_and(|said| said.is_empty()) {
            let finished = stock.run("UPDATE pair SET a = a + 1 WHERE id > 20");
            place.may_say(&finished, STOCK);
            let committed = stock.run("COMMIT");
            place.may_say(&committed, STOCK);
        }
        stock.run("ROLLBACK");
        for _ in 0..3 {
            place.insert(&mut stock, STOCK);
            let rows = ours.run("SELECT n FROM t", || {});
            if rows.starts_with("error: ") {
                place.may_say(&rows, OURS);
            } else {
                place.has_all(&rows, "a reader");
            }
        }
        let again = ours.run(one_state, || {});
        place.sees_one_state(&again);
        let closed = ours.run(".close", || {});
        place.may_say(&closed, OURS);
        stock.finish();
    });
}

/// A program that stays connected keeps Duralite from making a log. A reader must soon stop waiting for the
/// program, and read without a log.
#[test]
fn inv13_a_reader_does_not_wait_for_a_program_that_stays_connected() {
    // Duralite itself waits for at most a quarter of a second.
    const LONG: Duration = Duration::from_secs(10);
    let mut place = Place::new(4);
    let mut stock = place.stock();
    place.insert(&mut stock, STOCK);
    let mut reader = place.reader();
    let start = Instant::now();
    let rows = reader.run("SELECT n FROM t");
    let waited = start.elapsed();
    if rows.starts_with("error: ") {
        place.may_say(&rows, OURS);
    } else {
        place.has_all(&rows, "a reader");
    }
    place.insert(&mut stock, STOCK);
    reader.finish();
    stock.finish();
    assert!(place.wrong.is_empty(), "{:?}", place.wrong);
    assert!(waited < LONG, "a reader has waited for {waited:?}");
}
