//! Tests transactions over several databases, and several connections to one database.

use std::fs;

use duralite_testkit::{Actor, Engine, Fixture, code, connect, integrity, one, run, stock};
use rusqlite::ffi;

use super::{MODES, NAME, each, make, open};

const NAMES: [&str; 2] = ["a.db", "b.db"];
/// More steps than the transaction has.
const STEPS: u64 = 400;

type Uri = fn(&Fixture, &str) -> String;

fn ours(fixture: &Fixture, name: &str) -> String {
    fixture.uri(name, "")
}

fn theirs(fixture: &Fixture, name: &str) -> String {
    format!("file:{}", fixture.path(name).display())
}

fn die_at(uri: Uri, fixture: &Fixture, mode: &str, step: u64) -> (bool, bool) {
    let mut actor = Actor::start(&["stepping", &uri(fixture, NAMES[0])]);
    assert_eq!(actor.run(&format!("ATTACH '{}' AS other", uri(fixture, NAMES[1]))), "");
    for schema in ["main", "other"] {
        assert_eq!(actor.run(&format!("PRAGMA {schema}.journal_mode={mode}")).to_uppercase(), mode);
    }
    // From their second transaction on, both databases have logs.
    if step.is_multiple_of(2) {
        assert_eq!(actor.run("BEGIN"), "");
        assert_eq!(actor.run("UPDATE main.t SET a = a"), "");
        assert_eq!(actor.run("UPDATE other.t SET a = a"), "");
        assert_eq!(actor.run("COMMIT"), "");
    }
    assert_eq!(actor.run(&format!("die {}", step.div_ceil(2))), "");
    let transaction = ["BEGIN", "UPDATE main.t SET a = a + 1", "UPDATE other.t SET a = a + 1", "COMMIT"];
    let committed = transaction.iter().all(|sql| {
        let answer = actor.run_or_end(sql);
        assert!(answer.as_deref().is_none_or(str::is_empty), "{sql}: {answer:?}");
        answer.is_some()
    });
    let died = actor.run_or_end("SELECT 1").is_none();
    actor.kill();
    (died, committed)
}

fn super_journals(fixture: &Fixture) -> usize {
    let is_one = |name: &str| name.contains("-mj");
    let entries = fs::read_dir(fixture.path(".")).unwrap();
    entries.filter(|entry| is_one(entry.as_ref().unwrap().file_name().to_str().unwrap())).count()
}

/// Runs a transaction over both databases many times. In each run the process dies at another step. After
/// each death, opens both databases with one connection each, in varying order. Returns the total number of
/// super-journals that are left.
fn die_at_each_step(uri: Uri, engine: Engine, mode: &str) -> usize {
    let (mut last, mut left) = (false, 0);
    for step in 1..STEPS {
        let fixture = Fixture::on(engine);
        for name in NAMES {
            let conn = stock(&fixture.path(name));
            run(&conn, "CREATE TABLE t AS SELECT 1 AS a, zeroblob(9000) AS b").unwrap();
        }
        let (died, committed) = die_at(uri, &fixture, mode, step);
        let mut order = NAMES;
        if step.is_multiple_of(3) {
            order.reverse();
        }
        let found = order.map(|name| {
            let conn = connect(&uri(&fixture, name)).unwrap();
            integrity(&conn);
            one::<i64>(&conn, "SELECT a FROM t")
        });
        assert_eq!(found[0], found[1], "step {step} of {mode}");
        assert!(found[0] == 2 || !committed && found[0] == 1, "step {step}: {found:?}");
        left += super_journals(&fixture);
        for name in NAMES {
            fixture.assert_plain(name);
        }
        // In runs with odd numbers the process dies in its first transaction, and in runs with even numbers
        // in its second. If it survives two runs in a row, all steps of both are done.
        if !died && last {
            eprintln!("{step} steps, {left} super-journals left");
            return left;
        }
        last = !died;
    }
    panic!("it never lived");
}

/// Stock SQLite leaves a super-journal behind if it dies before the journal of a database names it. Duralite
/// must not leave more super-journals than stock SQLite.
#[test]
fn inv23_a_transaction_over_two_databases_dies_in_both_or_none() {
    for mode in MODES {
        let most = die_at_each_step(theirs, Engine::NVWAL, mode);
        for engine in Engine::keeping_rollback_journals() {
            // The home of `sideundo` makes no difference in this test, and each step costs a process. So the
            // test runs this engine in one mode only.
            if engine.name() == "sideundo" && mode != "DELETE" {
                continue;
            }
            eprintln!("{engine:?}, {mode}");
            let left = die_at_each_step(ours, engine, mode);
            assert!(left <= most, "{left} super-journals left");
        }
    }
}

#[test]
fn processes_write_in_turns() {
    each(|fixture, mode| {
        make(fixture);
        let mut actors: Vec<_> = (0..2).map(|_| Actor::sql(&fixture.uri(NAME, ""))).collect();
        for actor in &mut actors {
            actor.run(&format!("PRAGMA journal_mode={mode}"));
        }
        for round in 0..40 {
            let expected = 3 + round * 2;
            for (i, actor) in actors.iter_mut().enumerate() {
                assert_eq!(actor.run("SELECT count(*) FROM t"), (expected + i).to_string());
                assert_eq!(actor.run("INSERT INTO t(b) VALUES(zeroblob(2000))"), "");
            }
        }
        let [first, mut second]: [Actor; 2] = actors.try_into().ok().unwrap();
        first.finish();
        assert!(fixture.is_guarded(NAME));
        assert_eq!(second.run("PRAGMA integrity_check"), "ok");
        second.finish();
        fixture.assert_plain(NAME);
        assert!(fixture.logs().is_empty());
        assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT count(*) FROM t"), 83);
    });
}

