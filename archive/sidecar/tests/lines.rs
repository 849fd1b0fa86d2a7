//! Tests when the archive continues its generation, and when it begins a new one.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use duralite_testkit::{Actor, Engine, one, run, stock};
use rustix::process::Signal;

use crate::common::{FOR_EVER, Machine, NAME, Place, assert_equal, patient};

/// Returns a database that is completely archived. No sidecar runs any more.
fn begun(engine: Engine) -> (Machine, Place) {
    let (machine, place) = (Machine::new(engine), Place::new());
    machine.session(&["CREATE TABLE t(x, y)", "INSERT INTO t VALUES(0, randomblob(9000))"]);
    machine.once(&place);
    assert_eq!(place.lines(), ["first"]);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?}"));
    (machine, place)
}

/// Archives everything. Checks that the archive then equals the database, and that the start records of its generations
/// name these lines.
#[track_caller]
fn archived(machine: &Machine, place: &Place, lines: &[&str]) {
    machine.once(place);
    let what = format!("{:?}", machine.fixture.engine());
    assert_eq!(place.lines(), lines, "{what}");
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &what);
    machine.fixture.assert_plain(NAME);
}

/// A process that closes a log first removes the guard, and then records the state of the database file. Between these
/// two steps, a sidecar waits.
#[test]
fn inv72_a_log_that_is_being_closed_is_waited_for() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        let begin = place.newest();
        machine.session(&["INSERT INTO t VALUES(1, 1)"]);
        let records = machine.fixture.path("app.db-archive");
        let whole = std::fs::read(&records).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        std::fs::write(&records, &whole[..last]).unwrap();
        let mut sidecar = machine.sidecar(&place);
        std::thread::sleep(Duration::from_secs(1));
        let mut file = std::fs::File::options().append(true).open(&records).unwrap();
        file.write_all(&whole[last..]).unwrap();
        sidecar.until("the commit is archived", || place.newest() > begin);
        sidecar.end();
        assert_eq!(place.newest(), begin + 1, "{engine:?}");
        archived(&machine, &place, &["first"]);
    }
}

#[test]
fn backlogs_of_many_closes_are_drained() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        let begin = place.newest();
        let mut states = Vec::new();
        for number in 1..=4 {
            machine.session(&[
                &format!("INSERT INTO t VALUES({number}, randomblob(20000))"),
                &format!("DELETE FROM t WHERE x = {number} - 1"),
            ]);
            states.push(machine.bytes());
        }
        archived(&machine, &place, &["first"]);
        let newest = place.newest();
        assert_eq!(newest, begin + 8, "{engine:?}");
        for (nth, bytes) in states.iter().enumerate() {
            assert_equal(&place.at(begin + 2 * (nth as u64 + 1)).bytes, bytes, &format!("{engine:?} {nth}"));
        }
        // The backlogs are gone.
        let names = std::fs::read_dir(machine.fixture.path("")).unwrap();
        let backlogs: Vec<_> = names
            .map(|name| name.unwrap().file_name())
            .filter(|name| name.to_string_lossy().starts_with("app.db-archive-"))
            .collect();
        assert!(backlogs.is_empty(), "{engine:?}: {backlogs:?}");
        // If there is nothing new, the sidecar uploads nothing.
        archived(&machine, &place, &["first"]);
        assert_eq!(place.newest(), newest, "{engine:?}");
    }
}

/// Nobody can archive such a backlog. So the sidecar does not try it again and again, but takes a snapshot.
#[test]
fn inv73_a_damaged_backlog_counts_as_missing() {
    for engine in Engine::all() {
        // The first part of the backlog says which commits it has, and the last part has the newest of them.
        for from_end in [false, true] {
            let (machine, place) = begun(engine);
            machine.session(&["INSERT INTO t VALUES(1, randomblob(20000))", "INSERT INTO t VALUES(2, 2)"]);
            let mut names =
                std::fs::read_dir(machine.fixture.path("")).unwrap().map(|name| name.unwrap().path());
            let is_backlog = |path: &PathBuf| path.to_string_lossy().contains("app.db-archive-");
            let backlog = names.find(is_backlog).unwrap();
            let mut bytes = std::fs::read(&backlog).unwrap();
            let at = if from_end { bytes.len() - 100 } else { 100 };
            bytes[at] ^= 1;
            std::fs::write(&backlog, &bytes).unwrap();
            archived(&machine, &place, &["first", "gap"]);
            machine.session(&["INSERT INTO t VALUES(3, 3)"]);
            archived(&machine, &place, &["first", "gap"]);
            assert!(!backlog.exists(), "{engine:?}");
        }
    }
}

