//! Tests `on_close=keep`: the last close leaves the guard and the log in place for the next open.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use duralite_testkit::{Actor, Engine, Fixture, code, connect, integrity, one, run, stock};
use rusqlite::{Connection, ffi};

use super::{content, fill, is_active, status_of};

const KEEP: &str = "on_close=keep";

fn can_stay(engine: &Engine) -> bool {
    engine.descriptor().settings.iter().any(|setting| setting.name == "on_close")
}

/// Makes a fixture for the engine under test if that engine can keep its log, otherwise for `ppl`.
fn place() -> Fixture {
    Fixture::on(Some(Engine::under_test()).filter(can_stay).unwrap_or(Engine::PPL))
}

fn number(conn: &Connection, name: &str) -> u64 {
    status_of(conn)[name].parse().unwrap()
}

/// Asserts that the database has its guard and its log, and that no process has it open.
fn assert_kept(fixture: &Fixture, name: &str) {
    assert!(fixture.is_guarded(name), "the guard was lifted");
    assert_eq!(fixture.logs().len(), 1, "{:?}", fixture.logs());
    let error = run(&stock(&fixture.path(name)), "SELECT * FROM t").unwrap_err();
    assert_eq!(code(&error), ffi::SQLITE_NOTADB);
}

/// Makes a database, and closes it with its log kept. Returns the rows.
fn kept(fixture: &Fixture, name: &str) -> Vec<Vec<rusqlite::types::Value>> {
    let conn = fixture.open_with(name, KEEP);
    fill(&conn, 300);
    let rows = content(&conn);
    conn.close().unwrap();
    assert_kept(fixture, name);
    rows
}

#[test]
fn a_hundred_openings_and_closings_write_no_page() {
    let fixture = Fixture::on(Engine::PPL);
    kept(&fixture, "k.db");
    let before = fs::read(fixture.path("k.db")).unwrap();
    for (rows, round) in (300..).zip(0..100) {
        let conn = fixture.open_with("k.db", KEEP);
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), rows, "round {round}");
        assert_eq!(number(&conn, "log_frames"), 0, "SQLite finds an empty log");
        run(&conn, "INSERT INTO t(b) VALUES(randomblob(100))").unwrap();
        assert_eq!(number(&conn, "pages_merged"), 0, "round {round}");
        conn.close().unwrap();
        assert!(fs::read(fixture.path("k.db")).unwrap() == before, "round {round} wrote to the file");
    }
    assert_kept(&fixture, "k.db");
    let conn = fixture.open("k.db");
    integrity(&conn);
    let last = content(&conn);
    conn.close().unwrap();
    fixture.assert_plain("k.db");
    assert!(fixture.logs().is_empty());
    assert_eq!(content(&stock(&fixture.path("k.db"))), last);
}

#[test]
fn a_log_that_is_kept_goes_on_and_stays_short() {
    for engine in Engine::all().into_iter().filter(can_stay) {
        let fixture = Fixture::on(engine);
        kept(&fixture, "k.db");
        let mut longest = 0;
        for round in 0..200_u32 {
            let conn = fixture.open_with("k.db", KEEP);
            assert_eq!(one::<u32>(&conn, "SELECT count(*) FROM t"), 300 + round);
            run(&conn, "INSERT INTO t(b) VALUES(randomblob(100))").unwrap();
            longest = longest.max(number(&conn, "log_frames"));
            conn.close().unwrap();
        }
        assert_kept(&fixture, "k.db");
        assert!((1..100).contains(&longest), "{longest} frames on {}", engine.name());
        let conn = fixture.open("k.db");
        integrity(&conn);
        let rows = content(&conn);
        assert_eq!(rows.len(), 500);
        conn.close().unwrap();
        fixture.assert_plain("k.db");
        assert_eq!(content(&stock(&fixture.path("k.db"))), rows);
    }
}

/// Opens a kept database of `rows` rows, reads and commits. Returns the numbers of flushes during the open
/// and during the commit.
fn flushes(fixture: &Fixture, rows: u32) -> [u64; 2] {
    let conn = fixture.open_with("k.db", KEEP);
    assert_eq!(one::<u32>(&conn, "SELECT count(*) FROM t"), rows);
    let opening = number(&conn, "device_flushes");
    run(&conn, "INSERT INTO t(b) VALUES(randomblob(100))").unwrap();
    let commit = number(&conn, "device_flushes") - opening;
    integrity(&conn);
    conn.close().unwrap();
    assert_kept(fixture, "k.db");
    [opening, commit]
}

/// Returns the path of the shared memory of the only log.
fn shared_memory(fixture: &Fixture) -> PathBuf {
    let files = fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let mut memory = files.filter(|path| path.as_os_str().as_encoded_bytes().ends_with(b"-shm"));
    memory.next().unwrap()
}

