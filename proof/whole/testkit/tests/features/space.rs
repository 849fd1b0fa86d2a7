//! Tests that the log gives space back, as SQLite's own WAL does.

use std::os::unix::fs::MetadataExt;

use duralite_testkit::{Engine, Fixture, TinyDirectory, code, connect, one, run};
use rusqlite::{Connection, ffi};

use super::{content, fill, status_of};

const ROOMY: &str = "PRAGMA wal_autocheckpoint=0";

/// Returns the number of bytes that the log occupies on disk, or in the region that logs share.
pub(super) fn space(fixture: &Fixture, conn: &Connection) -> u64 {
    if Engine::under_test() == Engine::SCRATCHPAD {
        return status_of(conn)["region_bytes_used"].parse().unwrap();
    }
    std::fs::metadata(fixture.log()).unwrap().blocks() * 512
}

/// Fills the log with some mebibytes.
fn grow(conn: &Connection) {
    for _ in 0..4 {
        run(conn, "UPDATE t SET b = randomblob(1 << 20) WHERE a <= 3").unwrap();
    }
}

/// Returns whether this engine's logs can shrink to less than a few MiB. A log of `ppl` always keeps its
/// usual size, which is part of the memory reserved for logs.
fn shrinks() -> bool {
    Engine::under_test() != Engine::PPL
}

#[test]
fn a_truncating_checkpoint_gives_the_space_of_the_log_back() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    run(&conn, ROOMY).unwrap();
    fill(&conn, 10);
    let other = fixture.open("s.db");
    for _ in 0..2 {
        grow(&conn);
        assert_eq!(content(&other), content(&conn));
        let full = space(&fixture, &conn);
        assert!(full > 8 << 20, "{full}");
        assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
        assert!(
            !shrinks() || space(&fixture, &conn) <= full / 2,
            "{} of {full} bytes",
            space(&fixture, &conn)
        );
        assert_eq!(status_of(&conn)["log_frames"], "0");
        assert_eq!(content(&other), content(&conn));
        run(&other, "UPDATE t SET b = 'x' WHERE a = 9").unwrap();
        assert_eq!(content(&other), content(&conn));
    }
    assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
}

#[test]
fn journal_size_limit_is_kept_when_the_log_starts_over() {
    // The first round sets the limit before the log exists, and the second while the log is in use.
    for first in [true, false] {
        let fixture = Fixture::new();
        let conn = fixture.open("s.db");
        run(&conn, ROOMY).unwrap();
        let limit = || assert_eq!(one::<i64>(&conn, "PRAGMA journal_size_limit=2097152"), 2 << 20);
        if first {
            limit();
        }
        fill(&conn, 10);
        if !first {
            limit();
        }
        grow(&conn);
        let full = space(&fixture, &conn);
        assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(RESTART)"), 0);
        assert!(space(&fixture, &conn) >= full, "nothing is cut before it starts over");
        run(&conn, "UPDATE t SET b = 'x' WHERE a = 9").unwrap();
        let kept = space(&fixture, &conn);
        assert!(!shrinks() || kept <= full / 2, "{kept} of {full} bytes");
        run(&conn, "PRAGMA journal_size_limit=-1").unwrap();
        grow(&conn);
        run(&conn, "PRAGMA wal_checkpoint(RESTART)").unwrap();
        run(&conn, "UPDATE t SET b = 'y' WHERE a = 9").unwrap();
        // The limit applies to the size of a log file. A log of `scratchpad` lies in a region, and gives its
        // space back whatever the limit is.
        let keeps = Engine::under_test() != Engine::SCRATCHPAD;
        assert!(!shrinks() || !keeps || space(&fixture, &conn) > kept);
        assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
    }
}

