//! `duralite checkpoint`, on databases that killed and living processes left.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::path::Path;
use std::process::Command;

use duralite_testkit::{Actor, Place, one, stock};

/// What the command says, and whether it succeeds.
fn checkpoint(arguments: &[&str], path: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.arg("checkpoint").args(arguments).arg(path);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn writer(place: &Place) -> Actor {
    let mut actor = Actor::sql(&place.uri("c.db", ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(a)"), "");
    assert_eq!(actor.run("INSERT INTO t VALUES(1), (2), (3)"), "");
    actor
}

fn assert_home(place: &Place) {
    place.assert_plain("c.db");
    assert_eq!(one::<i64>(&stock(&place.path("c.db")), "SELECT sum(a) FROM t"), 6);
    assert!(place.logs().is_empty());
}

#[test]
fn inv01_a_log_is_not_discarded_while_somebody_uses_the_database() {
    let place = Place::new();
    let mut actor = writer(&place);
    // The log is where the command does not look for it.
    let (done, said) = checkpoint(&["--discard-log"], &place.path("c.db"));
    assert!(!done && said.contains("has the database open"), "{said}");
    assert!(place.is_guarded("c.db"));
    assert_eq!(actor.run("SELECT sum(a) FROM t"), "6");
    actor.finish();
    assert_home(&place);
}

#[test]
fn a_log_is_put_home_by_its_own_name() {
    let place = Place::new();
    writer(&place).kill();
    let (done, said) = checkpoint(&[], &place.log());
    assert!(done, "{said}");
    assert_home(&place);
}

#[test]
fn inv03_a_torn_first_page_is_mended_from_the_log() {
    let place = Place::new();
    writer(&place).kill();
    let mut bytes = std::fs::read(place.path("c.db")).unwrap();
    bytes[..512].fill(0x5a);
    std::fs::write(place.path("c.db"), &bytes).unwrap();
    let (done, said) = checkpoint(&["--log-dir", place.pool().to_str().unwrap()], &place.path("c.db"));
    assert!(done, "{said}");
    assert_home(&place);
}