#[test]
fn inv07_what_the_last_process_left_counts_as_durable_only_where_its_memory_tells() {
    const BOOT: u64 = 72;
    let fixture = Fixture::on(Engine::WALDIO);
    kept(&fixture, "k.db");
    // Each open makes the log longer, until it is longer than Duralite keeps at a close. The last close then
    // writes the log's pages to the database file.
    let mut rows = 300;
    while flushes(&fixture, rows) == [0, 1] {
        rows += 1;
        assert!(rows < 400, "the log is never put home");
    }
    assert_eq!(flushes(&fixture, rows + 1), [0, 1]);
    let files = [fixture.path("k.db"), fixture.log()];
    let older = files.clone().map(|path| fs::read(path).unwrap());
    assert_eq!(flushes(&fixture, rows + 2), [0, 1]);

    // After a power loss the shared memory is gone.
    fs::remove_file(shared_memory(&fixture)).unwrap();
    assert_eq!(flushes(&fixture, rows + 3), [1, 1]);
    assert_eq!(flushes(&fixture, rows + 4), [0, 1]);
    // The shared memory may also be from an earlier boot of the system.
    let memory = fs::File::options().write(true).open(shared_memory(&fixture)).unwrap();
    memory.write_all_at(&[7; 8], BOOT).unwrap();
    assert_eq!(flushes(&fixture, rows + 5), [1, 1]);
    assert_eq!(flushes(&fixture, rows + 6), [0, 1]);
    // The log is longer than its shared memory says, as if a process had died just after it made the log
    // longer.
    let log = fs::File::options().write(true).open(fixture.log()).unwrap();
    log.set_len(log.metadata().unwrap().len() + 65_536).unwrap();
    assert_eq!(flushes(&fixture, rows + 7), [1, 1]);
    assert_eq!(flushes(&fixture, rows + 8), [0, 1]);
    // The test restores the files from an older backup, so the shared memory does not match them.
    for (path, bytes) in files.iter().zip(older) {
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(flushes(&fixture, rows + 2), [1, 1]);
    assert_eq!(flushes(&fixture, rows + 3), [0, 1]);
}

#[test]
fn whoever_closes_last_decides_and_may_decide_anew() {
    let fixture = place();
    let rows = kept(&fixture, "k.db");
    let conn = fixture.open("k.db");
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_on_close"), "drain");
    assert_eq!(content(&conn), rows);
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_on_close=keep"), "keep");
    conn.close().unwrap();
    assert_kept(&fixture, "k.db");
    let conn = fixture.open_with("k.db", KEEP);
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_on_close=drain"), "drain");
    assert_eq!(content(&conn), rows);
    conn.close().unwrap();
    fixture.assert_plain("k.db");
}

#[test]
fn leaving_wal_mode_lifts_the_guard_all_the_same() {
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        for locking in ["normal", "exclusive"] {
            let fixture = place();
            let rows = kept(&fixture, "k.db");
            let conn = fixture.open_with("k.db", KEEP);
            run(&conn, &format!("PRAGMA locking_mode={locking}")).unwrap();
            assert_eq!(content(&conn), rows);
            run(&conn, "UPDATE t SET b = x'07' WHERE a = 7").unwrap();
            let rows = content(&conn);
            let what = format!("{mode}, {locking}");
            assert_eq!(one::<String>(&conn, &format!("PRAGMA journal_mode={mode}")), mode, "{what}");
            assert!(!fixture.is_guarded("k.db") && fixture.logs().is_empty(), "{what}");
            run(&conn, "UPDATE t SET b = x'08' WHERE a = 8").unwrap();
            assert_ne!(content(&conn), rows);
            run(&conn, "PRAGMA locking_mode=normal").unwrap();
            let rows = content(&conn);
            assert_eq!(content(&stock(&fixture.path("k.db"))), rows, "{what}");
            assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=wal"), "wal");
            run(&conn, "UPDATE t SET b = x'09' WHERE a = 9").unwrap();
            assert!(is_active(&conn) && fixture.is_guarded("k.db"), "{what}");
            conn.close().unwrap();
            assert_kept(&fixture, "k.db");
        }
    }
}

#[test]
fn an_attached_database_leaves_wal_mode_too() {
    let fixture = place();
    let rows = kept(&fixture, "k.db");
    let conn = fixture.open_with("main.db", KEEP);
    run(&conn, "CREATE TABLE here(a)").unwrap();
    run(&conn, &format!("ATTACH '{}' AS other", fixture.uri("k.db", KEEP))).unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM other.t"), 300);
    assert_eq!(one::<String>(&conn, "PRAGMA other.journal_mode=delete"), "delete");
    assert!(!fixture.is_guarded("k.db") && fixture.is_guarded("main.db"));
    assert_eq!(content(&stock(&fixture.path("k.db"))), rows);
    run(&conn, "DETACH other").unwrap();
    assert!(fixture.is_guarded("main.db"));
}

