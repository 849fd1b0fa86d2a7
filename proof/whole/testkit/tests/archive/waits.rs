//! Tests `replicated=on`. A commit returns only after the sidecar has acknowledged it (invariant 70).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Ended, Fixture, fork};
use duralite_wal::engine::media::MediaSet;
use duralite_wal::{EngineOptions, FollowedTransaction, Follower, LogPlacement};

const NAME: &str = "app.db";
/// The settings with a timeout that is longer than any passing test takes.
const FOR_EVER: &str = "replicated=on&replicated_timeout=600000";

fn follow(fixture: &Fixture) -> Follower {
    let logs = LogPlacement::at(fixture.engine().descriptor(), fixture.log_dir(), &MediaSet::default());
    Follower::open(&logs, &EngineOptions::default(), &fixture.path(NAME)).unwrap()
}

/// Starts a process with a connection in WAL mode.
fn connection(fixture: &Fixture, settings: &str) -> Actor {
    let mut actor = Actor::sql(&fixture.uri(NAME, settings));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("PRAGMA busy_timeout=600000"), "600000");
    actor
}

/// Makes a database with a table. Returns a connection that keeps the database open. Also returns a follower
/// that acts as a sidecar whose archive has all commits.
fn begun() -> (Fixture, Actor, Follower) {
    let fixture = Fixture::new();
    let mut first = connection(&fixture, "");
    first.run("CREATE TABLE t(x)");
    let mut follower = follow(&fixture);
    let position = follower.newest().unwrap();
    follower.announce_sidecar(position, 0).unwrap();
    (fixture, first, follower)
}

/// Runs a statement on another thread. Returns the channel on which the answer arrives, together with the
/// actor.
fn begin(mut actor: Actor, statement: &str) -> Receiver<(Actor, String)> {
    let (told, answer) = channel();
    actor.tell(statement);
    std::thread::spawn(move || {
        let line = actor.line();
        let _ = told.send((actor, line));
    });
    answer
}

/// Waits until there are `count` transactions after a position, and returns them.
fn read(follower: &mut Follower, from: u64, count: usize) -> Vec<FollowedTransaction> {
    let (mut found, mut position): (Vec<FollowedTransaction>, u64) = (Vec::new(), from);
    while found.len() < count {
        assert!(follower.wait(position, Duration::from_secs(600)).unwrap(), "{} came", found.len());
        let transaction = follower.read_since(position).unwrap().unwrap();
        position = transaction.position;
        found.push(transaction);
    }
    found
}

/// Returns the value in a line of `PRAGMA duralite`.
fn status(actor: &mut Actor, name: &str) -> String {
    actor.run(&format!("SELECT value FROM duralite WHERE name = '{name}'"))
}

fn reason(actor: &mut Actor) -> String {
    actor.run("SELECT duralite_last_error()")
}

#[test]
fn inv70_a_commit_returns_once_the_sidecar_has_acknowledged_it() {
    let (fixture, mut first, mut follower) = begun();
    let writer = connection(&fixture, FOR_EVER);
    let from = follower.newest().unwrap();
    let answer = begin(writer, "INSERT INTO t VALUES(1)");
    let transaction = read(&mut follower, from, 1).pop().unwrap();
    // Other connections already see the commit, but `COMMIT` has not returned.
    assert_eq!(first.run("SELECT count(*) FROM t"), "1");
    assert_eq!(status(&mut first, "archive_lag_transactions"), "1");
    assert_ne!(status(&mut first, "archive_lag_bytes"), "0");
    assert_eq!(status(&mut first, "archive"), "sidecar runs");
    assert!(answer.recv_timeout(Duration::from_millis(200)).is_err(), "nobody has acknowledged it");
    // An acknowledgement of the position before this transaction does not count.
    follower.set_replicated(transaction.position - 1, 0).unwrap();
    assert!(answer.recv_timeout(Duration::from_millis(200)).is_err(), "another one was acknowledged");
    follower.set_replicated(transaction.position, transaction.time_ms).unwrap();
    let (mut writer, line) = answer.recv().unwrap();
    assert_eq!(line, "");
    assert_eq!(status(&mut first, "archive_lag_transactions"), "0");
    assert_eq!(status(&mut first, "archive_position"), transaction.position.to_string());
    // If the sidecar has already acknowledged the position of a commit, the commit does not wait.
    follower.set_replicated(transaction.position + 1, 0).unwrap();
    assert_eq!(writer.run("INSERT INTO t VALUES(2)"), "");
    drop(follower);
    assert_eq!(status(&mut first, "archive"), "no sidecar");
    writer.finish();
    first.finish();
    fixture.assert_plain(NAME);
}