/// The wal-index grows by a region of 4096 frames at a time. If there is no space for the next region, the
/// commit that needs it fails, and must not appear later.
#[test]
fn inv10_a_commit_without_room_in_the_wal_index_has_failed() {
    let Some(log_dir) = TinyDirectory::new(64 << 10) else { return };
    let fixture = Fixture::new();
    let conn = connect(&fixture.uri_with_log_dir("f.db", log_dir.path(), "")).unwrap();
    for sql in ["PRAGMA journal_mode=WAL", ROOMY, "CREATE TABLE t(a INTEGER PRIMARY KEY)"] {
        run(&conn, sql).unwrap();
    }
    let mut rows = 0;
    let mut insert = || {
        let inserted = run(&conn, &format!("INSERT INTO t VALUES({})", rows + 1));
        rows += i64::from(inserted.is_ok());
        inserted
    };
    let frames = || status_of(&conn)["log_frames"].parse::<u32>().unwrap();
    while frames() < 4058 {
        insert().unwrap();
    }
    let filler = log_dir.path().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let failed = (0..20).find_map(|_| insert().err()).expect("there is no room for more");
    assert_eq!(code(&failed), ffi::SQLITE_FULL);
    assert!(frames() >= 4061, "the log was full before the wal-index: {} frames", frames());
    std::fs::remove_file(filler).unwrap();
    drop(file);
    let found = |conn: &Connection| one::<i64>(conn, "SELECT count(*) FROM t");
    assert_eq!(found(&connect(&fixture.uri_with_log_dir("f.db", log_dir.path(), "")).unwrap()), rows);
    drop(conn);
    assert_eq!(found(&connect(&fixture.uri_with_log_dir("f.db", log_dir.path(), "")).unwrap()), rows);
}

const LIMIT: u64 = 4 << 20;

fn limited(fixture: &Fixture, checkpoint: u32) -> Connection {
    let conn = fixture.open_with("l.db", &format!("log_limit={LIMIT}"));
    conn.execute_batch(&format!(
        "PRAGMA wal_autocheckpoint={checkpoint}; CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b BLOB)"
    ))
    .unwrap();
    conn
}

/// Inserts one more row of this many bytes.
fn insert(conn: &Connection, bytes: u64) -> Result<(), i32> {
    run(conn, &format!("INSERT INTO t(b) VALUES(randomblob({bytes}))"))
        .map(drop)
        .map_err(|error| code(&error))
}

/// Returns how often this process has been refused for want of room.
fn room(conn: &Connection, name: &str) -> u64 {
    status_of(conn)[name].parse().unwrap()
}

fn rows(conn: &Connection) -> u64 {
    one::<i64>(conn, "SELECT count(*) FROM t WHERE length(b) > 0").unsigned_abs()
}

/// The test runs with SQLite's automatic checkpoints, and without them.
#[test]
fn inv10_a_log_with_a_limit_never_fills_up_where_nobody_reads() {
    for checkpoint in [0, 1000] {
        let fixture = Fixture::new();
        let conn = limited(&fixture, checkpoint);
        let idle = limited(&fixture, checkpoint);
        let count = 10 * LIMIT / 60_000 + 1;
        for n in 0..count {
            assert_eq!(insert(&conn, 60_000), Ok(()), "row {n}, wal_autocheckpoint={checkpoint}");
        }
        assert!(space(&fixture, &conn) <= LIMIT + LIMIT / 2, "{} bytes", space(&fixture, &conn));
        assert_eq!((rows(&conn), rows(&idle)), (count, count));
        assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
        drop((conn, idle));
        fixture.assert_plain("l.db");
    }
}

/// The writers commit faster than the log can start over. If a writer finds the log nearly full, it begins
/// its transaction again after the log has started over.
#[test]
fn inv10_many_writers_share_a_small_log() {
    const WRITERS: u64 = 16;
    const ROWS: u64 = 400;
    let fixture = Fixture::new();
    let setting = format!("log_limit={}", LIMIT / 4);
    let conn = fixture.open_with("l.db", &setting);
    conn.execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)").unwrap();
    let refused: u64 = std::thread::scope(|scope| {
        let write = || {
            let conn = fixture.open_with("l.db", &setting);
            conn.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
            (0..ROWS)
                .filter_map(|_| insert(&conn, 1000).err())
                .inspect(|code| assert_eq!(*code, ffi::SQLITE_FULL))
                .count()
        };
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(write)).collect();
        writers.into_iter().map(|writer| writer.join().unwrap() as u64).sum()
    });
    assert!(refused <= WRITERS * ROWS / 100, "{refused} of {} found no room", WRITERS * ROWS);
    assert_eq!(room(&conn, "room_full"), refused);
    assert!(room(&conn, "room_busy") > 0, "nobody had to wait");
    assert_eq!(rows(&conn), WRITERS * ROWS - refused);
    assert!(space(&fixture, &conn) <= LIMIT / 2, "{} bytes", space(&fixture, &conn));
}