#[test]
fn vacuum_and_exclusive_locking_keep_the_log() {
    let fixture = place();
    kept(&fixture, "k.db");
    let conn = fixture.open_with("k.db", KEEP);
    run(&conn, "PRAGMA locking_mode=exclusive").unwrap();
    run(&conn, "DELETE FROM t WHERE a % 2 = 0").unwrap();
    run(&conn, "VACUUM").unwrap();
    let rows = content(&conn);
    conn.close().unwrap();
    assert_kept(&fixture, "k.db");
    let conn = fixture.open_with("k.db", KEEP);
    assert_eq!(content(&conn), rows);
    integrity(&conn);
    conn.close().unwrap();
    drop(fixture.open("k.db"));
    connect(&fixture.uri("k.db", "")).and_then(|conn| run(&conn, "SELECT * FROM t")).unwrap();
    fixture.assert_plain("k.db");
}

#[test]
fn inv07_a_process_that_is_killed_after_a_kept_close_loses_nothing() {
    let fixture = place();
    kept(&fixture, "k.db");
    let uri = fixture.uri("k.db", KEEP);
    for round in 1..=5 {
        // A process opens the kept database again and commits. The test kills it before any checkpoint writes
        // this commit to the database file.
        let mut actor = Actor::sql(&uri);
        assert_eq!(actor.run("INSERT INTO t(b) VALUES('x')"), "");
        actor.kill();
        let mut actor = Actor::sql(&uri);
        assert_eq!(actor.run("SELECT count(*) FROM t"), (300 + round).to_string());
        actor.finish();
        assert_kept(&fixture, "k.db");
    }
}

#[test]
fn inv03_a_kept_database_is_found_under_another_name() {
    let fixture = place();
    let rows = kept(&fixture, "k.db");
    fs::rename(fixture.path("k.db"), fixture.path("moved.db")).unwrap();
    let conn = fixture.open_with("moved.db", KEEP);
    assert_eq!(content(&conn), rows);
    conn.close().unwrap();
    assert_kept(&fixture, "moved.db");
}

#[test]
fn inv03_a_copy_of_a_kept_database_is_refused_without_a_log_of_its_own() {
    let fixture = place();
    let rows = kept(&fixture, "k.db");
    fs::copy(fixture.path("k.db"), fixture.path("copy.db")).unwrap();
    let opened = connect(&fixture.uri("copy.db", KEEP)).and_then(|conn| run(&conn, "SELECT * FROM t"));
    assert_eq!(code(&opened.unwrap_err()), ffi::SQLITE_CANTOPEN);
    assert_eq!(content(&fixture.open_with("k.db", KEEP)), rows);
    assert_kept(&fixture, "k.db");
}

#[test]
fn inv03_a_kept_log_is_in_nobodys_way_once_its_database_is_deleted() {
    let fixture = place();
    kept(&fixture, "k.db");
    fs::remove_file(fixture.path("k.db")).unwrap();
    let conn = fixture.open_with("k.db", KEEP);
    fill(&conn, 10);
    assert_eq!(content(&conn).len(), 10);
    assert_eq!(fixture.logs().len(), 2, "the log of the deleted database is put aside");
    conn.close().unwrap();
    assert!(fixture.is_guarded("k.db"));
    assert_eq!(content(&fixture.open("k.db")).len(), 10);
}

#[test]
fn a_reader_of_a_kept_database_leaves_it_kept() {
    let fixture = place();
    let rows = kept(&fixture, "k.db");
    let reader = connect(&fixture.uri("k.db", "mode=ro&on_close=keep")).unwrap();
    assert_eq!(content(&reader), rows);
    reader.close().unwrap();
    assert_kept(&fixture, "k.db");
    // A connection without this setting writes the log's pages to the database file, as it does with a log
    // that a crash has left.
    let reader = connect(&fixture.uri("k.db", "mode=ro")).unwrap();
    assert_eq!(content(&reader), rows);
    reader.close().unwrap();
    fixture.assert_plain("k.db");
}

#[test]
fn the_background_thread_is_done_when_a_kept_database_is_closed() {
    let fixture = place();
    kept(&fixture, "k.db");
    let conn = fixture.open_with("k.db", "on_close=keep&background_checkpoint=1");
    for _ in 0..50 {
        run(&conn, "UPDATE t SET b = randomblob(100) WHERE a = 5").unwrap();
    }
    let rows = content(&conn);
    let closed = conn.close();
    assert!(closed.is_ok());
    let files = fixture.snapshot();
    assert_kept(&fixture, "k.db");
    assert!(fixture.snapshot() == files, "something was done to a closed database");
    assert_eq!(content(&fixture.open("k.db")), rows);
}

#[test]
fn the_background_thread_goes_by_what_is_in_force() {
    let fixture = place();
    let conn = fixture.open_with("b.db", "on_close=keep&background_checkpoint=1");
    // The background thread may hold WRITE for a short time.
    conn.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    fill(&conn, 10);
    // The background thread must open its connections with the value that the setting has now. With the
    // original value, Duralite would refuse them.
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_on_close=drain"), "drain");
    let restarts = number(&conn, "log_restarts");
    let start = std::time::Instant::now();
    while number(&conn, "log_restarts") == restarts {
        assert!(start.elapsed().as_secs() < 60, "nothing is checkpointed in the background");
        run(&conn, "UPDATE t SET b = randomblob(100) WHERE a = 5").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    conn.close().unwrap();
    fixture.assert_plain("b.db");
}