#[test]
fn a_log_that_a_dead_process_left_is_drained() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        machine.session(&["INSERT INTO t VALUES(1, 1)"]);
        let mut dead = Actor::sql(&machine.fixture.uri(NAME, ""));
        assert_eq!(dead.run("INSERT INTO t VALUES(2, randomblob(30000))"), "");
        assert_eq!(dead.run("INSERT INTO t VALUES(3, 3)"), "");
        dead.kill();
        // When `ppl` has recovered a log, it no longer knows where each transaction ended.
        let lines: &[&str] = if engine == Engine::PPL { &["first", "gap"] } else { &["first"] };
        archived(&machine, &place, lines);
        assert_eq!(one::<i64>(&place.restored(&[]).open(), "SELECT count(*) FROM t"), 4);
    }
}

#[test]
fn what_stock_sqlite_changes_begins_another_line() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        let before = (place.newest(), machine.bytes());
        let plain = stock(&machine.database());
        run(&plain, "INSERT INTO t VALUES(7, randomblob(5000))").unwrap();
        plain.close().unwrap();
        archived(&machine, &place, &["first", "other"]);
        // The result is the same if programs use Duralite before and after stock SQLite changes the database.
        machine.session(&["INSERT INTO t VALUES(8, 8)"]);
        let plain = stock(&machine.database());
        run(&plain, "DELETE FROM t WHERE x = 7").unwrap();
        plain.close().unwrap();
        machine.session(&["INSERT INTO t VALUES(9, 9)"]);
        archived(&machine, &place, &["first", "other", "other"]);
        machine.session(&["INSERT INTO t VALUES(10, 10)"]);
        archived(&machine, &place, &["first", "other", "other"]);
        assert_equal(&place.at(before.0).bytes, &before.1, &format!("{engine:?}"));
    }
}

#[test]
fn what_stock_sqlite_changes_beside_a_running_sidecar_begins_another_line() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        let mut sidecar = machine.sidecar(&place);
        machine.session(&["INSERT INTO t VALUES(1, 1)"]);
        sidecar.until_plain(&machine);
        let plain = stock(&machine.database());
        plain.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        run(&plain, "INSERT INTO t VALUES(2, 2)").unwrap();
        plain.close().unwrap();
        sidecar.until("there is no new generation", || {
            place.lines() == ["first", "other"] && place.listed()[0].last.is_some()
        });
        sidecar.until_plain(&machine);
        machine.session(&["INSERT INTO t VALUES(3, 3)"]);
        sidecar.until_plain(&machine);
        sidecar.end();
        archived(&machine, &place, &["first", "other"]);
    }
}

#[test]
fn a_journal_mode_that_goes_and_comes_back_begins_another_line() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        for is_running in [false, true] {
            let since = std::time::Instant::now();
            let sidecar = is_running.then(|| machine.sidecar(&place));
            // If a sidecar has found the log, it keeps the log open, and then no other process can change the journal
            // mode. So the test stops the sidecar meanwhile.
            let signal = |signal| sidecar.iter().for_each(|sidecar| sidecar.signal(signal));
            signal(Signal::STOP);
            let conn = patient(&machine.fixture.uri(NAME, ""));
            assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=DELETE"), "delete");
            signal(Signal::CONT);
            run(&conn, "INSERT INTO t VALUES(1, randomblob(9000))").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(300));
            run(&conn, "DELETE FROM t WHERE x = 0").unwrap();
            assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
            run(&conn, "INSERT INTO t VALUES(2, 2)").unwrap();
            if let Some(sidecar) = sidecar {
                sidecar.end_after(conn, &machine);
            } else {
                conn.close().unwrap();
            }
            println!("{engine:?} {is_running} {:?}", since.elapsed());
            machine.once(&place);
            assert_equal(
                &place.restored(&[]).bytes,
                &machine.bytes(),
                &format!("{engine:?} {is_running} {:?}", place.lines()),
            );
            assert!(place.lines().contains(&"other".to_owned()), "{engine:?}: {:?}", place.lines());
        }
    }
}

#[test]
fn another_page_size_begins_another_line() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        let plain = stock(&machine.database());
        for statement in
            ["PRAGMA journal_mode=DELETE", "PRAGMA page_size=8192", "VACUUM", "PRAGMA journal_mode=WAL"]
        {
            run(&plain, statement).unwrap();
        }
        plain.close().unwrap();
        machine.session(&["INSERT INTO t VALUES(1, 1)"]);
        archived(&machine, &place, &["first", "other"]);
        assert_eq!(one::<i64>(&place.restored(&[]).open(), "PRAGMA page_size"), 8192);
    }
}