#[test]
fn inv70_one_acknowledgement_is_enough_for_all_that_wait() {
    let (fixture, mut first, mut follower) = begun();
    let from = follower.newest().unwrap();
    let answers: Vec<_> = (0..16)
        .map(|number| begin(connection(&fixture, FOR_EVER), &format!("INSERT INTO t VALUES({number})")))
        .collect();
    let newest = read(&mut follower, from, 16).pop().unwrap();
    assert!(answers.iter().all(|answer| answer.try_recv().is_err()), "nothing was acknowledged");
    follower.set_replicated(newest.position, newest.time_ms).unwrap();
    for answer in answers {
        assert_eq!(answer.recv().unwrap().1, "");
    }
    assert_eq!(first.run("SELECT count(*) FROM t"), "16");
}

#[test]
fn inv70_a_commit_that_is_not_archived_in_time_fails_and_is_there() {
    let (fixture, mut first, mut follower) = begun();
    let position = follower.newest().unwrap();
    let mut writer = connection(&fixture, "replicated=on&replicated_timeout=100");
    let started = Instant::now();
    assert!(writer.run("INSERT INTO t VALUES(1)").starts_with("error: disk I/O error"));
    assert!(started.elapsed() >= Duration::from_millis(100));
    let why = reason(&mut writer);
    assert!(why.starts_with("committed here, not in the archive: the sidecar of "), "{why}");
    assert!(why.contains("within 100 ms (replicated_timeout)"), "{why}");
    // The transaction is committed, and the connection can continue.
    assert_eq!(writer.run("SELECT x FROM t"), "1");
    assert_eq!(first.run("SELECT x FROM t"), "1");
    follower.set_replicated(position + 2, 0).unwrap();
    assert_eq!(writer.run("INSERT INTO t VALUES(2)"), "");
    // Without a sidecar, a commit fails with a reason.
    drop(follower);
    assert!(writer.run("INSERT INTO t VALUES(3)").starts_with("error"));
    let why = reason(&mut writer);
    assert!(why.contains("no sidecar runs for "), "{why}");
    // A connection may switch the setting.
    assert_eq!(writer.run("PRAGMA duralite_replicated=off"), "off");
    assert_eq!(status(&mut writer, "replicated"), "off");
    assert_eq!(writer.run("INSERT INTO t VALUES(4)"), "");
    assert_eq!(writer.run("PRAGMA duralite_replicated=on"), "on");
    assert_eq!(writer.run("PRAGMA duralite_replicated_timeout=1"), "1");
    assert!(writer.run("INSERT INTO t VALUES(5)").starts_with("error"));
    assert_eq!(first.run("SELECT count(*) FROM t"), "5");
    writer.finish();
    first.finish();
    fixture.assert_plain(NAME);
}

#[test]
fn inv70_the_death_of_the_sidecar_is_noticed_and_another_one_goes_on() {
    let (fixture, mut first, follower) = begun();
    drop(follower);
    let (log_dir, database) = (fixture.log_dir().to_str().unwrap(), fixture.path(NAME));
    let mut sidecar = Actor::start(&["follow", fixture.engine().name(), log_dir, database.to_str().unwrap()]);
    assert_eq!(sidecar.line(), "pinned");
    sidecar.tell("announce");
    let from: u64 = sidecar.line().parse().unwrap();
    assert_eq!(status(&mut first, "archive"), "sidecar runs");
    let mut writer = connection(&fixture, "replicated=on&replicated_timeout=100");
    let answer = begin(connection(&fixture, FOR_EVER), "INSERT INTO t VALUES(1)");
    sidecar.kill();
    assert_eq!(status(&mut first, "archive"), "sidecar died");
    assert!(writer.run("INSERT INTO t VALUES(2)").starts_with("error"));
    let why = reason(&mut writer);
    assert!(why.starts_with("committed here, not in the archive: the sidecar of "), "{why}");
    assert!(why.contains("has died"), "{why}");
    // The first commit still waits. Another sidecar archives it.
    let mut follower = follow(&fixture);
    follower.announce_sidecar(from, 0).unwrap();
    let newest = read(&mut follower, from, 2).pop().unwrap();
    assert!(answer.try_recv().is_err(), "nobody has acknowledged it");
    follower.set_replicated(newest.position, newest.time_ms).unwrap();
    assert_eq!(answer.recv().unwrap().1, "");
}

