//! Tests the provisional guard, which a database has before the first commit to its log. Also tests what a
//! power loss may leave of such a guard and its log.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use duralite_format::LogId;
use duralite_format::guard::{
    DatabaseHeader, HEADER_BYTES, JournalKind, LOG_ID, inspect, mask_provisionally,
};
use duralite_testkit::{Actor, Engine, Fixture, code, connect, noting_writes, one, run, stock};
use duralite_wal::engine::media::MediaSet;
use duralite_wal::log::follow::Follower;
use duralite_wal::{EngineOptions, ErrorKind, LogPlacement};
use rusqlite::ffi;

fn header(path: &Path) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    std::fs::File::open(path).unwrap().read_exact_at(&mut header, 0).unwrap();
    header
}

fn is_provisional(fixture: &Fixture, name: &str) -> Option<bool> {
    match inspect(&header(&fixture.path(name))) {
        DatabaseHeader::Guarded { provisional, .. } => Some(provisional),
        _ => None,
    }
}

/// Makes a closed database in WAL mode with the rows 1 to 3.
fn made(fixture: &Fixture, name: &str) {
    let sql = "PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(1), (2), (3)";
    stock(&fixture.path(name)).execute_batch(sql).unwrap();
}

/// Makes a database as [`made`] does. Leaves it in the state that remains if a reader is killed, or its
/// machine loses power, while it reads.
fn read_and_killed(fixture: &Fixture, name: &str) {
    made(fixture, name);
    let mut actor = Actor::sql(&fixture.uri(name, ""));
    assert_eq!(actor.run("SELECT sum(a) FROM t"), "6");
    actor.kill();
    assert_eq!(is_provisional(fixture, name), Some(true));
}

fn assert_goes_on(fixture: &Fixture, name: &str) {
    let conn = fixture.open(name);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    run(&conn, "INSERT INTO t VALUES(4)").unwrap();
    assert_eq!(is_provisional(fixture, name), Some(false));
    conn.close().unwrap();
    fixture.assert_plain(name);
    assert_eq!(one::<i64>(&stock(&fixture.path(name)), "SELECT sum(a) FROM t"), 10);
    assert_eq!(fixture.logs(), Vec::<std::path::PathBuf>::new());
}

/// While this connection makes the guard durable, another connection may write page 1 in a checkpoint.
#[test]
fn inv01_a_guard_that_is_made_durable_before_a_commit_changes_no_other_byte_of_page_1() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        made(&fixture, "a.db");
        let conn = fixture.open("a.db");
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
        let is_due = is_provisional(&fixture, "a.db") == Some(true);
        let writes = noting_writes(|| drop(run(&conn, "INSERT INTO t VALUES(4)").unwrap()));
        assert_eq!(writes.contains(&LOG_ID.len()), is_due, "{engine:?}: {writes:?}");
        assert!(!writes.contains(&HEADER_BYTES), "{engine:?}: {writes:?}");
        assert!(is_due || engine == Engine::SCRATCHPAD);
    }
}

