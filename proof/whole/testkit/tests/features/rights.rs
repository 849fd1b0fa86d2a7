//! Tests users who may only read a database. Each user has a process of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use duralite_testkit::{Actor, Fixture, TinyDirectory, code, connect, one, run, skip, stock};
use rusqlite::Connection;

const NOBODY: u32 = 65534;
const COUNT: &str = "SELECT count(*) FROM t";
const LOG: &str = "SELECT group_concat(position || ':' || durable || pages) FROM duralite_log";
const SUM: &str = "SELECT count(*), sum(a), sum(length(b)) FROM t";

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Makes a closed database with ten rows that every user may read. If this user cannot become another user,
/// prints a note and returns `None`.
fn place() -> Option<Fixture> {
    if !rustix::process::geteuid().is_root() {
        skip("users who may only read", "only root can become another user");
        return None;
    }
    let fixture = Fixture::new();
    set_mode(&fixture.path(""), 0o755);
    set_mode(fixture.log_dir(), 0o755);
    let conn = stock(&fixture.path("r.db"));
    set_mode(&fixture.path("r.db"), 0o644);
    conn.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)").unwrap();
    drop(conn);
    let conn = fixture.open("r.db");
    insert(&conn, 10);
    conn.close().unwrap();
    fixture.assert_plain("r.db");
    Some(fixture)
}

fn insert(conn: &Connection, count: u32) {
    let rows = format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})");
    run(conn, &format!("{rows} INSERT INTO t(b) SELECT randomblob(100) FROM n")).unwrap();
}

/// Changes every page, one commit after another.
fn churn(conn: &Connection) {
    for turn in 0..5 {
        run(conn, &format!("UPDATE t SET b = randomblob(200 + {turn}), a = a + 1000")).unwrap();
        insert(conn, 3);
    }
}

fn checkpoint(conn: &Connection) -> i64 {
    one(conn, "PRAGMA wal_checkpoint(PASSIVE)")
}

fn reader(fixture: &Fixture) -> Actor {
    Actor::start_as(NOBODY, &fixture.path(""), &["sql", &fixture.uri("r.db", "")])
}

/// Starts a process that may write.
fn writer(fixture: &Fixture) -> Actor {
    let mut writer = Actor::sql(&fixture.uri("r.db", ""));
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(writer.run("INSERT INTO t(b) VALUES('writer')"), "");
    writer
}

fn end(fixture: &Fixture, readers: Vec<Actor>) {
    readers.into_iter().for_each(Actor::finish);
    let conn = fixture.open("r.db");
    insert(&conn, 1);
    conn.close().unwrap();
    fixture.assert_plain("r.db");
    assert!(fixture.logs().is_empty());
}

#[test]
fn inv13_who_may_only_read_reads_what_others_commit() {
    let Some(fixture) = place() else { return };
    let conn = fixture.open("r.db");
    insert(&conn, 1);
    let mut reader = reader(&fixture);
    for count in 11..20 {
        assert_eq!(reader.run(COUNT), count.to_string());
        assert_eq!(reader.run(LOG), one::<String>(&conn, LOG));
        insert(&conn, 1);
    }
    assert_eq!(checkpoint(&conn), 0);
    assert_eq!(reader.run(COUNT), "20");
    let refused = "error: attempt to write a readonly database";
    assert_eq!(reader.run("INSERT INTO t(b) VALUES(1)"), refused);
    assert_eq!(reader.run("PRAGMA wal_checkpoint(TRUNCATE)"), refused);
    assert_eq!(reader.run("PRAGMA journal_mode=DELETE").split(' ').next(), Some("error:"));
    insert(&conn, 1);
    assert_eq!(reader.run(COUNT), "21");
    reader.finish();
    assert_eq!(fixture.logs().len(), 1, "its end deletes nothing");
    conn.close().unwrap();
    end(&fixture, Vec::new());
}

#[test]
fn inv13_a_snapshot_of_who_may_only_read_is_stable_and_holds_checkpoints_off() {
    let Some(fixture) = place() else { return };
    let conn = fixture.open("r.db");
    insert(&conn, 200);
    let mut reader = reader(&fixture);
    for mark in 0..2 {
        // Before the second round a checkpoint has written all pages of the log to the database file. So the
        // reader reads only that file.
        assert!(mark == 0 || checkpoint(&conn) == 0);
        assert_eq!(reader.run("BEGIN"), "");
        let first = reader.run(SUM);
        for _ in 0..3 {
            churn(&conn);
            assert_eq!(checkpoint(&conn), 1, "busy");
            assert_eq!(run(&conn, "PRAGMA wal_checkpoint(RESTART)").unwrap().len(), 1);
            assert_eq!(reader.run(SUM), first);
        }
        assert_eq!(reader.run("COMMIT"), "");
        assert_ne!(reader.run(SUM), first);
        assert_eq!(checkpoint(&conn), 0);
    }
    reader.finish();
    conn.close().unwrap();
    fixture.assert_plain("r.db");
}

