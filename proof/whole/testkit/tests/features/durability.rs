//! A commit is durable at every setting of `synchronous` (invariant 4).

use duralite_testkit::{Actor, Fixture, integrity, one};

#[test]
fn inv04_commits_survive_a_kill_at_every_synchronous_setting() {
    for synchronous in ["OFF", "NORMAL", "FULL", "EXTRA"] {
        for sync in ["lazy", "eager", "checksum"] {
            let fixture = Fixture::new();
            let mut actor = Actor::sql(&fixture.uri("s.db", &format!("sync={sync}")));
            assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
            actor.run(&format!("PRAGMA synchronous={synchronous}"));
            actor.run("CREATE TABLE t(a)");
            for n in 1..=20 {
                assert_eq!(actor.run(&format!("INSERT INTO t VALUES({n})")), "");
            }
            actor.run("BEGIN");
            actor.run("INSERT INTO t VALUES(1000)");
            actor.kill();
            let conn = fixture.open("s.db");
            assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 210, "{synchronous}, {sync}");
            integrity(&conn);
            drop(conn);
            fixture.assert_plain("s.db");
        }
    }
}

#[test]
fn inv04_exclusive_locking_is_as_durable() {
    let fixture = Fixture::new();
    let mut actor = Actor::sql(&fixture.uri("s.db", ""));
    actor.run("PRAGMA locking_mode=EXCLUSIVE");
    actor.run("PRAGMA synchronous=OFF");
    actor.run("PRAGMA journal_mode=WAL");
    actor.run("CREATE TABLE t(a)");
    assert_eq!(actor.run("INSERT INTO t VALUES(4), (5)"), "");
    actor.kill();
    assert_eq!(one::<i64>(&fixture.open("s.db"), "SELECT sum(a) FROM t"), 9);
}
