//! `duralite reclaim` of regions that killed processes left.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::fs;
use std::process::Command;

use duralite_testkit::{Actor, Engine, Fixture};

/// Runs the command. Returns whether it succeeds, and its output.
fn reclaim(fixture: &Fixture, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    let output = command.arg("reclaim").args(arguments).arg(fixture.log_dir()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn what_a_deleted_log_has_had_is_given_back_when_asked_for() {
    let fixture = Fixture::on(Engine::SCRATCHPAD);
    let (done, said) = reclaim(&fixture, &[]);
    assert!(!done && said.contains("has no region"), "{said}");
    let mut actor = Actor::sql(&fixture.uri("c.db", ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(a)"), "");
    let log = fixture.log();
    let (done, said) = reclaim(&fixture, &["--discard"]);
    assert!(done && said.contains("; 0 bytes of 0 other logs"), "{said}");
    assert_eq!(actor.run("SELECT count(*) FROM t"), "0");
    actor.kill();
    let (done, said) = reclaim(&fixture, &["--discard"]);
    assert!(done && said.contains("; 0 bytes of 0 other logs"), "its log is there: {said}");
    fs::remove_file(log).unwrap();
    let (done, said) = reclaim(&fixture, &[]);
    assert!(done && said.contains("bytes of 1 other logs were kept"), "{said}");
    let (done, said) = reclaim(&fixture, &["--discard", "--json"]);
    assert!(done && said.contains("\"missing_logs\": 1") && said.contains("\"discarded\": true"), "{said}");
    let (done, _) = reclaim(&fixture, &[]);
    assert!(!done, "nobody needs the region");
}
