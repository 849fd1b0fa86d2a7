//! Lets a process die at each step of a transaction. Another process then recovers.

use duralite_testkit::{Actor, Engine, Fixture, connect, dump, integrity, one, run, stock};
use duralite_wal::engine::media::MediaSet;
use duralite_wal::log::offline;
use duralite_wal::{LogPlacement, placement};
use rusqlite::Connection;

use super::{NAME, each, make, open};

/// More steps than the transaction has.
const STEPS: u64 = 400;
/// The statements of a transaction that changes, adds and frees pages, and spills some of them.
const TRANSACTION: [&str; 5] = [
    "BEGIN",
    "UPDATE t SET b = zeroblob(length(b) + 6000)",
    "INSERT INTO t SELECT a + 10, zeroblob(7000) FROM t",
    "DELETE FROM t WHERE a = 2",
    "COMMIT",
];
const BEFORE: i64 = 14005;
const AFTER: i64 = 15000 + 6005 + 3 * 7000;

/// Lets a process die at this step of the transaction. Returns whether it died, and whether it acknowledged
/// the commit before it died.
fn die_at(fixture: &Fixture, mode: &str, step: u64) -> (bool, bool) {
    let mut actor = Actor::start(&["stepping", &fixture.uri(NAME, "")]);
    actor.run(&format!("PRAGMA journal_mode={mode}"));
    assert_eq!(actor.run("PRAGMA cache_size=3"), "");
    assert_eq!(actor.run(&format!("die {step}")), "");
    let committed = TRANSACTION.iter().all(|sql| {
        let answer = actor.run_or_end(sql);
        assert!(answer.as_deref().is_none_or(str::is_empty), "{sql}: {answer:?}");
        answer.is_some()
    });
    let died = actor.run_or_end("SELECT 1").is_none();
    actor.kill();
    (died, committed)
}

fn state(conn: &Connection) -> i64 {
    integrity(conn);
    one(conn, "SELECT sum(length(b)) FROM t")
}

fn check(found: i64, committed: bool) {
    assert!(found == AFTER || !committed && found == BEFORE, "{found} bytes, committed: {committed}");
}

/// Runs the transaction again and again. In each run the process dies one step later, until it survives.
/// After each run `recover` recovers the database, and returns its content.
fn each_step(recover: impl Fn(&Fixture, &str, u64) -> i64) {
    each(|fixture, mode| {
        for step in 1..STEPS {
            let fixture = Fixture::on(fixture.engine());
            make(&fixture);
            let (died, committed) = die_at(&fixture, mode, step);
            check(recover(&fixture, mode, step), committed);
            fixture.assert_plain(NAME);
            assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
            check(state(&stock(&fixture.path(NAME))), committed);
            if !died {
                eprintln!("{step} steps");
                return;
            }
        }
        panic!("it never lived");
    });
}

#[test]
fn inv21_a_transaction_that_dies_at_any_step_is_rolled_back_by_who_comes_next() {
    each_step(|fixture, mode, _| {
        let conn = open(fixture, mode);
        let found = state(&conn);
        // The dead process may just have made a log that no database names. Duralite deletes that log when it
        // makes the next log.
        run(&conn, "PRAGMA user_version=1").unwrap();
        conn.close().unwrap();
        found
    });
}

/// In exclusive locking mode SQLite keeps the journal of the first transaction open. From the second
/// transaction on, the journal is in the log.
#[test]
fn inv21_in_exclusive_locking_mode_a_new_database_dies_at_any_step() {
    each(|fixture, mode| {
        for step in 1..STEPS {
            let fixture = Fixture::on(fixture.engine());
            let mut actor = Actor::start(&["stepping", &fixture.uri(NAME, "")]);
            actor.run("PRAGMA locking_mode=EXCLUSIVE");
            actor.run(&format!("PRAGMA journal_mode={mode}"));
            for sql in [
                "PRAGMA cache_size=3",
                "CREATE TABLE t AS SELECT 1 a, zeroblob(9000) b UNION ALL SELECT 2, zeroblob(5000) UNION ALL SELECT 3, 'three'",
                &format!("die {step}"),
            ] {
                assert_eq!(actor.run(sql), "", "{sql}");
            }
            let committed = TRANSACTION.iter().all(|sql| actor.run_or_end(sql).is_some());
            let died = actor.run_or_end("SELECT 1").is_none();
            actor.kill();
            let conn = connect(&fixture.uri(NAME, "")).unwrap();
            check(state(&conn), committed);
            conn.close().unwrap();
            fixture.assert_plain(NAME);
            check(state(&stock(&fixture.path(NAME))), committed);
            if !died {
                assert!(step > 2, "the journal stays where it was");
                eprintln!("{step} steps");
                return;
            }
        }
        panic!("it never lived");
    });
}