#[test]
fn inv01_the_guard_is_provisional_until_something_is_committed() {
    for engine in [Engine::WALDIO, Engine::NVWAL] {
        let fixture = Fixture::on(engine);
        made(&fixture, "p.db");
        let reader = fixture.open("p.db");
        assert_eq!(one::<i64>(&reader, "SELECT sum(a) FROM t"), 6);
        assert_eq!(is_provisional(&fixture, "p.db"), Some(true));
        let error = run(&stock(&fixture.path("p.db")), "SELECT * FROM t").unwrap_err();
        assert_eq!(code(&error), ffi::SQLITE_NOTADB);
        // Other connections share the new log, in this process and in others. The first of them to commit
        // makes the guard permanent.
        let other = fixture.open("p.db");
        let mut third = Actor::sql(&fixture.uri("p.db", ""));
        assert_eq!(third.run("SELECT sum(a) FROM t"), "6");
        other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
        run(&other, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        assert_eq!(is_provisional(&fixture, "p.db"), Some(true));
        assert_eq!(third.run("INSERT INTO t VALUES(4)"), "");
        assert_eq!(is_provisional(&fixture, "p.db"), Some(false));
        third.kill();
        assert_eq!(one::<i64>(&reader, "SELECT sum(a) FROM t"), 10);
        run(&other, "INSERT INTO t VALUES(5)").unwrap();
        other.close().unwrap();
        reader.close().unwrap();
        fixture.assert_plain("p.db");
        assert_eq!(one::<i64>(&stock(&fixture.path("p.db")), "SELECT sum(a) FROM t"), 15);
        assert!(fixture.logs().is_empty());
    }
}

fn named_log(fixture: &Fixture, name: &str) -> Option<LogId> {
    match inspect(&header(&fixture.path(name))) {
        DatabaseHeader::Guarded { log_id, .. } => Some(log_id),
        _ => None,
    }
}

fn remove_memory(fixture: &Fixture) {
    for path in std::fs::read_dir(fixture.log_dir()).unwrap().flatten().map(|entry| entry.path()) {
        if path.to_string_lossy().ends_with("-shm") {
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Only a power loss can have torn the log. If there has been none, Duralite continues with the same log. A
/// new log would need EXCLUSIVE, and a second connection that opens at the same time would prevent that.
#[test]
fn a_log_goes_on_that_no_power_loss_can_have_torn() {
    for engine in [Engine::WALDIO, Engine::NVWAL, Engine::PPL] {
        let fixture = Fixture::on(engine);
        read_and_killed(&fixture, "p.db");
        let log = named_log(&fixture, "p.db");
        let mut actor = Actor::sql(&fixture.uri("p.db", ""));
        assert_eq!(actor.run("SELECT sum(a) FROM t"), "6");
        assert_eq!(named_log(&fixture, "p.db"), log);
        actor.kill();
        remove_memory(&fixture);
        let reader = fixture.open("p.db");
        assert_eq!(one::<i64>(&reader, "SELECT sum(a) FROM t"), 6);
        assert_ne!(named_log(&fixture, "p.db"), log);
        drop(reader);
        assert_goes_on(&fixture, "p.db");
    }
}

type Damage<'a> = &'a dyn Fn(&Path);

#[test]
fn inv01_whatever_a_power_loss_leaves_of_a_log_without_commits_is_nothing() {
    let zero = |log: &Path, at: u64, len: usize| {
        OpenOptions::new().write(true).open(log).unwrap().write_all_at(&vec![0; len], at).unwrap();
    };
    let cut = |log: &Path, len: u64| OpenOptions::new().write(true).open(log).unwrap().set_len(len).unwrap();
    for engine in [Engine::WALDIO, Engine::NVWAL] {
        let damages: [(&str, Damage<'_>); 9] = [
            ("as it was", &|_| {}),
            ("without a name", &|log| std::fs::remove_file(log).unwrap()),
            ("empty", &|log| cut(log, 0)),
            ("cut in its first sector", &|log| cut(log, 100)),
            ("cut behind its superblock", &|log| cut(log, 4096)),
            ("zeros", &|log| zero(log, 0, 12288)),
            ("without its first sector", &|log| zero(log, 0, 512)),
            ("without its second sector", &|log| zero(log, 512, 512)),
            ("without its slots", &|log| zero(log, 4096, 8192)),
        ];
        // After a power loss a log in memory has either all of its cache lines or none. This is because
        // Duralite names the log only after it has written back all lines, and emulated memory writes back no
        // line. So a log with only some of its lines is damaged, and Duralite keeps it.
        let few = [0, 1, 2, 5];
        let possible = |at: &usize| engine == Engine::WALDIO || few.contains(at);
        for (_, (what, damage)) in damages.into_iter().enumerate().filter(|(at, _)| possible(at)) {
            for readers_first in [false, true] {
                let fixture = Fixture::on(engine);
                read_and_killed(&fixture, "p.db");
                damage(&fixture.log());
                if what != "as it was" {
                    remove_memory(&fixture);
                }
                if readers_first {
                    let reader = connect(&fixture.uri("p.db", "mode=ro")).unwrap();
                    assert_eq!(one::<i64>(&reader, "SELECT sum(a) FROM t"), 6, "{what}, {}", engine.name());
                }
                assert_goes_on(&fixture, "p.db");
            }
        }
    }
}

/// A process that reads for a moment lifts the guard without a flush. So the power may fail when the disk has
/// the guard, but not yet the header without the guard. By then stock SQLite may have committed in a `-wal`.
#[test]
fn inv01_a_guard_that_a_power_loss_brings_back_hides_no_commit_of_stock_sqlite() {
    for engine in [Engine::WALDIO, Engine::NVWAL] {
        let fixture = Fixture::on(engine);
        read_and_killed(&fixture, "p.db");
        let guarded = header(&fixture.path("p.db"));
        let reader = fixture.open("p.db");
        assert_eq!(one::<i64>(&reader, "SELECT sum(a) FROM t"), 6);
        reader.close().unwrap();
        fixture.assert_plain("p.db");
        let writer = stock(&fixture.path("p.db"));
        run(&writer, "INSERT INTO t VALUES(4)").unwrap();
        for file in ["", "-wal"] {
            let from = fixture.path(&format!("p.db{file}"));
            std::fs::copy(from, fixture.path(&format!("lost.db{file}"))).unwrap();
        }
        drop(writer);
        let lost = OpenOptions::new().write(true).open(fixture.path("lost.db")).unwrap();
        lost.write_all_at(&guarded, 0).unwrap();
        assert_eq!(is_provisional(&fixture, "lost.db"), Some(true));
        let conn = fixture.open("lost.db");
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 10);
        run(&conn, "INSERT INTO t VALUES(5)").unwrap();
        conn.close().unwrap();
        fixture.assert_plain("lost.db");
        assert_eq!(one::<i64>(&stock(&fixture.path("lost.db")), "SELECT sum(a) FROM t"), 15);
    }
}

/// The settings of this reader lead to another log directory, so it does not find the log that a writer uses.
/// It must not read the database without that log.
#[test]
fn inv03_a_reader_that_cannot_have_a_provisional_log_is_refused() {
    for engine in [Engine::WALDIO, Engine::NVWAL] {
        let fixture = Fixture::on(engine);
        let elsewhere = Fixture::on(engine);
        made(&fixture, "p.db");
        let writer = fixture.open("p.db");
        assert_eq!(one::<i64>(&writer, "SELECT sum(a) FROM t"), 6);
        assert_eq!(is_provisional(&fixture, "p.db"), Some(true));
        let uri = fixture.uri_with_log_dir("p.db", elsewhere.log_dir(), "mode=ro");
        let read = || connect(&uri).and_then(|reader| run(&reader, "SELECT sum(a) FROM t"));
        assert_eq!(code(&read().unwrap_err()) & 0xff, ffi::SQLITE_CANTOPEN, "{}", engine.name());
        run(&writer, "INSERT INTO t VALUES(4)").unwrap();
        assert_eq!(code(&read().unwrap_err()) & 0xff, ffi::SQLITE_CANTOPEN, "{}", engine.name());
        assert!(!fixture.path("p.db-wal").exists());
        writer.close().unwrap();
        assert_eq!(one::<i64>(&stock(&fixture.path("p.db")), "SELECT sum(a) FROM t"), 10);
    }
}

/// Duralite must not delete a file that has a log's name, but is no log of Duralite's.
#[test]
fn inv03_a_file_of_somebody_else_s_that_is_called_like_a_log_is_not_deleted() {
    for content in [b"notes".to_vec(), [&[0; 16384], b"something".as_slice()].concat()] {
        let fixture = Fixture::on(Engine::WALDIO);
        made(&fixture, "p.db");
        let name = fixture.log_dir().join(format!("p.db-duralite-{}", "0".repeat(32)));
        std::fs::write(&name, &content).unwrap();
        let conn = fixture.open("p.db");
        run(&conn, "INSERT INTO t VALUES(4)").unwrap();
        conn.close().unwrap();
        assert_eq!(std::fs::read(&name).unwrap(), content);
    }
}

/// A power loss may bring back the name of a deleted journal. SQLite plays that journal back, although its
/// content is older than the log.
#[test]
fn inv01_a_rollback_journal_is_played_back_over_a_provisional_guard() {
    let fixture = Fixture::new();
    let (live, hot) = (fixture.path("live.db"), fixture.path("hot.db"));
    let theirs = stock(&live);
    theirs
        .execute_batch(
            "CREATE TABLE t(a, b); INSERT INTO t VALUES(1, zeroblob(9000)), (2, zeroblob(9000));
             PRAGMA cache_size=1; BEGIN; CREATE TABLE u(a); UPDATE t SET a = a + 100, b = randomblob(9000);
             PRAGMA user_version=7",
        )
        .unwrap();
    std::fs::copy(&live, &hot).unwrap();
    std::fs::copy(fixture.path("live.db-journal"), fixture.path("hot.db-journal")).unwrap();
    // Puts the database into WAL mode, with a provisional guard.
    let mut bytes = header(&hot);
    bytes[18..20].fill(2);
    mask_provisionally(JournalKind::Wal, &mut bytes, LogId([7; 16]));
    OpenOptions::new().write(true).open(&hot).unwrap().write_all_at(&bytes, 0).unwrap();
    let conn = fixture.open("hot.db");
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 3);
    run(&conn, "INSERT INTO t VALUES(4, 4)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("hot.db");
    assert_eq!(one::<i64>(&stock(&hot), "SELECT sum(a) FROM t"), 7);
}

/// A journal has restored a header without the guard, as in the test above. But here the log still exists.
/// SQLite must not open the WAL in this log.
#[test]
fn inv01_a_log_whose_guard_was_rolled_back_gets_no_commits() {
    for engine in [Engine::NVWAL, Engine::WALDIO] {
        let fixture = Fixture::on(engine);
        let (live, hot) = (fixture.path("live.db"), fixture.path("hot.db"));
        let theirs = stock(&live);
        theirs.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1), (2)").unwrap();
        std::fs::copy(&live, &hot).unwrap();
        theirs
            .execute_batch(
                "PRAGMA cache_size=1; BEGIN; CREATE TABLE u(a, b); INSERT INTO u VALUES(1, zeroblob(90000))",
            )
            .unwrap();
        run(&stock(&hot), "PRAGMA journal_mode=WAL").unwrap();
        let mut actor = Actor::sql(&fixture.uri("hot.db", ""));
        assert_eq!(actor.run("SELECT sum(a) FROM t"), "3");
        actor.kill();
        assert_eq!(is_provisional(&fixture, "hot.db"), Some(true));
        std::fs::copy(fixture.path("live.db-journal"), fixture.path("hot.db-journal")).unwrap();
        let conn = connect(&fixture.uri("hot.db", "")).unwrap();
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 3);
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode"), "delete");
        run(&conn, "INSERT INTO t VALUES(4)").unwrap();
        // A connection that now opens the database sees the row, because the database is an ordinary one.
        assert_eq!(one::<i64>(&stock(&hot), "SELECT sum(a) FROM t"), 7);
        let mut other = Actor::sql(&fixture.uri("hot.db", ""));
        assert_eq!(other.run("SELECT sum(a) FROM t"), "7");
        other.finish();
    }
}

#[test]
fn a_log_that_was_never_durable_cannot_be_followed() {
    let fixture = Fixture::on(Engine::WALDIO);
    read_and_killed(&fixture, "p.db");
    std::fs::remove_file(fixture.log()).unwrap();
    let options = EngineOptions::default();
    let directory = LogPlacement::at(
        Engine::WALDIO.descriptor(),
        fixture.log_dir(),
        &MediaSet::named(&options.media, &fixture.path("p.db")),
    );
    let error = Follower::open(&directory, &options, &fixture.path("p.db")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("names no log"), "{error}");
    assert_goes_on(&fixture, "p.db");
}
