//! Checks what Duralite records about the logs of a database with an archive, and which commits it saves in a backlog
//! when it closes a log (invariants 72 and 73).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_format::LogId;
use duralite_format::archive::{LineEnd, Record, Records, Stamp};
use duralite_testkit::{Actor, Engine, Fixture, VERSIONS, one, run, stock};
use duralite_wal::DatabaseIdentity;
use duralite_wal::archive::{ArchiveFile, backlog::Backlog, backlog_of, path_of, stamp};
use duralite_wal::placement::{FileStep, Hook, hook};
use rusqlite::Connection;

const NAME: &str = "app.db";

fn identity(fixture: &Fixture) -> DatabaseIdentity {
    DatabaseIdentity::of(&fixture.path(NAME)).unwrap()
}

fn records(fixture: &Fixture) -> Records {
    ArchiveFile::look(&fixture.path(NAME)).unwrap().unwrap()
}

/// Returns the stamp of the database file: the value by which `app.db-archive` recognises the file's present state. No
/// process may have the database open.
fn rest(fixture: &Fixture) -> Stamp {
    let bytes = std::fs::read(fixture.path(NAME)).unwrap();
    let page_bytes = u16::from_be_bytes([bytes[16], bytes[17]]) as usize;
    stamp(&identity(fixture), &bytes[..page_bytes]).unwrap().unwrap()
}

/// Returns the newest log that was made.
fn newest_log(fixture: &Fixture) -> LogId {
    let records = records(fixture);
    let begin = records.logs().rev().find(|record| matches!(record, Record::Begin { .. }));
    begin.and_then(Record::log).unwrap()
}

/// Returns whether the records in `app.db-archive` lead without a gap from this log to the database's present state. No
/// process may have the database open.
fn goes_on(fixture: &Fixture, log: LogId) -> bool {
    records(fixture).since(log, LineEnd::File(rest(fixture))).is_some()
}

/// Opens the database, runs a statement, and closes it.
fn session(fixture: &Fixture, statement: &str) {
    let conn = fixture.open(NAME);
    run(&conn, statement).unwrap();
    conn.close().unwrap();
}

/// Makes a database with an archive and one closed log. Returns the fixture and the log's id.
fn begun(engine: Engine) -> (Fixture, LogId) {
    let fixture = Fixture::on(engine);
    session(&fixture, "CREATE TABLE t(x, y)");
    ArchiveFile::enable(&identity(&fixture), "file:///archive", 1, 7).unwrap();
    session(&fixture, "INSERT INTO t VALUES(0, zeroblob(3000))");
    let log = newest_log(&fixture);
    assert!(goes_on(&fixture, log), "{:?}", records(&fixture));
    (fixture, log)
}

/// Applies a backlog to a database whose file has the content `bytes`. Calls `after` with the file's content after each
/// commit.
fn replay(path: &Path, bytes: &mut Vec<u8>, mut after: impl FnMut(&[u8])) -> (u64, u64) {
    let mut backlog = Backlog::open(path).unwrap();
    let (first, page_bytes) = (backlog.header().first, backlog.header().page_bytes as usize);
    let (mut commits, mut image) = (0, vec![0; page_bytes]);
    while let Some(commit) = backlog.next_commit().unwrap() {
        bytes.resize(commit.db_pages as usize * page_bytes, 0);
        while let Some(number) = backlog.next_page(&mut image).unwrap() {
            let at = (number as usize - 1) * page_bytes;
            bytes[at..at + page_bytes].copy_from_slice(&image);
        }
        commits += 1;
        after(bytes);
    }
    (first, commits)
}

/// Makes a copy of a database, and opens the copy with stock SQLite.
fn copy(fixture: &Fixture, bytes: &[u8]) -> (PathBuf, Connection) {
    let path = fixture.path("copy.db");
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(fixture.path(&format!("copy.db{end}")));
    }
    std::fs::write(&path, bytes).unwrap();
    let conn = stock(&path);
    (path, conn)
}

