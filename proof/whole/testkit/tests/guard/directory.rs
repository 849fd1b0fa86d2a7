//! Tests log directories that are missing, read-only or full, and logs at their limit.

use std::fs;

use duralite_testkit::{Actor, Fixture, TinyDirectory, code, connect, integrity, one, run, stock};
use rusqlite::ffi;

use super::{abandoned, read_elsewhere, refused};

#[test]
fn inv01_an_emptied_journal_does_not_stay_beside_a_guarded_database() {
    for mode in ["TRUNCATE", "PERSIST"] {
        let fixture = Fixture::new();
        let conn = stock(&fixture.path("p.db"));
        conn.execute_batch(&format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(a); INSERT INTO t VALUES(6)"
        ))
        .unwrap();
        conn.close().unwrap();
        let journal = fixture.path("p.db-journal");
        assert!(journal.exists(), "{mode}");
        let conn = fixture.open("p.db");
        assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
        assert!(fixture.is_guarded("p.db") && !journal.exists(), "{mode}");
        conn.close().unwrap();
        fixture.assert_plain("p.db");
    }
}

/// Makes a plain database in WAL mode with one row.
fn plain(fixture: &Fixture, name: &str) {
    let conn = stock(&fixture.path(name));
    conn.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES(6)").unwrap();
    conn.close().unwrap();
}

#[test]
fn a_missing_log_directory_fails_the_open() {
    let fixture = Fixture::new();
    plain(&fixture, "p.db");
    let before = fixture.snapshot();
    let nowhere = fixture.path("nowhere");
    assert_eq!(code(&refused(&fixture.uri_with_log_dir("p.db", &nowhere, ""))), ffi::SQLITE_CANTOPEN);
    let error = refused(&fixture.uri_with_log_dir("new.db", &nowhere, ""));
    assert_eq!(code(&error), ffi::SQLITE_CANTOPEN);
    // The directory is not on a DAX file system, so Duralite cannot make the log.
    let uri = format!(
        "file:{}?vfs=duralite&nvram={}",
        fixture.path("new.db").display(),
        fixture.log_dir().display()
    );
    assert_eq!(code(&refused(&uri)), ffi::SQLITE_CANTOPEN);
    assert!(fixture.snapshot() == before, "a refused open changed something");
}

#[test]
fn inv03_a_wrong_log_directory_does_not_open_a_guarded_database() {
    let fixture = Fixture::new();
    abandoned(&fixture, "p.db");
    let other = tempfile::tempdir().unwrap();
    let before = fixture.snapshot();
    assert_eq!(code(&refused(&fixture.uri_with_log_dir("p.db", other.path(), ""))), ffi::SQLITE_CANTOPEN);
    assert!(fixture.snapshot() == before, "a refused open changed something");
    assert_eq!(read_elsewhere(&fixture.uri("p.db", "")), "6");
}