#[test]
fn inv70_once_another_primary_has_taken_over_every_commit_fails_at_once() {
    let (fixture, mut first, mut follower) = begun();
    let from = follower.newest().unwrap();
    let answer = begin(connection(&fixture, FOR_EVER), "INSERT INTO t VALUES(1)");
    read(&mut follower, from, 1);
    follower.set_fenced().unwrap();
    let (mut writer, line) = answer.recv().unwrap();
    assert!(line.starts_with("error"), "{line}");
    for _ in 0..2 {
        let why = reason(&mut writer);
        assert!(why.starts_with("committed here, not in the archive: another primary has taken"), "{why}");
        // Later commits fail too.
        assert!(writer.run("INSERT INTO t VALUES(2)").starts_with("error"));
        if status(&mut first, "archive") == "fenced" {
            follower.set_replicated(from, 0).unwrap();
        }
    }
    drop(follower);
    assert_eq!(status(&mut first, "archive"), "fenced");
    assert!(writer.run("INSERT INTO t VALUES(3)").starts_with("error"));
    assert_eq!(first.run("SELECT count(*) FROM t"), "4");
}

#[test]
fn inv71_with_read_durable_nobody_reads_what_is_not_archived() {
    let (fixture, mut first, mut follower) = begun();
    let from = follower.newest().unwrap();
    let mut impatient = connection(&fixture, "replicated=on&replicated_timeout=50&read_durable=on");
    assert_eq!(impatient.run("SELECT count(*) FROM t"), "0");
    let committing = begin(connection(&fixture, FOR_EVER), "INSERT INTO t VALUES(1)");
    let transaction = read(&mut follower, from, 1).pop().unwrap();
    let reader = connection_that_waits(&fixture);
    let reading = begin(reader, "SELECT count(*) FROM t");
    assert!(impatient.run("SELECT count(*) FROM t").starts_with("error"));
    let why = reason(&mut impatient);
    assert!(
        why.starts_with("what this transaction would read is committed here, not in the archive: "),
        "{why}"
    );
    assert_eq!(first.run("SELECT count(*) FROM t"), "1");
    assert!(reading.recv_timeout(Duration::from_millis(200)).is_err(), "it was read");
    follower.set_replicated(transaction.position, transaction.time_ms).unwrap();
    assert_eq!(reading.recv().unwrap().1, "1");
    assert_eq!(committing.recv().unwrap().1, "");
    assert_eq!(impatient.run("SELECT count(*) FROM t"), "1");
    // The checkpoint writes all pages of the log to the database file, and the log starts over.
    let busy = first.run("PRAGMA wal_checkpoint(TRUNCATE)");
    assert_eq!(busy, "0|0|0");
    assert_eq!(impatient.run("SELECT count(*) FROM t"), "1");
}

/// Starts a process with a connection that waits for the archive, and that reads only archived commits. The
/// database must be in WAL mode already.
fn connection_that_waits(fixture: &Fixture) -> Actor {
    Actor::sql(&fixture.uri(NAME, &format!("{FOR_EVER}&read_durable=on")))
}