/// While so many connections commit, there is hardly a moment at which nobody reads the log, and hardly one at which
/// nobody checkpoints it. So attempts to start the log over are often in vain. None of them may raise the size at which
/// the next attempt is due.
#[test]
fn inv10_the_log_of_a_crowd_keeps_its_size() {
    const WRITERS: u32 = 16;
    const COMMITS: u32 = 2500;
    // A log counts as outgrown from 1000 frames on. Allow the commits of many attempts beyond that.
    const MOST_FRAMES: u32 = 4000;
    let fixture = Fixture::on(Engine::WALDIO);
    let open = || {
        let conn = fixture.open("c.db");
        conn.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        run(&conn, "PRAGMA wal_autocheckpoint=100").unwrap();
        conn
    };
    let conn = open();
    conn.execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)").unwrap();
    let write = || {
        let conn = open();
        let insert_and_look = |number: u32| {
            insert(&conn, 10).unwrap();
            if number.is_multiple_of(20) { status_of(&conn)["log_frames"].parse().unwrap() } else { 0 }
        };
        (0..COMMITS).map(insert_and_look).max()
    };
    let most: Option<u32> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(write)).collect();
        writers.into_iter().filter_map(|writer| writer.join().unwrap()).max()
    });
    assert!(most.is_some_and(|most| most <= MOST_FRAMES), "{most:?} frames");
    assert_eq!(rows(&conn), u64::from(WRITERS * COMMITS));
}

#[test]
fn inv10_a_reader_that_stays_makes_a_log_full_and_nothing_is_lost() {
    let fixture = Fixture::new();
    let conn = limited(&fixture, 0);
    insert(&conn, 60_000).unwrap();
    let reader = limited(&fixture, 0);
    run(&reader, "BEGIN").unwrap();
    assert_eq!(rows(&reader), 1);
    let mut count = 1;
    let refused = loop {
        match insert(&conn, 60_000) {
            Ok(()) => count += 1,
            Err(code) => break code,
        }
        assert!(count < 10 * LIMIT / 60_000, "the reader does not pin the log");
    };
    assert_eq!(refused, ffi::SQLITE_FULL);
    assert_eq!(insert(&conn, 60_000), Err(ffi::SQLITE_FULL), "the reader is still there");
    assert_eq!(room(&conn, "room_full"), 2);
    assert_eq!((rows(&conn), rows(&reader)), (count, 1));
    run(&reader, "COMMIT").unwrap();
    for n in 0..100 {
        assert_eq!(insert(&conn, 60_000), Ok(()), "row {n} after the reader");
    }
    assert_eq!((rows(&conn), rows(&reader)), (count + 100, count + 100));
    assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
    drop((conn, reader));
    fixture.assert_plain("l.db");
}

/// The log may refuse the transaction, because the log still holds earlier commits. When the test tries the
/// transaction again, the log has started over and has space.
#[test]
fn inv10_a_transaction_that_is_larger_than_what_is_left_finds_room_when_it_is_tried_again() {
    let fixture = Fixture::new();
    let conn = limited(&fixture, 0);
    for _ in 0..4 {
        for _ in 0..4 {
            insert(&conn, LIMIT / 10).unwrap();
        }
        let large = || insert(&conn, LIMIT * 5 / 8);
        assert_eq!(large().or_else(|_| large()), Ok(()));
    }
    assert_eq!(rows(&conn), 20);
    assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
}

/// In exclusive locking mode no other connection can make a checkpoint. So SQLite's own automatic
/// checkpoints, which depend on the number of frames, must make room.
#[test]
fn inv10_in_exclusive_locking_mode_sqlite_checkpoints() {
    let fixture = Fixture::new();
    let conn = limited(&fixture, 0);
    run(&conn, "PRAGMA locking_mode=EXCLUSIVE").unwrap();
    let refused = (0..10 * LIMIT / 60_000).find_map(|_| insert(&conn, 60_000).err());
    assert_eq!(refused, Some(ffi::SQLITE_FULL), "nobody checkpoints");
    run(&conn, "PRAGMA wal_checkpoint").unwrap();
    run(&conn, "PRAGMA wal_autocheckpoint=100").unwrap();
    for n in 0..10 * LIMIT / 60_000 {
        assert_eq!(insert(&conn, 60_000), Ok(()), "row {n}");
    }
    assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
}