#[test]
fn inv21_and_by_a_checkpoint_without_sqlite() {
    each_step(|fixture, _, _| {
        if fixture.is_guarded(NAME) {
            let log = fixture.log();
            let logs =
                LogPlacement::at(fixture.engine().descriptor(), fixture.log_dir(), &MediaSet::default());
            let id = placement::describe(&log).unwrap().id;
            offline::checkpoint(&logs, &fixture.path(NAME), id, false).unwrap();
        }
        // If the process died before the guard was on, it may have left a log that no database names.
        // Duralite deletes that log when it makes the next one.
        let conn = connect(&fixture.uri(NAME, "")).unwrap();
        run(&conn, "PRAGMA user_version=1").unwrap();
        conn.close().unwrap();
        state(&stock(&fixture.path(NAME)))
    });
}

/// The process that recovers dies too, at each of its own steps.
#[test]
fn inv21_a_recovery_that_dies_is_repeated() {
    each_step(|fixture, mode, step| {
        let mut actor = Actor::start(&["stepping", &fixture.uri(NAME, "")]);
        assert_eq!(actor.run(&format!("die {}", step % 23 + 1)), "");
        actor.run_or_end("SELECT sum(length(b)) FROM t");
        actor.kill();
        let conn = open(fixture, mode);
        let found = state(&conn);
        run(&conn, "PRAGMA user_version=1").unwrap();
        conn.close().unwrap();
        found
    });
}

/// A connection that was idle when another process died recovers the database at its next statement.
#[test]
fn inv21_a_connection_that_was_there_rolls_back() {
    each(|fixture, mode| {
        for step in (1..STEPS).step_by(3) {
            let fixture = Fixture::on(fixture.engine());
            make(&fixture);
            let survivor = open(&fixture, mode);
            assert_eq!(state(&survivor), BEFORE);
            if step.is_multiple_of(2) {
                // The survivor's log must be the one that the guard names.
                run(&survivor, "PRAGMA user_version=3").unwrap();
            }
            let before = dump(&survivor);
            let (died, committed) = die_at(&fixture, mode, step);
            check(state(&survivor), committed);
            if state(&survivor) == BEFORE {
                assert!(dump(&survivor) == before);
            }
            run(&survivor, "PRAGMA user_version=4").unwrap();
            survivor.close().unwrap();
            fixture.assert_plain(NAME);
            check(state(&stock(&fixture.path(NAME))), committed);
            if !died {
                return;
            }
        }
        panic!("it never lived");
    });
}

/// The process changes the journal mode, commits a transaction, and changes the mode again. It dies at each
/// step.
#[test]
fn inv21_a_change_of_the_mode_dies_at_any_step() {
    let changes =
        ["PRAGMA journal_mode=WAL", "UPDATE t SET b = b", "PRAGMA journal_mode=DELETE", "UPDATE t SET b = b"];
    for engine in Engine::keeping_rollback_journals() {
        let mut died = true;
        for step in 1..STEPS {
            if !died {
                eprintln!("{engine:?}: {step} steps");
                break;
            }
            let fixture = Fixture::on(engine);
            make(&fixture);
            let mut actor = Actor::start(&["stepping", &fixture.uri(NAME, "")]);
            assert_eq!(actor.run("UPDATE t SET b = b"), "");
            assert_eq!(actor.run(&format!("die {step}")), "");
            let lived = changes.iter().all(|sql| actor.run_or_end(sql).is_some());
            died = !(lived && actor.run_or_end("SELECT 1").is_some());
            actor.kill();
            let conn = connect(&fixture.uri(NAME, "")).unwrap();
            assert_eq!(state(&conn), BEFORE, "{engine:?}, step {step}");
            run(&conn, "PRAGMA user_version=1").unwrap();
            conn.close().unwrap();
            fixture.assert_plain(NAME);
            assert!(fixture.logs().is_empty(), "{engine:?}, step {step}: {:?}", fixture.logs());
            assert_eq!(state(&stock(&fixture.path(NAME))), BEFORE, "{engine:?}, step {step}");
        }
        assert!(!died, "it never lived");
    }
}

/// A user who opens the database read-only cannot roll the journal back. This user gets the same error as on
/// stock SQLite.
#[test]
fn a_reader_meets_a_hot_journal() {
    each(|fixture, mode| {
        make(fixture);
        let stocks = Fixture::on(fixture.engine());
        make(&stocks);
        let mut codes = Vec::new();
        for (uri, readers) in [
            (fixture.uri(NAME, ""), fixture.uri(NAME, "mode=ro")),
            (stock_uri(&stocks, ""), stock_uri(&stocks, "?mode=ro")),
        ] {
            let mut actor = Actor::sql(&uri);
            actor.run(&format!("PRAGMA journal_mode={mode}"));
            actor.run("PRAGMA cache_size=1");
            actor.run("BEGIN");
            actor.run("UPDATE t SET b = zeroblob(100000)");
            actor.kill();
            let reader = connect(&readers).unwrap();
            codes.push(duralite_testkit::code(&run(&reader, "SELECT * FROM t").unwrap_err()));
            drop(reader);
            let conn = connect(&uri).unwrap();
            assert_eq!(state(&conn), BEFORE);
        }
        assert_eq!(codes[0], codes[1]);
        fixture.assert_plain(NAME);
    });
}

fn stock_uri(fixture: &Fixture, parameters: &str) -> String {
    format!("file:{}{parameters}", fixture.path(NAME).display())
}
