//! Tests real SQLite on the test engine `side`. Its home keeps all pages, including the header, in files
//! beside the log. The pages reach the database file only when the engine drains the home.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::fs;
use std::path::Path;

use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES};
use duralite_testkit::{Actor, Engine, Fixture, connect, integrity, one, run, stock};
use duralite_wal::engine::media::MediaSet;
use duralite_wal::log::offline;
use duralite_wal::{LogError, LogPlacement, placement};
use rusqlite::Connection;

const NAME: &str = "s.db";

fn fixture() -> Fixture {
    Fixture::on(Engine::named("side").unwrap())
}

/// Returns the header in the database file, with the guard removed.
fn header_on_disk(fixture: &Fixture, name: &str) -> Vec<u8> {
    let mut header = fs::read(fixture.path(name)).unwrap()[..HEADER_BYTES].to_vec();
    assert!(matches!(guard::inspect(&header), DatabaseHeader::Guarded { .. }));
    guard::unmask(0, &mut header);
    header
}

/// Makes a database that a killed process has left. The log is empty, and the files of the home hold all
/// pages. Returns the header that is in the database file.
fn held(fixture: &Fixture) -> Vec<u8> {
    let mut actor = Actor::sql(&fixture.uri(NAME, ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("PRAGMA user_version"), "0");
    let before = header_on_disk(fixture, NAME);
    assert_eq!(actor.run("CREATE TABLE t(a, b)"), "");
    assert_eq!(actor.run("INSERT INTO t VALUES(6, zeroblob(20000))"), "");
    assert_eq!(actor.run("PRAGMA user_version=7"), "");
    assert!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)").starts_with('0'));
    actor.kill();
    before
}

fn check(fixture: &Fixture, name: &str) {
    check_opened(&fixture.open(name));
}

fn check_opened(conn: &Connection) {
    assert_eq!(one::<i64>(conn, "SELECT sum(a) FROM t"), 6);
    assert_eq!(one::<i64>(conn, "PRAGMA user_version"), 7);
    integrity(conn);
}

fn copy_all(from: &Path, to: &Path) {
    for (path, bytes) in duralite_testkit::snapshot(from) {
        fs::write(to.join(path.file_name().unwrap()), bytes).unwrap();
    }
}

#[test]
fn inv01_the_header_in_the_file_is_as_old_as_the_guard_until_it_is_lifted() {
    let fixture = fixture();
    let before = held(&fixture);
    assert_eq!(header_on_disk(&fixture, NAME), before, "the header went past the home");
    check(&fixture, NAME);
    // The last connection has moved all pages from the home to the database file, so that file alone is the
    // database.
    fixture.assert_plain(NAME);
    assert!(fixture.logs().is_empty());
    let conn = stock(&fixture.path(NAME));
    assert_eq!(one::<i64>(&conn, "PRAGMA user_version"), 7);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    drop(conn);
    // Pages that the home once held must not appear again when the database gets its next guard.
    let conn = fixture.open(NAME);
    run(&conn, "UPDATE t SET a = 9").unwrap();
    assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 20000);
    conn.close().unwrap();
    assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "SELECT sum(a) FROM t"), 9);
}

#[test]
fn a_user_who_comes_later_sees_the_header_that_is_held() {
    let fixture = fixture();
    let conn = fixture.open(NAME);
    run(&conn, "PRAGMA wal_autocheckpoint=1").unwrap();
    for number in 1..=20 {
        run(&conn, &format!("CREATE TABLE t{number}(a)")).unwrap();
        let second = connect(&fixture.uri(NAME, "mode=ro")).unwrap();
        assert_eq!(one::<i64>(&second, "SELECT count(*) FROM sqlite_schema"), number);
    }
    run(&conn, "PRAGMA journal_mode=DELETE").unwrap();
    fixture.assert_plain(NAME);
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM sqlite_schema"), 20);
}

#[test]
fn a_first_page_that_is_torn_in_the_file_is_put_right_from_what_is_held() {
    for torn in [0..16, 18..19, 72..92, 0..512] {
        let fixture = fixture();
        held(&fixture);
        let mut bytes = fs::read(fixture.path(NAME)).unwrap();
        bytes[torn.clone()].fill(0xA5);
        fs::write(fixture.path(NAME), bytes).unwrap();
        check(&fixture, NAME);
        fixture.assert_plain(NAME);
        assert_eq!(one::<i64>(&stock(&fixture.path(NAME)), "PRAGMA user_version"), 7, "{torn:?}");
    }
}

/// The copied log lies beside the copied database. From this, Duralite concludes that the two belong
/// together.
#[test]
fn a_copy_of_database_and_log_has_what_is_held() {
    let (from, to) = (fixture(), fixture());
    held(&from);
    let copy = to.path(NAME);
    let beside = copy.parent().unwrap();
    fs::copy(from.path(NAME), &copy).unwrap();
    copy_all(from.log_dir(), beside);
    check_opened(&connect(&to.uri_with_log_dir(NAME, beside, "")).unwrap());
    to.assert_plain(NAME);
    // The original still has all of its content.
    check(&from, NAME);
    from.assert_plain(NAME);
}

/// If the copy used the log, a checkpoint would move all pages out of the home into the copy. The original
/// database needs the log with these pages, and could lose them.
#[test]
fn a_copy_does_not_take_over_a_log_whose_home_holds_pages() {
    let fixture = fixture();
    held(&fixture);
    let (log, copy) = (fixture.log(), fixture.path("copy.db"));
    fs::copy(fixture.path(NAME), &copy).unwrap();
    let engine = fixture.engine().descriptor();
    let logs = LogPlacement::at(engine, fixture.log_dir(), &MediaSet::default());
    let id = placement::describe(&log).unwrap().id;
    let refused = offline::checkpoint(&logs, &copy, id, true);
    assert!(matches!(refused, Err(LogError::NotToAdopt { .. })), "{refused:?}");
    check(&fixture, NAME);
    fixture.assert_plain(NAME);
}

#[test]
fn a_log_whose_home_holds_pages_is_not_thrown_away_as_empty() {
    let fixture = fixture();
    held(&fixture);
    let log = fixture.log();
    // Put an older database in the place of the one that names the log.
    let kept = fs::read(fixture.path(NAME)).unwrap();
    let mut plain = kept.clone();
    guard::unmask(0, &mut plain);
    fs::write(fixture.path(NAME), plain).unwrap();
    drop(fixture.open(NAME));
    assert_eq!(fixture.logs(), [log]);
    // Put the right database back.
    fs::write(fixture.path(NAME), kept).unwrap();
    check(&fixture, NAME);
}
