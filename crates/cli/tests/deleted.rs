//! `duralite salvage` of a log that was deleted while processes have it open.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicI64, Ordering};

use duralite_testkit::{Actor, Engine, Fixture, integrity, one, stock};
use rusqlite::Connection;
use serde_json::Value;

const ROWS: i64 = 200;

fn duralite(fixture: &Fixture, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.args(arguments).arg("--log-dir").arg(fixture.log_dir());
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8([output.stdout.clone(), output.stderr.clone()].concat()).unwrap()
}

fn writer(fixture: &Fixture) -> Actor {
    let mut actor = Actor::sql(&fixture.uri("d.db", ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(id INTEGER PRIMARY KEY, body)"), "");
    actor
}

/// Inserts a row. Returns the error if SQLite refuses the row.
fn insert(actor: &mut Actor, row: i64) -> Option<String> {
    let answer = actor.run(&format!("INSERT INTO t VALUES({row}, '{}')", format!("{row:06}").repeat(40)));
    (!answer.is_empty()).then_some(answer)
}

struct Saved {
    /// Owns the directory. Dropping this value deletes the directory.
    _places: tempfile::TempDir,
    out: PathBuf,
    told: Value,
}

/// Salvages the log that the process has open, and checks that nothing of the log is missing.
fn salvage(fixture: &Fixture, process: u32) -> Saved {
    let places = tempfile::tempdir().unwrap();
    let (database, out) = (fixture.path("d.db"), places.path().join("saved.db"));
    let output = duralite(fixture, &["salvage", "--json", database.to_str().unwrap(), out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["process"], &told["damage"]), (&process.into(), &Value::Null), "{told}");
    let mut files: Vec<_> =
        std::fs::read_dir(places.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["saved.db", "saved.db-log"], "{told}");
    Saved { _places: places, out, told }
}

/// Asserts that the table has the rows from 1 on without a gap: at least `rows` of them, at most `begun`, and each with
/// the contents that were written.
#[track_caller]
fn assert_has_rows(conn: &Connection, (rows, begun): (i64, i64), what: &str) {
    integrity(conn);
    let count: i64 = one(conn, "SELECT count(*) FROM t");
    assert!((rows..=begun).contains(&count), "{what}: {count} rows, {rows} were acknowledged");
    assert_eq!(one::<i64>(conn, "SELECT coalesce(max(id), 0) FROM t"), count, "{what}");
    let whole =
        "SELECT count(*) FROM t WHERE body = replace(printf('%240s', ''), '      ', printf('%06d', id))";
    assert_eq!(one::<i64>(conn, whole), count, "{what}");
}

fn shared_memory(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with("-shm")).collect()
}

#[test]
fn inv09_what_a_process_has_committed_to_a_deleted_log_is_saved() {
    for engine in Engine::all() {
        for (checkpoint, name) in [("0", "nothing is home"), ("10", "much is home")] {
            let what = format!("{engine:?}, {name}");
            let fixture = Fixture::on(engine);
            let mut actor = writer(&fixture);
            actor.run(&format!("PRAGMA wal_autocheckpoint={checkpoint}"));
            (1..=ROWS).for_each(|row| assert_eq!(insert(&mut actor, row), None, "{what}"));
            let log = fixture.log();
            std::fs::remove_file(&log).unwrap();
            for command in ["info", "verify", "checkpoint"] {
                let told = said(&duralite(&fixture, &[command, fixture.path("d.db").to_str().unwrap()]));
                assert!(told.contains("duralite salvage"), "{what}: {command}: {told}");
                assert!(told.contains(&format!("process {}", actor.pid())), "{what}: {command}: {told}");
            }
            let before = std::fs::read(fixture.path("d.db")).unwrap();
            let saved = salvage(&fixture, actor.pid());
            assert_has_rows(&stock(&saved.out), (ROWS, ROWS), &what);
            assert_eq!(
                std::fs::read(fixture.path("d.db")).unwrap(),
                before,
                "{what}: the database was changed"
            );
            // The process must not commit any more, because its commits would be neither in the copy nor in a log that
            // a program can find.
            assert!(insert(&mut actor, ROWS + 1).is_some(), "{what}: acknowledged after the copy was made");
            actor.kill();
            // The copy is an ordinary log, and recovery can use it.
            std::fs::copy(saved.told["log_copy"].as_str().unwrap(), &log).unwrap();
            let conn = fixture.open("d.db");
            assert_has_rows(&conn, (ROWS, ROWS), &format!("{what}, recovered from the copy"));
        }
    }
}

/// A process can learn in two ways that its log was deleted: another process tells it through the shared memory, or it
/// notices itself that its log file has no name any more. The test tries both.
#[test]
fn inv09_what_a_process_goes_on_to_commit_is_saved_or_refused() {
    for engine in Engine::all() {
        for is_told in [true, false] {
            let what = format!("{engine:?}, told: {is_told}");
            let fixture = Fixture::on(engine);
            let mut actor = writer(&fixture);
            let process = actor.pid();
            (1..=ROWS).for_each(|row| assert_eq!(insert(&mut actor, row), None, "{what}"));
            let (begun, acknowledged) = (AtomicI64::new(ROWS), AtomicI64::new(ROWS));
            let (saved, refusal) = std::thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    for row in ROWS + 1.. {
                        begun.store(row, Ordering::SeqCst);
                        if let Some(refusal) = insert(&mut actor, row) {
                            return refusal;
                        }
                        acknowledged.store(row, Ordering::SeqCst);
                    }
                    unreachable!()
                });
                while acknowledged.load(Ordering::SeqCst) < ROWS + 20 {
                    std::thread::yield_now();
                }
                if !is_told {
                    shared_memory(fixture.log_dir())
                        .iter()
                        .for_each(|path| std::fs::remove_file(path).unwrap());
                }
                std::fs::remove_file(fixture.log()).unwrap();
                (salvage(&fixture, process), writing.join().unwrap())
            });
            assert!(!refusal.is_empty(), "{what}");
            let rows = (acknowledged.into_inner(), begun.into_inner());
            assert_has_rows(&stock(&saved.out), rows, &what);
            // The rows are also in the database file as soon as the process has closed it.
            actor.finish();
            fixture.assert_plain("d.db");
            assert_has_rows(&stock(&fixture.path("d.db")), rows, &format!("{what}, closed"));
        }
    }
}

