//! Tests several processes on one database.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::fs;

use duralite_testkit::{Actor, Fixture, integrity, one, run, stock};

const ACCOUNTS: i64 = 50;
const TOTAL: i64 = ACCOUNTS * 1000;

fn bank(fixture: &Fixture, settings: &str) -> rusqlite::Connection {
    let conn = fixture.open_with("bank.db", settings);
    conn.execute_batch(&format!(
        "CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
         CREATE TABLE history(id INTEGER PRIMARY KEY, who INTEGER, amount INTEGER);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ACCOUNTS} - 1)
         INSERT INTO accounts SELECT i, 1000 FROM n;"
    ))
    .unwrap();
    conn
}

/// Runs writers and readers at the same time. The process of the test either stays connected meanwhile, or
/// connects only at the end.
fn stress(settings: &str, writers: u64, transfers: u64, stay: bool) {
    let fixture = Fixture::new();
    let conn = Some(bank(&fixture, settings)).filter(|_| stay);
    let uri = fixture.uri("bank.db", settings);
    let stop = fixture.path("stop");
    let (total, count) = (TOTAL.to_string(), transfers.to_string());
    let mut readers: Vec<Actor> =
        (0..2).map(|_| Actor::start(&["audit", &uri, &total, stop.to_str().unwrap()])).collect();
    for reader in &mut readers {
        assert_eq!(reader.line(), "ready");
    }
    let writers: Vec<Actor> =
        (1..=writers).map(|seed| Actor::start(&["transfer", &uri, &seed.to_string(), &count])).collect();
    for mut writer in writers {
        assert_eq!(writer.line(), "done");
        writer.finish();
    }
    fs::write(&stop, "").unwrap();
    for mut reader in readers {
        let states: i64 = reader.line().parse().unwrap();
        assert!(states > 0, "a reader saw nothing");
        reader.finish();
    }
    let conn = conn.unwrap_or_else(|| fixture.open_with("bank.db", settings));
    assert_eq!(one::<i64>(&conn, "SELECT sum(balance) FROM accounts"), TOTAL);
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("bank.db");
    assert!(fixture.logs().is_empty());
    assert_eq!(one::<i64>(&stock(&fixture.path("bank.db")), "SELECT sum(balance) FROM accounts"), TOTAL);
}

#[test]
fn inv11_many_writers_and_readers() {
    stress("", 4, 1500, true);
}

#[test]
fn inv11_many_writers_and_readers_that_come_and_go() {
    stress("sync=eager&cache_bytes=0", 4, 600, false);
}

#[test]
fn inv11_every_process_may_work_in_its_own_way() {
    let fixture = Fixture::new();
    let conn = bank(&fixture, "");
    let writers: Vec<Actor> = ["sync=lazy", "sync=checksum", "sync=eager&heap=system", "diff=off"]
        .into_iter()
        .zip(1..)
        .map(|(settings, seed)| {
            Actor::start(&["transfer", &fixture.uri("bank.db", settings), &seed.to_string(), "600"])
        })
        .collect();
    for mut writer in writers {
        assert_eq!(writer.line(), "done");
        writer.finish();
    }
    assert_eq!(one::<i64>(&conn, "SELECT sum(balance) FROM accounts"), TOTAL);
    integrity(&conn);
    conn.close().unwrap();
    fixture.assert_plain("bank.db");
}

#[test]
fn readers_see_the_commits_of_others_at_once() {
    let fixture = Fixture::new();
    let conn = fixture.open("s.db");
    run(&conn, "CREATE TABLE t(a)").unwrap();
    let mut others: Vec<Actor> = (0..3).map(|_| Actor::sql(&fixture.uri("s.db", ""))).collect();
    for n in 1..=60_usize {
        let insert = format!("INSERT INTO t VALUES({n})");
        match n % 4 {
            3 => drop(run(&conn, &insert).unwrap()),
            other => assert_eq!(others[other].run(&insert), ""),
        }
        if n % 13 == 0 {
            assert!(others[1].run("PRAGMA wal_checkpoint(TRUNCATE)").starts_with('0'));
        }
        for other in &mut others {
            assert_eq!(other.run("SELECT count(*) FROM t"), n.to_string());
        }
        assert_eq!(one::<String>(&conn, "SELECT count(*) || '' FROM t"), n.to_string());
    }
}

#[test]
fn a_writer_killed_with_the_lock_in_its_hands_blocks_nobody() {
    let fixture = Fixture::new();
    let conn = bank(&fixture, "");
    let uri = fixture.uri("bank.db", "");
    let mut reader = Actor::sql(&uri);
    for round in 0..20 {
        let mut writer = Actor::sql(&uri);
        assert_eq!(writer.run("PRAGMA cache_size=2"), "");
        assert_eq!(writer.run("BEGIN IMMEDIATE"), "");
        assert_eq!(writer.run("UPDATE accounts SET balance = 0"), "");
        // The transaction is far larger than the writer's cache, so a part of it is already in the
        // log.
        let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
                    INSERT INTO history(who, amount) SELECT i, randomblob(200) FROM n";
        assert_eq!(writer.run(fill), "");
        assert_eq!(reader.run("INSERT INTO history(who) VALUES(0)"), "error: database is locked");
        writer.kill();
        let sum = TOTAL.to_string();
        assert_eq!(reader.run("SELECT sum(balance) FROM accounts"), sum);
        assert_eq!(reader.run("INSERT INTO history(who) VALUES(1)"), "");
        run(&conn, "INSERT INTO history(who) VALUES(2)").unwrap();
        assert_eq!(reader.run("SELECT count(*) FROM history"), (2 * round + 2).to_string());
        if round % 5 == 0 {
            integrity(&conn);
        }
    }
    reader.finish();
    conn.close().unwrap();
    fixture.assert_plain("bank.db");
}

#[test]
fn a_checkpointer_killed_at_work_loses_nothing() {
    let fixture = Fixture::new();
    let uri = fixture.uri("bank.db", "");
    drop(bank(&fixture, ""));
    for round in 1..=10 {
        let mut first = Actor::sql(&uri);
        let mut second = Actor::sql(&uri);
        assert_eq!(first.run("UPDATE accounts SET balance = balance + 1"), "");
        assert!(second.run("PRAGMA wal_checkpoint(FULL)").starts_with('0'));
        assert_eq!(first.run("UPDATE accounts SET balance = balance - 1"), "");
        assert_eq!(first.run("INSERT INTO history(who) VALUES(1)"), "");
        second.kill();
        first.kill();
        let conn = fixture.open("bank.db");
        assert_eq!(one::<i64>(&conn, "SELECT sum(balance) FROM accounts"), TOTAL);
        assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM history"), round);
    }
}