#[test]
fn a_journal_that_cannot_be_looked_at_fails_the_open_before_there_is_a_log() {
    let fixture = Fixture::new();
    plain(&fixture, "p.db");
    // The link leads to itself. SQLite concludes from such a link that there is no journal, and then fails to
    // open the journal.
    let journal = fixture.path("p.db-journal");
    std::os::unix::fs::symlink(&journal, &journal).unwrap();
    assert_eq!(code(&refused(&fixture.uri("p.db", ""))), ffi::SQLITE_IOERR_DELETE);
    assert!(fixture.logs().is_empty() && !fixture.is_guarded("p.db"));
    fs::remove_file(journal).unwrap();
    assert_eq!(one::<i64>(&connect(&fixture.uri("p.db", "")).unwrap(), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn a_read_only_log_directory_fails_the_open() {
    let Some(log_dir) = TinyDirectory::new(4096) else { return };
    let fixture = Fixture::new();
    plain(&fixture, "p.db");
    log_dir.set_read_only(true);
    let before = fixture.snapshot();
    let uri = fixture.uri_with_log_dir("p.db", log_dir.path(), "");
    assert_eq!(code(&refused(&uri)), ffi::SQLITE_CANTOPEN);
    assert!(fixture.snapshot() == before, "a refused open changed something");
    log_dir.set_read_only(false);
    assert_eq!(one::<i64>(&connect(&uri).unwrap(), "SELECT sum(a) FROM t"), 6);
}

#[test]
fn a_full_log_directory_fails_the_open() {
    let Some(log_dir) = TinyDirectory::new(64) else { return };
    let fixture = Fixture::new();
    plain(&fixture, "p.db");
    let filler = log_dir.path().join("filler");
    fs::write(&filler, vec![1; 48 << 10]).unwrap();
    let before = fixture.snapshot();
    let uri = fixture.uri_with_log_dir("p.db", log_dir.path(), "");
    let error = refused(&uri);
    assert!([ffi::SQLITE_FULL, ffi::SQLITE_CANTOPEN].contains(&(code(&error) & 0xff)), "{error}");
    assert!(fixture.snapshot() == before, "a refused open changed something");
    let left: Vec<_> =
        fs::read_dir(log_dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["filler"]);
}

#[test]
fn inv10_a_log_directory_that_runs_full_fails_the_write_and_loses_nothing() {
    let Some(log_dir) = TinyDirectory::new(3072) else { return };
    let fixture = Fixture::new();
    let uri = fixture.uri_with_log_dir("f.db", log_dir.path(), "");
    fill_up(&uri);
    // The next process finds all commits too.
    assert!(read_elsewhere(&uri).parse::<i64>().unwrap() > 0);
}

#[test]
fn inv10_a_log_at_its_limit_fails_the_write_and_loses_nothing() {
    let fixture = Fixture::new();
    fill_up(&fixture.uri("f.db", "log_limit=1m"));
    fixture.assert_plain("f.db");
}

/// Writes until the log is full. A reader keeps the log from starting over.
fn fill_up(uri: &str) {
    let conn = connect(uri).unwrap();
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    run(&conn, "PRAGMA cache_size=10").unwrap();
    run(&conn, "CREATE TABLE t(a, b)").unwrap();
    let mut reader = Actor::sql(uri);
    assert_eq!(reader.run("BEGIN"), "");
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    let mut committed = 0;
    let error = loop {
        assert!(committed < 10_000, "the log was never full");
        run(&conn, "BEGIN").unwrap();
        let wrote =
            (0..10).try_for_each(|_| run(&conn, "INSERT INTO t VALUES(1, randomblob(3000))").map(drop));
        match wrote.and_then(|()| run(&conn, "COMMIT").map(drop)) {
            Ok(()) => committed += 10,
            Err(error) => break error,
        }
    };
    assert_eq!(code(&error), ffi::SQLITE_FULL, "{error}");
    if !conn.is_autocommit() {
        run(&conn, "ROLLBACK").unwrap();
    }
    assert!(committed > 0);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), committed);
    assert_eq!(reader.run("SELECT count(*) FROM t"), "0");
    integrity(&conn);
    // Once the reader has ended its transaction, the log can start over, and writing continues.
    assert_eq!(reader.run("COMMIT"), "");
    reader.finish();
    assert_eq!(one::<i64>(&conn, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    run(&conn, "INSERT INTO t VALUES(1, randomblob(3000))").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), committed + 1);
    integrity(&conn);
    conn.close().unwrap();
}

/// A user copies the log directory while the last connection closes the database, so Duralite has already
/// retired the copied log. Then the user puts the copy back under the log's name.
#[test]
fn a_copy_of_a_log_that_has_ended_goes_with_the_next_log() {
    let fixture = Fixture::new();
    // With `scratchpad`, Duralite cannot know which pages of the region belong to the copy, so it does not
    // delete the copy (docs/limits.md).
    if fixture.engine().name() == "scratchpad" {
        return;
    }
    plain(&fixture, "p.db");
    let kept = tempfile::tempdir_in(fixture.log_dir().parent().unwrap()).unwrap();
    let conn = fixture.open("p.db");
    run(&conn, "INSERT INTO t VALUES(4)").unwrap();
    let [log] = fixture.logs().try_into().unwrap();
    let name = log.file_name().unwrap();
    fs::hard_link(&log, kept.path().join(name)).unwrap();
    conn.close().unwrap();
    fixture.assert_plain("p.db");
    fs::copy(kept.path().join(name), &log).unwrap();
    kept.close().unwrap();
    assert_eq!(fixture.logs().len(), 1);
    let conn = fixture.open("p.db");
    run(&conn, "INSERT INTO t VALUES(5)").unwrap();
    conn.close().unwrap();
    fixture.assert_plain("p.db");
    assert_eq!(fixture.logs(), [] as [std::path::PathBuf; 0]);
}