#[test]
fn inv73_a_backlog_has_what_was_committed() {
    for engine in Engine::all() {
        for mode in ["", "beside a reader", "PASSIVE", "FULL", "RESTART", "TRUNCATE"] {
            let (fixture, _) = begun(engine);
            let mut base = std::fs::read(fixture.path(NAME)).unwrap();
            let conn = fixture.open(NAME);
            run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
            let reader = fixture.open(NAME);
            for row in 1..=12 {
                // Most pages change several times, and the database becomes larger and smaller.
                run(&conn, &format!("INSERT INTO t VALUES({row}, randomblob({}))", row * 700)).unwrap();
                run(&conn, &format!("UPDATE t SET y = randomblob({}) WHERE x = {}", 9000 / row, row / 2))
                    .unwrap();
                match mode {
                    "" => {}
                    // This reader keeps its snapshot open. So later checkpoints write only the pages of this snapshot
                    // to the database file, and the log cannot start over.
                    "beside a reader" if row == 5 => {
                        run(&reader, "BEGIN").unwrap();
                        let _: i64 = one(&reader, "SELECT count(*) FROM t");
                    }
                    "beside a reader" if row > 5 => drop(run(&conn, "PRAGMA wal_checkpoint").unwrap()),
                    "beside a reader" => {}
                    mode if row % 5 == 0 => {
                        drop(run(&conn, &format!("PRAGMA wal_checkpoint({mode})")).unwrap());
                    }
                    _ => {}
                }
            }
            let log = newest_log(&fixture);
            reader.close().unwrap();
            conn.close().unwrap();
            let what = format!("{engine:?} {mode}");
            let Some(Record::End { position, backlog, .. }) = records(&fixture).logs().rev().nth(1).cloned()
            else {
                panic!("{what}: {:?}", records(&fixture))
            };
            assert_eq!(position, 24, "{what}");
            // When `ppl` merges the records of a page, the versions of the page that single transactions left are lost.
            // So there may be no backlog.
            let is_merged = engine == Engine::PPL;
            if is_merged && !backlog {
                continue;
            }
            assert!(backlog, "{what}");
            let path = backlog_of(&fixture.path(NAME), log);
            let starts_over = match is_merged {
                true => Backlog::open(&path).unwrap().header().first > 0,
                false => !["", "beside a reader"].contains(&mode),
            };
            let mut last = 0;
            let whole = std::fs::read(fixture.path(NAME)).unwrap();
            if starts_over {
                // The log has started over. The first transactions are in the database file only, and not in the
                // backlog. So the test can compare only the final state.
                base.clone_from(&whole);
            }
            let (first, commits) = replay(&path, &mut base, |bytes| {
                if starts_over {
                    return;
                }
                let (_, conn) = copy(&fixture, bytes);
                assert_eq!(one::<String>(&conn, "PRAGMA integrity_check(1)"), "ok", "{what}: after {last}");
                let rows: i64 = one(&conn, "SELECT max(x) FROM t");
                assert!(rows == last || rows == last + 1, "{what}: {rows} rows after {last}");
                last = rows;
            });
            assert_eq!((first > 0, first + commits), (starts_over, 24), "{what}");
            assert!(base == whole, "{what}: the backlog leads to another database");
        }
    }
}

#[test]
fn inv72_what_duralite_commits_and_reads_keeps_the_line() {
    for engine in Engine::all() {
        let (fixture, first) = begun(engine);
        let lines = records(&fixture).logs().count();
        // A connection that only reads leaves no record.
        for _ in 0..3 {
            session(&fixture, "SELECT count(*) FROM t");
            assert_eq!(records(&fixture).logs().count(), lines, "{engine:?}");
            assert!(goes_on(&fixture, first), "{engine:?}: {:?}", records(&fixture));
        }
        for statement in ["UPDATE t SET x = x + 1", "CREATE TABLE u(x)", "VACUUM"] {
            session(&fixture, statement);
            let found = records(&fixture).since(first, LineEnd::File(rest(&fixture)));
            assert!(found.is_some_and(|closed| closed[1..].iter().all(|log| log.backlog)), "{statement}");
        }
        // Stock SQLite also leaves no record if it only reads.
        let plain = stock(&fixture.path(NAME));
        let _: i64 = one(&plain, "SELECT count(*) FROM t");
        plain.close().unwrap();
        assert!(goes_on(&fixture, first), "{engine:?}");
        // A process that dies leaves its log behind, and the next process continues with this log.
        let mut killed = Actor::sql(&fixture.uri(NAME, ""));
        killed.run("INSERT INTO t VALUES(9, 9)");
        killed.kill();
        session(&fixture, "INSERT INTO t VALUES(10, 10)");
        assert!(goes_on(&fixture, first), "{engine:?}: {:?}", records(&fixture));
    }
}