/// The log holds a transaction that has not ended. The salvage rolls it back.
#[test]
fn inv26_a_transaction_that_is_open_in_a_deleted_log_is_not_in_what_is_saved() {
    let fixture = Fixture::on(Engine::SCRATCHPAD);
    let mut actor = Actor::sql(&fixture.uri("d.db", ""));
    assert_eq!(actor.run("CREATE TABLE t(id INTEGER PRIMARY KEY, body)"), "");
    (1..=ROWS).for_each(|row| assert_eq!(insert(&mut actor, row), None));
    for sql in ["PRAGMA cache_size=4", "BEGIN"] {
        assert_eq!(actor.run(sql), "");
    }
    (ROWS + 1..=3 * ROWS).for_each(|row| assert_eq!(insert(&mut actor, row), None));
    assert!(fixture.is_guarded("d.db"), "it has spilled");
    std::fs::remove_file(fixture.log()).unwrap();
    let saved = salvage(&fixture, actor.pid());
    assert_has_rows(&stock(&saved.out), (ROWS, ROWS), "a spilled transaction");
    // The commit must fail, because its changes are not in the saved database.
    let answer = actor.run("COMMIT");
    assert!(answer.contains("I/O error"), "{answer}");
    actor.kill();
}

#[test]
fn a_log_that_nobody_has_open_is_not_saved_and_nothing_is_written() {
    let fixture = Fixture::on(Engine::WALDIO);
    let mut actor = writer(&fixture);
    assert_eq!(insert(&mut actor, 1), None);
    actor.kill();
    std::fs::remove_file(fixture.log()).unwrap();
    let places = tempfile::tempdir().unwrap();
    let (database, out) = (fixture.path("d.db"), places.path().join("saved.db"));
    let output = duralite(&fixture, &["salvage", database.to_str().unwrap(), out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no process that this user may look at has it open"), "{}", said(&output));
    assert_eq!(std::fs::read_dir(places.path()).unwrap().count(), 0);
}