#[test]
fn a_log_that_started_over_without_a_sidecar_leaves_a_gap() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        for mode in ["RESTART", "TRUNCATE"] {
            let checkpoint = format!("PRAGMA wal_checkpoint({mode})");
            machine.session(&[
                "INSERT INTO t VALUES(1, randomblob(9000))",
                &checkpoint,
                "INSERT INTO t VALUES(2, randomblob(9000))",
                &checkpoint,
                "INSERT INTO t VALUES(3, 3)",
            ]);
            machine.once(&place);
            assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?} {mode}"));
        }
        assert!(place.lines()[1..].iter().all(|line| line == "gap"), "{engine:?}: {:?}", place.lines());
        let lines = place.lines();
        machine.session(&["INSERT INTO t VALUES(4, 4)"]);
        machine.once(&place);
        assert_eq!(place.lines(), lines, "{engine:?}");
        assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?}"));
    }
}

/// One process keeps the database open all the time, so the log is never closed.
#[test]
fn a_log_that_started_over_while_the_sidecar_was_away_leaves_a_gap() {
    for engine in Engine::all() {
        let (machine, place) = begun(engine);
        let conn = machine.open("");
        let mut sidecar = machine.sidecar(&place);
        run(&conn, "INSERT INTO t VALUES(1, 1)").unwrap();
        sidecar.until_archived(&conn);
        sidecar.kill();
        for _ in 0..3 {
            run(&conn, "INSERT INTO t VALUES(2, randomblob(9000))").unwrap();
            run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        }
        run(&conn, "INSERT INTO t VALUES(3, 3)").unwrap();
        let mut sidecar = machine.sidecar(&place);
        sidecar.until("nothing is archived", || place.lines().len() > 1 && place.listed()[0].last.is_some());
        sidecar.end_after(conn, &machine);
        assert_eq!(place.lines(), ["first", "gap"], "{engine:?}");
        assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?}"));
    }
}

/// With `durability=normal`, commits are acknowledged before they are durable. A power loss may undo such commits, even
/// some that the archive has. Returns a database that has lost three of six commits in this way. No sidecar runs any
/// more.
fn robbed() -> (Machine, Place) {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    // Commits these numbers, and kills all processes. Returns the contents of the disks at that moment.
    let commit = |numbers: std::ops::Range<u32>| {
        let sidecar = machine.sidecar(&place);
        let mut writer = Actor::sql(&machine.fixture.uri(NAME, FOR_EVER));
        for number in numbers {
            assert_eq!(writer.run(&format!("INSERT INTO t VALUES({number})")), "");
        }
        writer.kill();
        sidecar.kill();
        let files = machine.fixture.logs().into_iter().chain([machine.database()]);
        files.map(|file| (std::fs::read(&file).unwrap(), file)).collect::<Vec<(Vec<u8>, PathBuf)>>()
    };
    let disks = commit(1..4);
    commit(4..7);
    for (bytes, file) in disks {
        std::fs::write(file, bytes).unwrap();
    }
    (machine, place)
}

/// Makes `commits` commits while no sidecar runs. Then archives the log while the connection is still open.
fn archive_beside(commits: u32) {
    let (machine, place) = robbed();
    let conn = machine.open("");
    for number in 0..commits {
        run(&conn, &format!("INSERT INTO t VALUES({})", number + 10)).unwrap();
    }
    let sidecar = machine.sidecar(&place);
    sidecar.end_after(conn, &machine);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
    assert_eq!(place.lines(), ["first", "other"], "{commits} commits");
}

/// Other commits now have the log positions that the lost commits had.
#[test]
fn inv72_a_log_that_has_lost_what_the_archive_has_begins_another_line() {
    archive_beside(5);
}

/// The log ends before the last commit in the archive.
#[test]
fn inv72_a_log_that_ends_before_what_the_archive_has_begins_another_line() {
    archive_beside(1);
}

/// Makes `commits` commits, and closes the log. Then archives the backlog that the log has left.
fn archive_behind(commits: u32) {
    let (machine, place) = robbed();
    let numbers = (0..commits).map(|number| format!("INSERT INTO t VALUES({})", number + 10));
    let statements: Vec<String> = numbers.collect();
    machine.session(&statements.iter().map(String::as_str).collect::<Vec<_>>());
    archived(&machine, &place, &["first", "other"]);
}

#[test]
fn inv72_a_closed_log_that_has_lost_what_the_archive_has_begins_another_line() {
    // In the first case the log has as many commits as the archive, and in the second case it has more.
    archive_behind(3);
    archive_behind(5);
}

#[test]
fn inv72_a_log_that_was_closed_before_what_the_archive_has_begins_another_line() {
    archive_behind(1);
}
