//! Space that the log gives back, as SQLite's own does.

use std::os::unix::fs::MetadataExt;

use duralite_testkit::{Engine, Fixture, TinyDirectory, code, connect, one, run};
use rusqlite::{Connection, ffi};

use crate::{content, fill, status_of};

const ROOMY: &str = "PRAGMA wal_autocheckpoint=0";

/// Bytes that the file takes of the disk.
fn space(fixture: &Fixture) -> u64 {
    std::fs::metadata(fixture.log()).unwrap().blocks() * 512
}

/// Fills the log with some mebibytes.
fn grow(conn: &Connection) {
    for _ in 0..4 {
        run(conn, "UPDATE t SET b = randomblob(1 << 20) WHERE a <= 3").unwrap();
    }
}

/// The logs of `ppl` keep the room that their sectors had: it is a part of the memory that was set aside for them.
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
        let full = space(&fixture);
        assert!(full > 8 << 20, "{full}");
        assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
        assert!(!shrinks() || space(&fixture) <= full / 2, "{} of {full} bytes", space(&fixture));
        assert_eq!(status_of(&conn)["log_frames"], "0");
        assert_eq!(content(&other), content(&conn));
        run(&other, "UPDATE t SET b = 'x' WHERE a = 9").unwrap();
        assert_eq!(content(&other), content(&conn));
    }
    assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
}

#[test]
fn journal_size_limit_is_kept_when_the_log_starts_over() {
    // Given before the log is there, and while it is in use.
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
        let full = space(&fixture);
        assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(RESTART)"), 0);
        assert!(space(&fixture) >= full, "nothing is cut before it starts over");
        run(&conn, "UPDATE t SET b = 'x' WHERE a = 9").unwrap();
        let kept = space(&fixture);
        assert!(!shrinks() || kept <= full / 2, "{kept} of {full} bytes");
        run(&conn, "PRAGMA journal_size_limit=-1").unwrap();
        grow(&conn);
        run(&conn, "PRAGMA wal_checkpoint(RESTART)").unwrap();
        run(&conn, "UPDATE t SET b = 'y' WHERE a = 9").unwrap();
        assert!(!shrinks() || space(&fixture) > kept);
        assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
    }
}

/// The wal-index grows by a region of 4096 frames at a time. Where there is no room for the next one, the commit that
/// needs it has failed, and stays so.
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