/// A power loss could bring the guard back, and then nobody knows what has happened to the file since the record. So the
/// line of logs would end, although nothing has happened.
#[test]
fn inv72_the_guard_of_a_reader_is_off_the_disk_before_the_rest_is_recorded() {
    let (fixture, log) = begun(Engine::WALDIO);
    let trace = fixture.log_dir().join("trace");
    let Some(mut reader) = Actor::traced(&fixture.uri(NAME, ""), &trace) else { return };
    assert_eq!(reader.run("SELECT count(*) FROM t"), "1");
    reader.finish();
    assert!(goes_on(&fixture, log));
    let text = std::fs::read_to_string(&trace).unwrap();
    let synced = |name: &str| {
        let ends = format!("/{name}>");
        text.lines().enumerate().filter(move |(_, line)| line.contains("sync(") && line.contains(&ends))
    };
    let recorded = synced(&format!("{NAME}-archive")).last().expect("the rest is recorded").0;
    assert!(synced(NAME).any(|(at, _)| at < recorded), "{text}");
}

/// The sidecar may record a generation after the last close. So the record of the log that the power loss takes is not
/// the only one that the file has since then.
#[test]
fn inv72_a_log_without_commits_that_a_power_loss_takes_keeps_the_line() {
    for is_recorded in [false, true] {
        let (fixture, log) = begun(Engine::WALDIO);
        if is_recorded {
            ArchiveFile::enable(&identity(&fixture), "file:///archive", 2, 8).unwrap();
        }
        let mut reader = Actor::sql(&fixture.uri(NAME, ""));
        assert_eq!(reader.run("SELECT count(*) FROM t"), "1");
        reader.kill();
        assert!(fixture.is_guarded(NAME) && newest_log(&fixture) != log);
        for file in std::fs::read_dir(fixture.log_dir()).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        session(&fixture, "SELECT count(*) FROM t");
        assert!(goes_on(&fixture, log), "{is_recorded}: {:?}", records(&fixture));
        session(&fixture, "INSERT INTO t VALUES(1, 1)");
        assert!(goes_on(&fixture, log), "{is_recorded}: {:?}", records(&fixture));
    }
}

#[test]
fn inv72_what_stock_sqlite_changes_breaks_the_line() {
    let (fixture, first) = begun(Engine::under_test());
    // This transaction leaves the first page and the size unchanged, because it goes through a `-wal`.
    let plain = stock(&fixture.path(NAME));
    run(&plain, "UPDATE t SET x = 1").unwrap();
    plain.close().unwrap();
    assert!(!goes_on(&fixture, first));
    session(&fixture, "INSERT INTO t VALUES(1, 1)");
    assert!(!goes_on(&fixture, first));
    assert!(records(&fixture).logs().any(|record| matches!(record, Record::Begin { intact: false, .. })));
    // The records lead to the database's present state again, but only from this log on.
    let second = newest_log(&fixture);
    session(&fixture, "INSERT INTO t VALUES(2, 2)");
    assert!(goes_on(&fixture, second) && !goes_on(&fixture, first));
}

#[test]
fn inv72_other_journal_modes_and_copies_in_place_break_the_line() {
    let (fixture, first) = begun(Engine::under_test());
    let backup = std::fs::read(fixture.path(NAME)).unwrap();
    session(&fixture, "PRAGMA journal_mode=DELETE");
    assert!(!goes_on(&fixture, first));
    session(&fixture, "INSERT INTO t VALUES(1, 1)");
    assert!(!goes_on(&fixture, first));
    let second = newest_log(&fixture);
    session(&fixture, "INSERT INTO t VALUES(2, 2)");
    assert!(goes_on(&fixture, second));
    std::fs::write(fixture.path(NAME), &backup).unwrap();
    assert!(!goes_on(&fixture, second));
    session(&fixture, "INSERT INTO t VALUES(3, 3)");
    assert!(!goes_on(&fixture, second) && !goes_on(&fixture, first));
    let third = newest_log(&fixture);
    session(&fixture, "PRAGMA user_version=7");
    assert!(goes_on(&fixture, third));
}