#[test]
fn processes_write_at_once() {
    each(|fixture, mode| {
        let conn = open(fixture, mode);
        run(&conn, "CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)").unwrap();
        run(&conn, "CREATE TABLE history(id INTEGER PRIMARY KEY, who INTEGER, amount INTEGER)").unwrap();
        for id in 0..20 {
            run(&conn, &format!("INSERT INTO accounts VALUES({id}, 1000)")).unwrap();
        }
        drop(conn);
        let (uri, stop) = (fixture.uri(NAME, ""), fixture.path("stop"));
        let mut reader = Actor::start(&["audit", &uri, "20000", stop.to_str().unwrap()]);
        assert_eq!(reader.line(), "ready");
        let writers: Vec<_> =
            (1..=3).map(|seed| Actor::start(&["transfer", &uri, &seed.to_string(), "60"])).collect();
        for mut writer in writers {
            assert_eq!(writer.line(), "done");
            writer.finish();
        }
        fs::write(&stop, "").unwrap();
        reader.line();
        reader.finish();
        let conn = open(fixture, mode);
        assert_eq!(one::<i64>(&conn, "SELECT sum(balance) FROM accounts"), 20000);
        integrity(&conn);
        drop(conn);
        fixture.assert_plain(NAME);
        assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
    });
}

/// Duralite refuses a copy of a guarded database without its log. A renamed database keeps its log. The log
/// of a deleted database is deleted.
#[test]
fn inv03_copies_renames_and_deletions_under_the_guard() {
    each(|fixture, mode| {
        make(fixture);
        let conn = open(fixture, mode);
        run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
        fs::copy(fixture.path(NAME), fixture.path("copy.db")).unwrap();
        let copy = connect(&fixture.uri("copy.db", "")).map(|conn| run(&conn, "SELECT * FROM t").map(drop));
        assert!(!matches!(copy, Ok(Ok(()))), "a copy was opened without its log");
        fs::remove_file(fixture.path("copy.db")).unwrap();
        drop(conn);
        let mut actor = Actor::sql(&fixture.uri(NAME, ""));
        actor.run(&format!("PRAGMA journal_mode={mode}"));
        actor.run("PRAGMA cache_size=1");
        actor.run("BEGIN");
        assert_eq!(actor.run("UPDATE t SET b = zeroblob(90000)"), "");
        actor.kill();
        fs::rename(fixture.path(NAME), fixture.path("moved.db")).unwrap();
        let conn = connect(&fixture.uri("moved.db", "")).unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 14006);
        integrity(&conn);
        run(&conn, "INSERT INTO t VALUES(5, 5)").unwrap();
        assert!(fixture.is_guarded("moved.db"));
        fs::remove_file(fixture.path("moved.db")).unwrap();
        drop(conn);
        assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
    });
}

/// A copy of the database file replaces the original. The copy names the log, and Duralite opens the copy
/// only with that log. But the engine may have written pages to the old file after the copy was made. Then
/// Duralite refuses the copy.
#[test]
fn inv03_a_copy_that_replaces_the_database_under_the_guard_has_its_log_or_is_refused() {
    each(|fixture, mode| {
        make(fixture);
        let (path, copy) = (fixture.path(NAME), fixture.path("copy.db"));
        let uri = fixture.uri_with_log_dir(NAME, path.parent().unwrap(), "");
        let conn = connect(&uri).unwrap();
        let set = one::<String>(&conn, &format!("PRAGMA journal_mode={mode}"));
        assert_eq!(set.to_uppercase(), mode);
        run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
        assert!(fixture.is_guarded(NAME));
        fs::copy(&path, &copy).unwrap();
        fs::rename(&copy, &path).unwrap();
        drop(conn);
        match connect(&uri) {
            Ok(conn) => {
                assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 4);
                drop(conn);
                fixture.assert_plain(NAME);
            }
            Err(refused) => {
                assert!(uri.contains("home=") || uri.contains("journal=side"), "{refused}");
                assert_eq!(code(&refused), ffi::SQLITE_CANTOPEN);
                assert!(path.with_file_name(format!("{NAME}-duralite")).exists(), "the log stays");
            }
        }
    });
}

#[test]
fn inv14_children_commit_beside_their_parent() {
    each(|fixture, mode| {
        for inherited in ["ignored", "used", "closed-first", "closed-last", "rolled-back"] {
            let fixture = Fixture::on(fixture.engine());
            let conn = open(&fixture, mode);
            run(&conn, "CREATE TABLE first(a)").unwrap();
            drop(conn);
            let uri = fixture.uri(NAME, "");
            Actor::start_with(&["family", &uri, inherited, "3"], &[("MALLOC_PERTURB_", "165")]).finish();
            fixture.assert_plain(NAME);
            assert!(fixture.logs().is_empty(), "{inherited}: {:?}", fixture.logs());
        }
    });
}

#[test]
fn the_backup_interface_copies_from_and_to() {
    each(|fixture, mode| {
        make(fixture);
        let conn = open(fixture, mode);
        run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
        let mut other = connect(&fixture.uri("other.db", "")).unwrap();
        run(&other, &format!("PRAGMA journal_mode={mode}")).unwrap();
        run(&other, "CREATE TABLE old(a)").unwrap();
        run(&other, "INSERT INTO old VALUES(1)").unwrap();
        rusqlite::backup::Backup::new(&conn, &mut other)
            .and_then(|backup| backup.run_to_completion(2, std::time::Duration::ZERO, None))
            .unwrap();
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 4);
        drop((conn, other));
        for name in [NAME, "other.db"] {
            fixture.assert_plain(name);
            assert_eq!(one::<i64>(&stock(&fixture.path(name)), "SELECT count(*) FROM t"), 4);
        }
    });
}
