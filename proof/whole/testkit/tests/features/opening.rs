//! Tests ways of opening a database: read-only, with plain names, and with settings from the environment.

use std::time::Duration;

use duralite_testkit::{Actor, Engine, Fixture, code, connect, one, run, stock};
use rusqlite::{OpenFlags, ffi};

use super::{content, fill, is_active};

#[test]
fn read_only_opens_of_a_live_database() {
    let fixture = Fixture::new();
    let conn = fixture.open("r.db");
    fill(&conn, 50);
    let reader = connect(&fixture.uri("r.db", "mode=ro")).unwrap();
    assert_eq!(content(&reader), content(&conn));
    assert_eq!(code(&run(&reader, "DELETE FROM t").unwrap_err()) & 0xff, ffi::SQLITE_READONLY);
    run(&conn, "DELETE FROM t WHERE a > 10").unwrap();
    assert_eq!(content(&reader).len(), 10);
    drop(conn);
    // The database has the rows of the last writer, even if a reader closes last.
    assert_eq!(content(&reader).len(), 10);
    drop(reader);
    drop(fixture.open("r.db"));
    fixture.assert_plain("r.db");
    assert_eq!(content(&stock(&fixture.path("r.db"))).len(), 10);
}

#[test]
fn read_only_opens_of_a_database_at_rest() {
    let fixture = Fixture::new();
    let conn = fixture.open("r.db");
    fill(&conn, 50);
    drop(conn);
    let reader = connect(&fixture.uri("r.db", "mode=ro")).unwrap();
    assert_eq!(content(&reader).len(), 50);
    assert!(is_active(&reader));
    // The reader does not block a writer.
    let writer = fixture.open("r.db");
    run(&writer, "DELETE FROM t WHERE a > 10").unwrap();
    assert_eq!(content(&reader).len(), 10);
    drop(writer);
    assert_eq!(content(&reader).len(), 10);
    drop(reader);
    fixture.assert_plain("r.db");
    let before = std::fs::read(fixture.path("r.db")).unwrap();
    let reader = connect(&fixture.uri("r.db", "immutable=1")).unwrap();
    assert_eq!(content(&reader).len(), 10);
    assert!(std::fs::read(fixture.path("r.db")).unwrap() == before);
    assert!(fixture.logs().is_empty());
}

#[test]
fn a_read_only_process_recovers_what_a_killed_one_left() {
    let fixture = Fixture::new();
    let mut writer = Actor::sql(&fixture.uri("r.db", ""));
    for sql in ["PRAGMA journal_mode=WAL", "CREATE TABLE t(a)", "INSERT INTO t VALUES(5)"] {
        assert!(!writer.run(sql).starts_with("error"));
    }
    writer.kill();
    let reader = connect(&fixture.uri("r.db", "mode=ro")).unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT sum(a) FROM t"), 5);
    assert!(fixture.is_guarded("r.db"));
}

#[test]
fn plain_names_take_their_settings_from_the_environment() {
    let fixture = Fixture::new();
    let path = fixture.path("plain.db");
    let log_dir = fixture.log_dir().to_str().unwrap();
    let environment = [
        ("DURALITE_JOURNAL", "nvwal"),
        ("DURALITE_NVRAM", "emulate"),
        ("DURALITE_NVRAM_DIR", log_dir),
        ("DURALITE_MAKE_DEFAULT", "1"),
        ("DURALITE_SYNC", "eager"),
    ];
    let mut actor = Actor::start_with(&["sql", path.to_str().unwrap()], &environment);
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(a)"), "");
    assert_eq!(actor.run("INSERT INTO t VALUES(3)"), "");
    assert!(actor.run("PRAGMA duralite").contains("state\tactive"));
    assert_eq!(actor.run("PRAGMA duralite_sync"), "eager");
    assert!(fixture.is_guarded("plain.db"));
    // The URI overrides the environment.
    let other = fixture.path("other.db");
    let attach = format!("ATTACH 'file:{}?journal=off' AS other", other.display());
    assert_eq!(actor.run(&attach), "");
    assert_eq!(actor.run("PRAGMA other.duralite_journal"), "off");
    actor.finish();
    fixture.assert_plain("plain.db");
    assert_eq!(one::<i64>(&stock(&path), "SELECT sum(a) FROM t"), 3);
}

