//! Tests what a user who may only read the database can do. Each test starts a process as such a user.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use duralite_testkit::{Actor, Fixture, integrity, one, run, skip};

use super::{NAME, each, make, open};

const NOBODY: u32 = 65534;
const COUNT: &str = "SELECT count(*) FROM t";

fn reader(fixture: &Fixture) -> Actor {
    Actor::start_as(NOBODY, &fixture.path(""), &["sql", &fixture.uri(NAME, "")])
}

#[test]
fn inv13_who_may_only_read_reads_between_transactions_and_keeps_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip("users who may only read", "only root can become another user");
        return;
    }
    each(|fixture, mode| {
        set_permissions(fixture.path(""), Permissions::from_mode(0o755)).unwrap();
        set_permissions(fixture.log_dir(), Permissions::from_mode(0o755)).unwrap();
        make(fixture);
        set_permissions(fixture.path(NAME), Permissions::from_mode(0o644)).unwrap();
        let mut reader = reader(fixture);
        assert_eq!(reader.run(COUNT), "3");
        let conn = open(fixture, mode);
        for count in 4..8 {
            run(&conn, "INSERT INTO t(b) VALUES(zeroblob(3000))").unwrap();
            assert_eq!(reader.run(COUNT), count.to_string());
        }
        assert!(reader.run("DELETE FROM t").starts_with("error"));
        // The reader is idle and blocks nothing. The last close removes the guard and the log. Later a writer
        // makes another log.
        conn.close().unwrap();
        fixture.assert_plain(NAME);
        assert_eq!(reader.run(COUNT), "7");
        let mut writer = Actor::sql(&fixture.uri(NAME, ""));
        writer.run(&format!("PRAGMA journal_mode={mode}"));
        writer.run("PRAGMA cache_size=1");
        assert_eq!(writer.run("DELETE FROM t WHERE a = 1"), "");
        assert_eq!(reader.run(COUNT), "6");
        writer.run("BEGIN");
        assert_eq!(writer.run("UPDATE t SET b = zeroblob(90000)"), "");
        writer.kill();
        // The reader cannot play back a hot journal.
        assert!(reader.run(COUNT).starts_with("error"));
        let conn = open(fixture, mode);
        assert_eq!(one::<i64>(&conn, COUNT), 6);
        integrity(&conn);
        assert_eq!(reader.run(COUNT), "6");
        drop(conn);
        reader.finish();
        fixture.assert_plain(NAME);
        assert!(fixture.logs().is_empty());
    });
}
