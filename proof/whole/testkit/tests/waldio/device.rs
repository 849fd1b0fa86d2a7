//! Counts what reaches the device. The kernel's counts are exact, so this is a test and not a measurement.

use rusqlite::Connection;

use duralite_testkit::{LoopDisk, connect, integrity, one, run};

use super::{insert, number, prepare};

const COMMITS: u64 = 100;

/// Returns the number of bytes that `COMMITS` inserts write to a preallocated log. Checks that each insert
/// was one write and one flush, and that nothing else was written.
fn bytes_of_commits(disk: &LoopDisk, name: &str, settings: &str) -> u64 {
    let conn = connect(&format!("file:{}/{name}?vfs=duralite&{settings}", disk.path().display())).unwrap();
    assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
    prepare(&conn);
    grow(&conn);
    for _ in 0..20 {
        insert(&conn).unwrap();
    }
    disk.settle();
    let (before, own) = (disk.counts(), number(&conn, "device_bytes"));
    let commits = number(&conn, "commits");
    for _ in 0..COMMITS {
        insert(&conn).unwrap();
    }
    let after = disk.counts();
    assert_eq!(number(&conn, "commits") - commits, COMMITS);
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (COMMITS, COMMITS), "{name}");
    let bytes = after.written_bytes - before.written_bytes;
    assert_eq!(bytes, number(&conn, "device_bytes") - own, "{name}: something else was written");
    integrity(&conn);
    bytes
}

/// Makes the log longer than the following commits need, and lets it start over.
fn grow(conn: &Connection) {
    conn.execute_batch("CREATE TABLE grown(x); INSERT INTO grown VALUES(randomblob(1500000))").unwrap();
    run(conn, "PRAGMA wal_checkpoint(RESTART)").unwrap();
    conn.execute_batch("CREATE TABLE another(x)").unwrap();
}

#[test]
fn a_commit_is_one_write_and_one_flush_and_nothing_of_the_file_systems_journal() {
    let Some(disk) = LoopDisk::new(64) else { return };
    let delta = bytes_of_commits(&disk, "delta.db", "access=direct&device_block=512");
    // Most commits write one block. The engine logs a whole page if the page is new, or if it begins a new
    // chain of deltas for the page.
    assert!((COMMITS * 512..COMMITS * 1100).contains(&delta), "{delta}");
    let large = bytes_of_commits(&disk, "large.db", "access=direct&device_block=4096");
    assert!((COMMITS * 4096..COMMITS * 4900).contains(&large), "{large}");
    let embedded = bytes_of_commits(&disk, "embedded.db", "layout=embedded&access=direct&device_block=4096");
    assert!((COMMITS * 4096..COMMITS * 4900).contains(&embedded), "{embedded}");
}

#[test]
fn a_transaction_of_eight_pages_is_one_write_and_one_flush() {
    let Some(disk) = LoopDisk::new(64) else { return };
    for settings in ["access=direct", "access=direct&layout=embedded"] {
        let uri = format!("file:{}/e{}.db?vfs=duralite&{settings}", disk.path().display(), settings.len());
        let conn = connect(&uri).unwrap();
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
        conn.execute_batch(
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b, c, d);
             CREATE INDEX i ON t(b); CREATE INDEX j ON t(c); CREATE INDEX k ON t(d);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             INSERT INTO t SELECT i, randomblob(20), randomblob(20), randomblob(20) FROM n",
        )
        .unwrap();
        grow(&conn);
        disk.settle();
        for _ in 0..3 {
            let counted = || (number(&conn, "frames"), number(&conn, "device_writes"));
            let (before, (frames, writes)) = (disk.counts(), counted());
            let sql = "UPDATE t SET b = randomblob(20), c = randomblob(20), d = randomblob(20) WHERE a = 999";
            run(&conn, sql).unwrap();
            let after = disk.counts();
            assert!(number(&conn, "frames") - frames >= 4);
            assert_eq!((counted().1 - writes, after.flushes - before.flushes), (1, 1), "{settings}");
            // If the log has grown, its parts lie apart on the device, and one write may become two.
            assert!((1..=2).contains(&(after.writes - before.writes)), "{settings}");
        }
    }
}

/// Measures the same commits on stock SQLite while its WAL grows. This control shows that the rig also counts
/// the writes of the file system's journal.
#[test]
fn stock_wal_wakes_the_file_systems_journal() {
    let Some(disk) = LoopDisk::new(64) else { return };
    let conn = duralite_testkit::stock(&disk.path().join("stock.db"));
    conn.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL").unwrap();
    prepare(&conn);
    disk.settle();
    let before = disk.counts();
    for _ in 0..20 {
        insert(&conn).unwrap();
    }
    let bytes = disk.counts().written_bytes - before.written_bytes;
    assert!(bytes > 20 * 12_000, "only {bytes} bytes: the rig does not see the journal");
}

/// The measurements compare Duralite with stock SQLite, which must sync with `fdatasync` as the builds of
/// distributions do. With `fsync`, each commit would also write the log's new modification time to the file
/// system's journal, which takes another flush.
#[test]
fn stock_wal_is_overwritten_without_the_file_systems_journal() {
    let Some(disk) = LoopDisk::new(64) else { return };
    let conn = duralite_testkit::stock(&disk.path().join("warm.db"));
    conn.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL").unwrap();
    prepare(&conn);
    for _ in 0..60 {
        insert(&conn).unwrap();
    }
    run(&conn, "PRAGMA wal_checkpoint(RESTART)").unwrap();
    insert(&conn).unwrap();
    disk.settle();
    let before = disk.counts().flushes;
    for _ in 0..20 {
        // During this sleep the file system's clock advances, so the next insert changes the log's
        // modification time.
        std::thread::sleep(std::time::Duration::from_millis(12));
        insert(&conn).unwrap();
    }
    let flushes = disk.counts().flushes - before;
    // The kernel commits the journal by itself every five seconds.
    assert!((20..30).contains(&flushes), "{flushes} flushes of 20 commits");
}

#[test]
fn inv10_a_full_file_system_fails_the_transaction_and_loses_nothing() {
    let Some(disk) = LoopDisk::new(16) else { return };
    let conn = connect(&format!("file:{}/f.db?vfs=duralite", disk.path().display())).unwrap();
    assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
    prepare(&conn);
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    let mut rows = 1;
    let error = loop {
        match conn.execute("INSERT INTO t(b) VALUES(randomblob(60000))", []) {
            Ok(_) => rows += 1,
            Err(error) => break error,
        }
        assert!(rows < 1000, "the disk was never full");
    };
    assert_eq!(duralite_testkit::code(&error), rusqlite::ffi::SQLITE_FULL, "{error}");
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), rows);
    drop(conn);
    let conn = connect(&format!("file:{}/f.db?vfs=duralite", disk.path().display())).unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), rows);
    integrity(&conn);
}