#[test]
fn inv13_who_may_only_read_reads_what_a_crash_left_and_then_what_others_make_of_it() {
    let Some(fixture) = place() else { return };
    writer(&fixture).kill();
    let (mut early, mut idle) = (reader(&fixture), reader(&fixture));
    assert_eq!((early.run(COUNT), idle.run(COUNT)), ("11".into(), "11".into()));
    // No other process is connected, so the reader has built its own index of the log.
    assert_eq!(early.run("BEGIN"), "");
    let first = early.run(SUM);
    let conn = fixture.open("r.db");
    churn(&conn);
    assert_eq!(checkpoint(&conn), 1, "busy");
    assert_eq!(early.run(SUM), first);
    assert_eq!(idle.run(COUNT), "26");
    assert_eq!(early.run("COMMIT"), "");
    assert_eq!(early.run(COUNT), "26");
    assert_eq!(checkpoint(&conn), 0);
    insert(&conn, 1);
    assert_eq!((early.run(COUNT), idle.run(COUNT)), ("27".into(), "27".into()));
    assert_eq!(early.run(LOG), one::<String>(&conn, LOG));
    conn.close().unwrap();
    end(&fixture, vec![early, idle]);
}

/// The reader does not block a connection that opens the database. So that connection may start the log over
/// while the reader is in its transaction. The reader must then see its old snapshot or get an error.
#[test]
fn inv13_a_snapshot_of_what_a_crash_left_is_whole_or_refused() {
    const ZEROS: &str = "SELECT count(*), sum(length(b)), sum(b = zeroblob(100)) FROM t";
    let Some(fixture) = place() else { return };
    let conn = fixture.open("r.db");
    insert(&conn, 500);
    conn.close().unwrap();
    let mut writer = writer(&fixture);
    assert_eq!(writer.run("UPDATE t SET b = zeroblob(100)"), "");
    writer.kill();
    let mut reader = reader(&fixture);
    assert_eq!(reader.run("PRAGMA cache_size=5"), "");
    assert_eq!(reader.run("BEGIN"), "");
    assert_eq!(reader.run("SELECT count(*) FROM t WHERE a = 1"), "1");
    let conn = fixture.open("r.db");
    for turn in 0..5 {
        run(&conn, &format!("UPDATE t SET b = randomblob(100 + {turn})")).unwrap();
        let seen = reader.run(ZEROS);
        assert!(seen == "511|51100|511" || seen.starts_with("error: database is locked"), "{seen}");
        checkpoint(&conn);
    }
    reader.run("ROLLBACK");
    assert_eq!(reader.run(ZEROS), "511|53144|0");
    assert_eq!(reader.run(LOG), one::<String>(&conn, LOG));
    conn.close().unwrap();
    end(&fixture, vec![reader]);
}

#[test]
fn inv13_a_writer_that_comes_and_dies_between_two_transactions_is_not_overlooked() {
    let Some(fixture) = place() else { return };
    writer(&fixture).kill();
    let mut reader = reader(&fixture);
    for count in 11..16 {
        assert_eq!(reader.run(COUNT), count.to_string());
        writer(&fixture).kill();
    }
    assert_eq!(reader.run(COUNT), "16");
    let mut live = writer(&fixture);
    assert_eq!(reader.run(COUNT), "17");
    live.kill();
    // By now the reader has mapped the wal-index that the other processes share. No process is using it at
    // the moment, but the reader must still notice the next writer.
    for count in 17..22 {
        assert_eq!(reader.run(COUNT), count.to_string());
        writer(&fixture).kill();
    }
    live = writer(&fixture);
    assert_eq!(live.run("PRAGMA wal_checkpoint(PASSIVE)").split('|').next(), Some("0"));
    assert_eq!(reader.run(COUNT), "23");
    live.finish();
    end(&fixture, vec![reader]);
}