#[test]
fn inv72_a_copy_does_not_write_the_file_of_the_original() {
    let (fixture, first) = begun(Engine::under_test());
    let (database, copied) = (fixture.path(NAME), fixture.path("copy.db"));
    std::fs::copy(&database, &copied).unwrap();
    std::fs::copy(path_of(&database), path_of(&copied)).unwrap();
    let before = std::fs::read(path_of(&copied)).unwrap();
    let conn = fixture.open("copy.db");
    run(&conn, "INSERT INTO t VALUES(1, 1)").unwrap();
    conn.close().unwrap();
    assert_eq!(std::fs::read(path_of(&copied)).unwrap(), before);
    assert!(goes_on(&fixture, first));
    // If a user renames the original database together with `app.db-archive`, its line of logs does not break.
    let moved = fixture.path("moved.db");
    std::fs::rename(&database, &moved).unwrap();
    std::fs::rename(path_of(&database), path_of(&moved)).unwrap();
    let conn = fixture.open("moved.db");
    run(&conn, "INSERT INTO t VALUES(1, 1)").unwrap();
    conn.close().unwrap();
    let records = ArchiveFile::look(&moved).unwrap().unwrap();
    assert!(
        records.logs().all(|record| !matches!(record, Record::Begin { intact: false, log } if *log != first))
    );
}

#[test]
fn a_database_without_an_archive_leaves_nothing_beside_it() {
    let fixture = Fixture::new();
    session(&fixture, "CREATE TABLE t(x)");
    session(&fixture, "INSERT INTO t VALUES(1)");
    let names: Vec<_> =
        std::fs::read_dir(fixture.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("archive")), "{names:?}");
}

/// A hook that acts as a disk on which no file beside the database can be written.
struct Full;

impl Hook for Full {
    fn step(&self, at: FileStep, _log: &Path) -> std::io::Result<()> {
        match at {
            FileStep::Record => Err(std::io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

#[test]
fn inv72_a_record_that_cannot_be_written_costs_the_line_and_not_the_database() {
    let (fixture, first) = begun(Engine::under_test());
    let hooked = hook(&fixture.path(""), Arc::new(Full));
    session(&fixture, "INSERT INTO t VALUES(1, 1)");
    drop(hooked);
    fixture.assert_plain(NAME);
    assert!(!goes_on(&fixture, first));
    session(&fixture, "INSERT INTO t VALUES(2, 2)");
    assert!(!goes_on(&fixture, first));
    assert_eq!(one::<i64>(&fixture.open(NAME), "SELECT count(*) FROM t"), 3);
}

/// In each round a process dies one step later while it opens the database, commits or closes. After each death, the
/// recorded line of logs must lead to the database's state.
#[test]
fn inv72_deaths_at_any_step_leave_a_line_that_is_true() {
    let (mut kept, mut died) = (0, 0);
    for step in 1.. {
        let (fixture, first) = begun(Engine::under_test());
        let mut base = std::fs::read(fixture.path(NAME)).unwrap();
        let dir = fixture.path("");
        let mut actor = Actor::start(&["stepping", &fixture.uri(NAME, ""), dir.to_str().unwrap()]);
        let answers = [format!("die {step}"), "INSERT INTO t VALUES(1, randomblob(9000))".to_owned()]
            .map(|statement| actor.run_or_end(&statement));
        let lives = answers.iter().all(|answer| answer.as_deref() == Some(""));
        let lived = lives && {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| actor.finish()));
            ended.is_ok()
        };
        died += u64::from(!lived);
        session(&fixture, "INSERT INTO t VALUES(2, 2)");
        fixture.assert_plain(NAME);
        let whole = std::fs::read(fixture.path(NAME)).unwrap();
        if let Some(closed) = records(&fixture).since(first, LineEnd::File(rest(&fixture))) {
            kept += 1;
            // A process may die after it has recorded the end of a log, but before it retires the log. Then the log may
            // receive more commits, and its backlog does not begin with the log's first commit. The archive then needs
            // a snapshot.
            let mut has_gap = false;
            for log in closed.iter().skip(1).filter(|log| log.backlog) {
                let (first, commits) = replay(&backlog_of(&fixture.path(NAME), log.log), &mut base, |_| {});
                assert_eq!(first + commits, log.position, "step {step}");
                has_gap |= first > 0;
            }
            assert!(has_gap || base[VERSIONS] == whole[VERSIONS]);
            assert!(has_gap || base == whole, "step {step}: the line leads to another database");
        }
        if lived {
            break;
        }
    }
    assert!(died > 5 && kept > died / 2, "{died} deaths, {kept} lines kept");
}