#[test]
fn inv70_concurrent_transactions_wait_too() {
    let (fixture, mut first, mut follower) = begun();
    first.run("CREATE TABLE u(x)");
    let from = follower.newest().unwrap();
    let settings = format!("{FOR_EVER}&concurrent=on");
    let mut both = [connection(&fixture, &settings), connection(&fixture, &settings)];
    for (writer, table) in both.iter_mut().zip(["t", "u"]) {
        assert_eq!(writer.run("BEGIN"), "");
        assert_eq!(writer.run(&format!("INSERT INTO {table} VALUES(1)")), "");
    }
    let answers = both.map(|writer| begin(writer, "COMMIT"));
    let newest = read(&mut follower, from, 2).pop().unwrap();
    assert!(answers.iter().all(|answer| answer.try_recv().is_err()), "nothing was acknowledged");
    follower.set_replicated(newest.position, newest.time_ms).unwrap();
    for answer in answers {
        assert_eq!(answer.recv().unwrap().1, "");
    }
    assert_eq!(first.run("SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM u)"), "2");
}

#[test]
fn inv70_vacuum_and_transactions_that_overflow_the_cache_wait_too() {
    let (fixture, _first, mut follower) = begun();
    let mut writer = connection(&fixture, FOR_EVER);
    writer.run("PRAGMA cache_size=10");
    for statement in [
        "INSERT INTO t SELECT randomblob(3000) FROM (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 \
         FROM n WHERE x < 300) SELECT x FROM n)",
        "DELETE FROM t",
        "VACUUM",
    ] {
        let from = follower.newest().unwrap();
        let answer = begin(writer, statement);
        let newest = read(&mut follower, from, 1).pop().unwrap();
        assert!(answer.try_recv().is_err(), "{statement} was not acknowledged");
        follower.set_replicated(newest.position, newest.time_ms).unwrap();
        let (actor, line) = answer.recv().unwrap();
        assert_eq!(line, "", "{statement}");
        writer = actor;
    }
}

#[test]
fn inv70_what_the_archive_would_never_get_is_refused() {
    let fixture = Fixture::new();
    let settings = "replicated=on&replicated_timeout=1";
    let mut writer = Actor::sql(&fixture.uri(NAME, settings));
    // `replicated=on` refuses transactions outside of WAL mode, but not the one that sets WAL mode.
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        let refused = writer.run(&format!("PRAGMA journal_mode={mode}"));
        let words = format!("replicated=on refuses journal_mode={mode}");
        assert!(refused.contains(&words), "{refused}");
    }
    writer.finish();
    let mut plain = Actor::sql(&fixture.uri("plain.db", ""));
    plain.run("CREATE TABLE t(x)");
    plain.finish();
    for mode in ["", "PRAGMA locking_mode=EXCLUSIVE"] {
        let mut writer = Actor::sql(&fixture.uri("plain.db", settings));
        writer.run(mode);
        assert_eq!(writer.run("SELECT count(*) FROM t"), "0");
        let refused = writer.run("INSERT INTO t VALUES(1)");
        assert!(refused.starts_with("error"), "{mode}: {refused}");
        let why = reason(&mut writer);
        assert!(why.contains("is not in WAL mode"), "{mode}: {why}");
        if why.starts_with("replicated=on refuses to write to ") {
            assert_eq!(writer.run("SELECT count(*) FROM t"), "0", "{mode}");
        } else {
            assert!(why.starts_with("committed here, not in the archive: "), "{mode}: {why}");
        }
        writer.finish();
    }
    let off = format!("file:{}?vfs=duralite&journal=off&{settings}", fixture.path(NAME).display());
    let mut writer = Actor::sql(&off);
    // SQLite does not open the database, so no connection can report the reason.
    assert!(writer.run("SELECT count(*) FROM sqlite_schema").starts_with("error"));
}

#[test]
fn inv14_a_child_of_the_sidecar_says_nothing_for_it() {
    let (_fixture, mut first, follower) = begun();
    let mut follower = Some(follower);
    let child = fork(|| {
        let refused = follower.as_mut().is_some_and(|follower| {
            follower.set_replicated(1000, 0).is_err() && follower.set_fenced().is_err()
        });
        drop(follower.take());
        refused
    });
    assert_eq!(child.wait(), Ended::Well);
    assert_eq!(status(&mut first, "archive"), "sidecar runs");
    assert_ne!(status(&mut first, "archive_position"), "1000");
    drop(follower);
    assert_eq!(status(&mut first, "archive"), "no sidecar");
}