#[test]
fn inv13_a_snapshot_outlives_the_writers() {
    let Some(fixture) = place() else { return };
    let first = writer(&fixture);
    let mut reader = reader(&fixture);
    assert_eq!(reader.run("BEGIN"), "");
    let seen = reader.run(SUM);
    first.kill();
    for _ in 0..3 {
        assert_eq!(reader.run(SUM), seen);
        let conn = fixture.open("r.db");
        churn(&conn);
        assert_eq!(checkpoint(&conn), 1, "busy");
        assert_eq!(reader.run(SUM), seen);
        conn.close().unwrap();
        assert_eq!(reader.run(SUM), seen);
        writer(&fixture).kill();
    }
    assert_eq!(reader.run(SUM), seen);
    assert_eq!(reader.run("COMMIT"), "");
    assert_eq!(reader.run(COUNT), (11 + 3 * 16).to_string());
    end(&fixture, vec![reader]);
}

#[test]
fn inv13_without_the_shared_memory_somebody_who_may_write_is_asked_for() {
    let Some(fixture) = place() else { return };
    writer(&fixture).kill();
    let shared: Vec<_> = fs::read_dir(fixture.log_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.as_os_str().as_encoded_bytes().ends_with(b"-shm"))
        .collect();
    assert_eq!(shared.len(), 1);
    assert_eq!(fs::metadata(&shared[0]).unwrap().permissions().mode() & 0o777, 0o644);
    fs::remove_file(&shared[0]).unwrap();
    let mut refused = reader(&fixture);
    assert!(refused.run(COUNT).starts_with("error: unable to open database file"));
    refused.finish();
    end(&fixture, Vec::new());
}

#[test]
fn inv13_who_may_not_even_read_gets_nothing() {
    let Some(fixture) = place() else { return };
    set_mode(&fixture.path("r.db"), 0o600);
    let live = writer(&fixture);
    for path in fixture.logs() {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o077, 0);
    }
    let mut refused = reader(&fixture);
    assert!(refused.run(COUNT).starts_with("error: unable to open database file"));
    live.finish();
    end(&fixture, Vec::new());
}

#[test]
fn a_log_on_a_read_only_file_system_is_read() {
    let Some(log_dir) = TinyDirectory::new(8192) else { return };
    let fixture = Fixture::new();
    let uri = fixture.uri_with_log_dir("r.db", log_dir.path(), "");
    let mut writer = Actor::sql(&uri);
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(writer.run("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)"), "");
    assert_eq!(writer.run("INSERT INTO t(b) VALUES('writer')"), "");
    writer.kill();
    log_dir.set_read_only(true);
    let conn = connect(&uri).unwrap();
    assert_eq!(one::<i64>(&conn, COUNT), 1);
    let refused = run(&conn, "INSERT INTO t(b) VALUES(2)").unwrap_err();
    assert_eq!(code(&refused) & 0xff, 8, "{refused}");
    conn.close().unwrap();
    log_dir.set_read_only(false);
    let conn = connect(&uri).unwrap();
    insert(&conn, 1);
    assert_eq!(one::<i64>(&conn, COUNT), 2);
    conn.close().unwrap();
    fixture.assert_plain("r.db");
}

/// Two processes that may only read the database check the sum of all accounts. Meanwhile writers move money,
/// and checkpoints of all kinds run.
#[test]
fn inv13_who_may_only_read_never_sees_half_of_a_state() {
    let Some(fixture) = place() else { return };
    let rounds: u64 = std::env::var("RIGHTS_ROUNDS").map_or(2, |rounds| rounds.parse().unwrap());
    let mut conn = fixture.open("r.db");
    conn.execute_batch(
        "CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, pad BLOB);
         CREATE TABLE history(id INTEGER PRIMARY KEY, who INTEGER, amount INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99)
         INSERT INTO accounts SELECT i, 1000, zeroblob(500) FROM n;",
    )
    .unwrap();
    let (uri, stop) = (fixture.uri("r.db", ""), fixture.path("stop"));
    let mut readers: Vec<Actor> = (0..2)
        .map(|_| {
            Actor::start_as(NOBODY, &fixture.path(""), &["audit", &uri, "100000", stop.to_str().unwrap()])
        })
        .collect();
    for reader in &mut readers {
        assert_eq!(reader.line(), "ready");
    }
    for round in 0..rounds {
        let writers: Vec<Actor> =
            (0..2).map(|n| Actor::start(&["transfer", &uri, &(2 * round + n).to_string(), "400"])).collect();
        for turn in 0..200 {
            let kind = ["PASSIVE", "PASSIVE", "FULL", "RESTART", "TRUNCATE"][turn % 5];
            // The checkpoint may be busy, because other processes write and read.
            drop(run(&conn, &format!("PRAGMA wal_checkpoint({kind})")));
        }
        for mut writer in writers {
            assert_eq!(writer.line(), "done");
            writer.finish();
        }
        // For a short time after this close, no process other than the readers uses the log.
        conn.close().unwrap();
        conn = fixture.open("r.db");
    }
    fs::write(&stop, "").unwrap();
    for mut reader in readers {
        assert!(reader.line().parse::<i64>().unwrap() > 0, "a reader saw nothing");
        reader.finish();
    }
    assert_eq!(one::<i64>(&conn, "SELECT sum(balance) FROM accounts"), 100_000);
    conn.close().unwrap();
    end(&fixture, Vec::new());
}

