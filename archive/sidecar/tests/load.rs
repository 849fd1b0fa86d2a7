//! Writers commit without pauses, so the archive never has every commit.

use std::sync::atomic::{AtomicBool, Ordering};

use duralite_testkit::{Actor, Engine, one, run};
use duralite_wal::shared::archived::Behind;
use rusqlite::Connection;

use crate::common::{FOR_EVER, Machine, NAME, Place, Sidecar, assert_equal};

const WRITERS: usize = 4;
/// If a log with at least this many frames becomes shorter, the test concludes that the log has started over. With
/// fewer frames, the log could have started over because the archive happened to have everything.
const FULL: i64 = 500;

/// A number of commits during which a log starts over.
const MANY: i64 = 3000;

/// Returns the number of frames in the log.
fn frames(conn: &Connection) -> i64 {
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1)).unwrap()
}

fn write_until(machine: &Machine, stop: &AtomicBool) {
    let conn = machine.open("");
    run(&conn, "PRAGMA wal_autocheckpoint=50").unwrap();
    while !stop.load(Ordering::Relaxed) {
        run(&conn, "INSERT INTO t VALUES(hex(randomblob(50)))").unwrap();
    }
}

/// Lets connections commit until the log has started over twice, although the sidecar uploads only once an hour.
fn start_over_twice(machine: &Machine, sidecar: &mut Sidecar) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| write_until(machine, &stop));
        }
        let conn = machine.open("");
        let (mut most, mut times) = (0, 0);
        sidecar.until("the log does not start over", || {
            let now = frames(&conn);
            if most > FULL && now < most / 2 {
                (most, times) = (0, times + 1);
            }
            most = most.max(now);
            stop.store(times == 2, Ordering::Relaxed);
            times == 2
        });
    });
}

/// Starts a sidecar that uploads once an hour, and waits until the archive has its first snapshot and a first object.
fn slow_sidecar(machine: &Machine, place: &Place) -> Sidecar {
    let mut sidecar = Sidecar::start(&mut machine.replicate_every("1h", NAME, place));
    sidecar.until_archived(&machine.open(""));
    let conn = machine.open(FOR_EVER);
    run(&conn, "INSERT INTO t VALUES('the first object, after which the hour begins')").unwrap();
    sidecar
}

#[test]
fn inv16_a_log_starts_over_beside_writers_that_never_pause_and_nothing_is_lost() {
    for engine in Engine::all() {
        let (machine, place) = (Machine::new(engine), Place::new());
        machine.session(&["CREATE TABLE t(x)"]);
        let mut sidecar = slow_sidecar(&machine, &place);
        start_over_twice(&machine, &mut sidecar);
        // Before the sidecar ends, it archives the commits that it holds.
        sidecar.end();
        machine.once(&place);
        assert_no_gap(engine, &place);
        assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?}"));
        place.verify();
    }
}

/// Checks that the archive has only one generation, and so no gap. Skips `ppl`. A log of `ppl` that is near its usual
/// size, or whose transactions nobody pins, merges its transactions whether or not the archive has them.
fn assert_no_gap(engine: Engine, place: &Place) {
    if engine != Engine::PPL {
        assert_eq!(place.lines(), ["first"], "{engine:?}");
    }
}

/// The sidecar repeats a failed upload, even if the log has started over meanwhile.
#[test]
fn an_archive_that_is_away_while_writers_go_on_gets_everything_later() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    let mut sidecar = machine.sidecar(&place);
    let conn = machine.open("");
    sidecar.until_archived(&conn);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| write_until(&machine, &stop));
        }
        let before = place.newest();
        sidecar.until("nothing is archived", || place.newest() > before);
        place.take_away();
        sidecar.until("nobody is told that the archive lags", || {
            let Behind { transactions, bytes, since_ms } = machine.behind();
            transactions > 0 && bytes > 0 && since_ms > 0
        });
        // The sidecar repeats the failing upload all the time. Meanwhile it copies commits out of the log until it is
        // full. After that it no longer moves its pin on the log.
        let rows = |conn: &Connection| one::<i64>(conn, "SELECT count(*) FROM t");
        let enough = rows(&conn) + MANY;
        sidecar.until("nobody commits", || rows(&conn) > enough);
        place.bring_back();
        stop.store(true, Ordering::Relaxed);
    });
    sidecar.end_after(conn, &machine);
    assert_no_gap(Engine::under_test(), &place);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
    place.verify();
}

/// All processes are killed, as in a power loss. The next program that opens the database recovers the log, and the log
/// still has everything that the archive lacks.
#[test]
fn inv73_what_the_archive_lacks_when_everything_dies_is_archived_later() {
    for engine in Engine::all() {
        let (machine, place) = (Machine::new(engine), Place::new());
        machine.session(&["CREATE TABLE t(x)"]);
        let sidecar = slow_sidecar(&machine, &place);
        let mut writer = Actor::sql(&machine.fixture.uri(NAME, ""));
        for number in 0..30 {
            assert_eq!(writer.run(&format!("INSERT INTO t VALUES({number})")), "");
        }
        let archived = place.newest();
        writer.kill();
        sidecar.kill();
        machine.session(&["INSERT INTO t VALUES('after the recovery')"]);
        machine.once(&place);
        assert_no_gap(engine, &place);
        assert!(engine == Engine::PPL || place.newest() == archived + 31, "{engine:?}");
        assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?}"));
        place.verify();
    }
}

#[test]
fn what_a_killed_sidecar_has_held_is_in_the_snapshot_that_follows() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    let mut sidecar = slow_sidecar(&machine, &place);
    start_over_twice(&machine, &mut sidecar);
    sidecar.kill();
    machine.session(&["INSERT INTO t VALUES('after the gap')"]);
    machine.once(&place);
    // There is no gap if the sidecar was full, and so uploaded its commits before it was killed.
    let lines = place.lines();
    assert!(lines == ["first", "gap"] || lines == ["first"], "{lines:?}");
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
    place.verify();
}
