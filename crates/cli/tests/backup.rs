//! `duralite backup` of three kinds of databases: those that programs write to, those that a crash has left, and those
//! that no process uses.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use duralite_testkit::{Actor, Engine, Fixture, one, stock};

/// Runs the command with the fixture's settings. Returns whether it succeeds, and its output.
fn backup(fixture: &Fixture, out: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.arg("backup");
    for setting in fixture.engine().settings(fixture.log_dir()).split('&') {
        command.args(["--set", setting]);
    }
    let output = command.arg(fixture.path("b.db")).arg(out).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Checks that the copy is one ordinary file that stock SQLite reads, and that its header has these versions (write
/// version and read version).
fn assert_ordinary(out: &Path, versions: [u8; 2]) {
    let bytes = std::fs::read(out).unwrap();
    assert_eq!(bytes[18..20], versions);
    assert_eq!(bytes[72..92], [0; 20]);
    let conn = stock(out);
    assert_eq!(one::<String>(&conn, "PRAGMA integrity_check"), "ok");
}

fn temporary_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains("duralite-backup")).count()
}

/// The largest number of commits that the writer makes while one backup reads.
const ROUND: u64 = 2000;

/// Each transaction adds a row to both tables. So both tables have equally many rows in a backup, if the backup shows
/// the database at one moment. A backup must also have every commit that was acknowledged before the backup began.
///
/// The writer sets a busy timeout, because a reader may hold WRITE for a moment: if a reader finds the header of the
/// wal-index half changed, it takes WRITE and reads the header again, as stock SQLite does. The writer makes at most
/// [`ROUND`] commits while a backup reads. Otherwise a log that cannot grow could become full during a slow backup,
/// because the log cannot start again from its beginning while the backup reads.
#[test]
fn a_backup_beside_a_writer_is_of_one_moment_and_has_every_acknowledged_commit() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let conn = fixture.open("b.db");
        conn.busy_timeout(Duration::from_secs(600)).unwrap();
        conn.execute_batch("PRAGMA wal_autocheckpoint=50; CREATE TABLE t(a, b); CREATE TABLE u(a)").unwrap();
        let (stop, commits, most) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (stop, commits, most) = (&stop, &commits, &most);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if commits.load(Ordering::Relaxed) >= most.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    let sql =
                        "BEGIN; INSERT INTO t VALUES(1, randomblob(3000)); INSERT INTO u VALUES(1); COMMIT";
                    conn.execute_batch(sql).unwrap();
                    commits.fetch_add(1, Ordering::SeqCst);
                }
            });
            for round in 0..5 {
                let out = fixture.path(&format!("out{round}.db"));
                let before = commits.load(Ordering::SeqCst);
                most.store(before + ROUND, Ordering::Relaxed);
                let (done, said) = backup(&fixture, &out);
                let after = commits.load(Ordering::SeqCst) + 1;
                stop.store(!done || round == 4, Ordering::Relaxed);
                assert!(done, "{engine:?}: {said}");
                assert_ordinary(&out, [2, 2]);
                let copy = stock(&out);
                let rows: u64 = one::<i64>(&copy, "SELECT count(*) FROM t").unsigned_abs();
                assert_eq!(rows, one::<i64>(&copy, "SELECT count(*) FROM u").unsigned_abs());
                assert!((before..=after).contains(&rows), "{engine:?}: {before} {rows} {after}");
            }
        });
    }
}

#[test]
fn a_backup_of_what_a_crash_has_left_has_every_commit_and_replaces_nothing() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let mut writer = Actor::sql(&fixture.uri("b.db", ""));
        assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
        assert_eq!(writer.run("CREATE TABLE t(a)"), "");
        assert_eq!(writer.run("INSERT INTO t VALUES(1), (2), (3)"), "");
        writer.kill();
        let out = fixture.path("out.db");
        let (done, said) = backup(&fixture, &out);
        assert!(done && said.contains("out.db is one ordinary SQLite file of 2 pages"), "{engine:?}: {said}");
        assert_ordinary(&out, [2, 2]);
        assert_eq!(one::<i64>(&stock(&out), "SELECT sum(a) FROM t"), 6);
        let before = std::fs::read(&out).unwrap();
        let (done, said) = backup(&fixture, &out);
        assert!(!done && said.contains("exists already and was not changed"), "{said}");
        assert_eq!(std::fs::read(&out).unwrap(), before);
        assert_eq!(temporary_files(out.parent().unwrap()), 0);
    }
}

/// The database has no guard. The test tries rollback mode and WAL mode, each with and without a program that has the
/// database open without Duralite.
#[test]
fn a_backup_of_a_plain_database_has_its_mode() {
    for (mode, versions) in [("delete", [1, 1]), ("wal", [2, 2])] {
        for is_open in [false, true] {
            let fixture = Fixture::on(Engine::WALDIO);
            let conn = stock(&fixture.path("b.db"));
            assert_eq!(one::<String>(&conn, &format!("PRAGMA journal_mode={mode}")), mode);
            conn.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(7)").unwrap();
            let conn = Some(conn).filter(|_| is_open);
            let out = fixture.path("out.db");
            let (done, said) = backup(&fixture, &out);
            assert!(done, "{mode} {is_open}: {said}");
            assert_ordinary(&out, versions);
            assert_eq!(one::<i64>(&stock(&out), "SELECT a FROM t"), 7);
            drop(conn);
        }
    }
}

#[test]
fn what_is_no_database_is_not_backed_up() {
    let fixture = Fixture::on(Engine::WALDIO);
    let out = fixture.path("out.db");
    let (done, said) = backup(&fixture, &out);
    assert!(!done && said.contains("b.db"), "{said}");
    std::fs::write(fixture.path("b.db"), "no database, but long enough to be read as one. ".repeat(40))
        .unwrap();
    let (done, said) = backup(&fixture, &out);
    assert!(!done && said.contains("not a SQLite database"), "{said}");
    assert!(!out.exists());
    assert_eq!(temporary_files(out.parent().unwrap()), 0);
}