/// As with stock SQLite, a user can read a WAL even if this user cannot checkpoint it into the database.
#[test]
fn an_ordinary_wal_that_may_only_be_read_is_read() {
    for end in ["-wal", "-shm"] {
        let Some(fixture) = place() else { return };
        set_mode(&fixture.path(""), 0o777);
        let conn = stock(&fixture.path("live.db"));
        run(&conn, "PRAGMA journal_mode=WAL").unwrap();
        run(&conn, "CREATE TABLE t(a)").unwrap();
        run(&conn, "INSERT INTO t VALUES(6), (7)").unwrap();
        // Copies the files of an open database, as a crash would leave them.
        let copy = |name: &str| {
            for part in ["", "-wal", "-shm"] {
                let path = fixture.path(&format!("{name}{part}"));
                fs::copy(fixture.path(&format!("live.db{part}")), &path).unwrap();
                set_mode(&path, if part == end { 0o444 } else { 0o666 });
            }
        };
        for mode in ["normal", "exclusive"] {
            for name in ["theirs.db", "ours.db"] {
                copy(name);
            }
            let answer = |uri: &str| {
                let mut reader = Actor::start_as(NOBODY, &fixture.path(""), &["sql", uri]);
                let said = reader.run(&format!("PRAGMA locking_mode={mode}"));
                [said, reader.run("SELECT sum(a) FROM t"), reader.run("INSERT INTO t VALUES(8)")]
            };
            let theirs = answer(&format!("file:{}?vfs=unix", fixture.path("theirs.db").display()));
            assert!(end == "-shm" || theirs[1] == "13", "{mode}: stock does not read it either");
            assert_eq!(answer(&fixture.uri("ours.db", "")), theirs, "{end} {mode}");
            assert!(!fixture.is_guarded("ours.db"));
        }
    }
}

/// In a directory with the sticky bit, a user may delete and rename only files of its own. So the last user of a
/// database may be unable to delete the log, which another user has made.
#[test]
fn who_may_not_delete_the_log_of_another_user_makes_a_log_of_its_own() {
    const OWNER: u32 = NOBODY - 1;
    if !rustix::process::geteuid().is_root() {
        skip("several users in one directory", "only root can become another user");
        return;
    }
    let fixture = Fixture::new();
    set_mode(&fixture.path(""), 0o1777);
    // A log that is beside its database has a name that the next log wants too.
    let uri = format!("file:{}?vfs=duralite&journal=waldio", fixture.path("r.db").display());
    let user = |user| Actor::start_as(user, &fixture.path(""), &["sql", &uri]);
    let mut owner = user(OWNER);
    assert_eq!(owner.run("PRAGMA journal_mode=WAL"), "wal");
    owner.run("CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    set_mode(&fixture.path("r.db"), 0o666);
    owner.finish();
    for round in 0..3 {
        let mut owner = user(OWNER);
        assert_eq!(owner.run("INSERT INTO t(b) VALUES('owner')"), "");
        let mut other = user(NOBODY);
        assert_eq!(other.run("INSERT INTO t(b) VALUES('other')"), "");
        owner.finish();
        other.finish();
        for _ in 0..2 {
            let mut other = user(NOBODY);
            assert_eq!(other.run("INSERT INTO t(b) VALUES('again')"), "", "round {round}");
            other.finish();
        }
        assert_eq!(one::<i64>(&stock(&fixture.path("r.db")), COUNT), 4 * (round + 1));
    }
    let mut owner = user(OWNER);
    assert_eq!(owner.run(COUNT), "12");
    owner.finish();
}