#[test]
fn a_relative_name_and_one_with_odd_characters() {
    let fixture = Fixture::new();
    let name = "odd name %41 \u{e4}.db";
    let uri = fixture.uri(&name.replace('%', "%25"), "");
    let conn = connect(&uri).unwrap();
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    fill(&conn, 10);
    assert!(is_active(&conn));
    drop(conn);
    fixture.assert_plain(name);
}

#[test]
fn opens_that_must_not_create_do_not() {
    let fixture = Fixture::new();
    let uri = fixture.uri("no.db", "mode=rw");
    assert_eq!(code(&connect(&uri).unwrap_err()), ffi::SQLITE_CANTOPEN);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    assert!(rusqlite::Connection::open_with_flags(fixture.uri("no.db", ""), flags).is_err());
    assert!(!fixture.path("no.db").exists() && fixture.logs().is_empty());
    std::fs::write(
        fixture.path("text.db"),
        "this is no database, but long enough to look like one".repeat(9),
    )
    .unwrap();
    let conn = connect(&fixture.uri("text.db", "")).unwrap();
    assert_eq!(code(&run(&conn, "SELECT * FROM t").unwrap_err()), ffi::SQLITE_NOTADB);
    assert!(fixture.logs().is_empty());
}

#[test]
fn inv13_a_log_has_the_mode_of_its_database() {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o600, 0o640, 0o664] {
        let fixture = Fixture::new();
        stock(&fixture.path("m.db")).execute_batch("CREATE TABLE t(a)").unwrap();
        std::fs::set_permissions(fixture.path("m.db"), PermissionsExt::from_mode(mode)).unwrap();
        let conn = fixture.open("m.db");
        run(&conn, "INSERT INTO t VALUES(1)").unwrap();
        let log = std::fs::metadata(fixture.log()).unwrap().permissions().mode() & 0o777;
        assert_eq!(log, mode, "{log:o} is not {mode:o}");
    }
}

/// Returns the number of flushes of a process that opens a database with its log beside it, runs statements,
/// waits, and closes the database.
fn flushes(settings: &str, statements: &[&str], wait: Duration) -> Option<usize> {
    let fixture = Fixture::on(Engine::WALDIO);
    let path = fixture.path("f.db");
    let sql = "PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(1)";
    stock(&path).execute_batch(sql).unwrap();
    let (dir, trace) = (path.parent().unwrap(), fixture.log_dir().join("trace"));
    let mut actor = Actor::traced(&fixture.uri_with_log_dir("f.db", dir, settings), &trace)?;
    for statement in statements {
        actor.run(statement);
    }
    std::thread::sleep(wait);
    actor.finish();
    let text = std::fs::read_to_string(&trace).unwrap();
    let place = dir.display().to_string();
    let is_flush = |line: &&str| line.contains("sync(") && line.contains(&place);
    Some(text.lines().filter(is_flush).count())
}

/// The flushes make durable: the new log, the directory, the guard, the commit, the pages in the database file,
/// the header without the guard, and the end of the log.
#[test]
fn a_process_that_commits_once_flushes_seven_times() {
    let Some(count) = flushes("", &["INSERT INTO t VALUES(2)"], Duration::ZERO) else { return };
    assert_eq!(count, 7);
}

/// Lifting the guard takes no flush if the guard was on only briefly. Even with `on_close=keep`, Duralite does
/// not keep a log without commits. So such a process lifts the guard too.
#[test]
fn a_process_that_only_reads_flushes_once_unless_it_ends_within_a_second() {
    for settings in ["", "on_close=keep"] {
        let count = |wait| flushes(settings, &["SELECT a FROM t"], wait);
        let Some(of_long) = count(Duration::from_secs(1)) else { return };
        assert_eq!(of_long, 1, "{settings}");
        // On a busy machine any of these processes may take longer than a second.
        assert!((0..20).any(|_| count(Duration::ZERO) == Some(0)), "{settings}");
    }
}

/// No rollback journal is opened while the disk may still have the guard. With `synchronous=OFF` SQLite itself
/// makes no flush, so every flush is one of Duralite's.
#[test]
fn inv01_a_guard_that_was_lifted_without_a_flush_is_off_the_disk_before_a_journal_is_opened() {
    let statements = ["PRAGMA synchronous=OFF", "SELECT a FROM t", "PRAGMA journal_mode=DELETE"];
    let Some(count) = flushes("", &statements, Duration::ZERO) else { return };
    assert!(count >= 1, "{count}");
}
