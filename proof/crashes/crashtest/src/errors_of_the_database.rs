//! Makes a sync fail once with a device error. The kernel reports a failed sync of the database file to only
//! one connection. The data of that sync never reaches the device, and later syncs succeed. Duralite must
//! keep the pages in the log until they are safely in the database file (invariant 6). Duralite must report a
//! failed sync of the log, even if SQLite ignores the result (invariant 4).

use rusqlite::Connection;

use crate::event::{Event, Recording};
use crate::fault::recorder_of;
use crate::hooks::register;
use crate::model::{Model, sample};
use crate::setup::{Engine, Setup};
use crate::sql;
use crate::stage::Stage;
use crate::workload::under_hook;

const ROWS: u32 = 30;
const STATES: usize = 40;

/// Commits a transaction. On a concurrent connection the transaction is validated when it commits. Any other
/// connection takes the WRITE lock when the transaction begins.
fn commit(conn: &Connection, setup: &Setup, statement: &str) -> rusqlite::Result<()> {
    if setup.concurrent { sql::commit_beside(conn, statement) } else { sql::commit(conn, statement) }
}

fn insert(conn: &Connection, setup: &Setup, from: u32, note: &dyn Fn(Event)) {
    for number in from..from + ROWS {
        note(Event::Begin { number });
        let statement = format!("INSERT INTO t VALUES({number}, randomblob(900));");
        if commit(conn, setup, &statement).is_err() {
            // The log may start over only after the database was synced, and that sync has just failed. The
            // connection gets the error only once, and its next attempt succeeds.
            sql::roll_back(conn).unwrap();
            commit(conn, setup, &statement).unwrap();
        }
        note(Event::Acknowledged { number });
    }
}

fn plain(engine: Engine, concurrent: bool) -> Setup {
    let setup = Setup::for_writers(engine, 1, concurrent);
    Setup { settings: String::new(), page_bytes: 1024, threads: 1, waits: true, ..setup }
}

/// Makes one connection's checkpoint fail when it syncs the database. Another connection does not learn of
/// the failure. It repeats the checkpoint and commits, so that the log starts over. If `closes` is set, both
/// connections close instead, and a new connection commits. At the end simulates power failures at barriers.
fn somebody_else_syncs(engine: Engine, synchronous: &str, closes: bool, concurrent: bool) {
    register().unwrap();
    let setup = plain(engine, concurrent);
    let stage = Stage::new(false).unwrap();
    let recorder = recorder_of(&stage, &setup).unwrap();
    let note = |event| recorder.note(event);
    under_hook(&stage, &recorder, || {
        let told = stage.connect(&setup).unwrap();
        let other = stage.connect(&setup).unwrap();
        sql::use_mode(&told, sql::WAL).unwrap();
        told.execute_batch("CREATE TABLE t(number INTEGER PRIMARY KEY, filler)").unwrap();
        insert(&told, &setup, 1, &note);
        for conn in [&told, &other] {
            conn.execute_batch(&format!("PRAGMA synchronous={synchronous}")).unwrap();
        }
        recorder.fail_syncs_of(&stage.database(), 1);
        let told_of = sql::checkpoint(&told, "FULL");
        if synchronous != "OFF" {
            assert!(told_of.is_err() && recorder.has_failed_sync(), "no sync has failed");
        }
        // SQLite did not report the failure to the other connection.
        let _ = sql::checkpoint(&other, "RESTART");
        if closes {
            drop(told);
            drop(other);
            let again = stage.connect(&setup).unwrap();
            insert(&again, &setup, ROWS + 1, &note);
        } else {
            insert(&other, &setup, ROWS + 1, &note);
            let _ = sql::checkpoint(&other, "TRUNCATE");
            insert(&other, &setup, 2 * ROWS + 1, &note);
        }
        assert!(recorder.has_failed_sync(), "no sync has failed");
    });
    assert_nothing_is_lost(
        &stage,
        &setup,
        &recorder.finish(),
        &format!("synchronous={synchronous}, closes={closes}, concurrent={concurrent}"),
    );
}

/// Simulates power failures at barriers and after acknowledgements, from the first failed sync on.
fn assert_nothing_is_lost(stage: &Stage, setup: &Setup, recording: &Recording, what: &str) {
    let mut model = Model::new(recording, &stage.home());
    let mut random = fastrand::Rng::with_seed(7);
    let barriers = recording.events.iter().filter(|event| Model::is_barrier(event)).count();
    let (mut acknowledged, mut lost) = (0, false);
    for event in &recording.events {
        let cuts = lost && Model::is_barrier(event) && random.usize(..barriers) < STATES;
        if cuts || lost && matches!(event, Event::Acknowledged { .. }) && random.u8(..4) == 0 {
            let choices = model.choices();
            stage.set(&model.crash(&choices, &sample(&choices, &mut random))).unwrap();
            let conn = stage.connect(setup).unwrap();
            let found: u32 = conn
                .query_row("SELECT count(*) FROM t WHERE number <= ?1", [acknowledged], |row| row.get(0))
                .unwrap();
            assert_eq!(found, acknowledged, "{}, {what}", setup.engine);
            let sound: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(sound, "ok");
        }
        model.apply(event);
        match event {
            Event::Acknowledged { number } => acknowledged = *number,
            Event::Lost { .. } => lost = true,
            _ => {}
        }
    }
    assert!(lost);
}

/// Returns the engines whose database file only SQLite's checkpoint writes and syncs. `ppl` writes merged
/// pages itself, and `scratchpad` stores to memory; [`crate::faults`] tests their faults.
fn that_write_when_checkpointed() -> impl Iterator<Item = Engine> {
    Engine::own().into_iter().filter(|engine| ![Engine::PPL, Engine::SCRATCHPAD].contains(engine))
}

#[test]
fn inv06_a_sync_that_failed_is_everybodys() {
    for engine in that_write_when_checkpointed() {
        for (closes, concurrent) in [(false, false), (true, false), (false, true), (true, true)] {
            somebody_else_syncs(engine, "FULL", closes, concurrent);
        }
    }
}

#[test]
fn inv06_a_sync_that_failed_is_everybodys_at_synchronous_off() {
    for engine in that_write_when_checkpointed() {
        for (closes, concurrent) in [(false, false), (true, false), (false, true), (true, true)] {
            somebody_else_syncs(engine, "OFF", closes, concurrent);
        }
    }
}

/// Before the first commit to the log, Duralite syncs the guard in the database's header. This function makes
/// such syncs fail. Programs then see a guard in the database file that is not on the disk. No connection may
/// rely on that guard for its next transaction.
fn the_guard_is_not_durable(engine: Engine, failures: u32, by_another: bool, concurrent: bool) {
    register().unwrap();
    let setup = plain(engine, concurrent);
    let stage = Stage::new(false).unwrap();
    let made = Connection::open(stage.database()).unwrap();
    made.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(number INTEGER PRIMARY KEY, filler)")
        .unwrap();
    drop(made);
    let recorder = recorder_of(&stage, &setup).unwrap();
    let note = |event| recorder.note(event);
    under_hook(&stage, &recorder, || {
        let told = stage.connect(&setup).unwrap();
        let other = stage.connect(&setup).unwrap();
        for conn in [&told, &other] {
            conn.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap();
        }
        recorder.fail_syncs_of(&stage.database(), failures);
        let refused = commit(&told, &setup, "INSERT INTO t VALUES(0, 0); DELETE FROM t WHERE number = 0;");
        assert_eq!(refused.is_err(), failures > 1, "a single failure is made good: {refused:?}");
        assert!(recorder.has_failed_sync(), "no sync has failed");
        let _ = sql::roll_back(&told);
        insert(if by_another { &other } else { &told }, &setup, 1, &note);
    });
    let what = format!("{failures} failures, by_another={by_another}, concurrent={concurrent}");
    assert_nothing_is_lost(&stage, &setup, &recorder.finish(), &what);
}

#[test]
fn inv01_a_guard_that_could_not_be_synced_is_put_on_anew() {
    for engine in Engine::own().into_iter().filter(|engine| *engine != Engine::SCRATCHPAD) {
        for (by_another, concurrent) in [(false, false), (true, false), (false, true), (true, true)] {
            the_guard_is_not_durable(engine, 1, by_another, concurrent);
            the_guard_is_not_durable(engine, 2, by_another, concurrent);
        }
    }
}

/// SQLite commits a transaction over several files by deleting the super-journal, and ignores errors after
/// that. So the log must be flushed before the deletion.
#[test]
fn inv04_a_commit_with_a_super_journal_fails_when_the_log_cannot_be_flushed() {
    commit_with_a_super_journal(false);
}

/// The log belongs to an attached database here, so SQLite opens the super-journal through another VFS.
#[test]
fn inv04_it_fails_as_well_where_the_log_is_that_of_an_attached_database() {
    commit_with_a_super_journal(true);
}

/// Commits to three databases in one transaction. Only one of them has a log.
fn commit_with_a_super_journal(attached: bool) {
    register().unwrap();
    let setup =
        Setup { settings: String::new(), waits: true, threads: 1, ..Setup::for_seed(Engine::WALDIO, 1) };
    for synchronous in ["FULL", "NORMAL"] {
        let stage = Stage::new(false).unwrap();
        let recorder = recorder_of(&stage, &setup).unwrap();
        let others = ["b.db", "c.db"].map(|name| stage.home().join(name));
        for other in &others {
            Connection::open(other).unwrap().execute_batch("CREATE TABLE t(a)").unwrap();
        }
        let committed = under_hook(&stage, &recorder, || {
            let logged = setup.uri(&stage.database(), &stage.log_dir());
            let plain = others.each_ref().map(|other| format!("file:{}?vfs=unix", other.display()));
            let [main, second, third] =
                if attached { [&plain[0], &logged, &plain[1]] } else { [&logged, &plain[0], &plain[1]] };
            let conn = Connection::open(main).unwrap();
            conn.execute_batch(&format!("ATTACH '{second}' AS second; ATTACH '{third}' AS third")).unwrap();
            let log = if attached { "second" } else { "main" };
            conn.execute_batch(&format!(
                "PRAGMA synchronous={synchronous}; PRAGMA {log}.synchronous={synchronous};
                 CREATE TABLE {log}.t(a); BEGIN;"
            ))
            .unwrap();
            for name in ["main", "second", "third"] {
                conn.execute_batch(&format!("INSERT INTO {name}.t VALUES(1)")).unwrap();
            }
            let mut names = std::fs::read_dir(stage.log_dir()).unwrap().map(|entry| entry.unwrap().path());
            recorder.fail_syncs_of(&names.find(|path| crate::event::is_log(path)).unwrap(), 1);
            let committed = conn.execute_batch("COMMIT");
            assert!(recorder.has_failed_sync(), "the log was not flushed, synchronous={synchronous}");
            committed
        });
        assert!(committed.is_err(), "the commit says ok, synchronous={synchronous}");
        for other in &others {
            let conn = Connection::open(other).unwrap();
            let count: i64 = conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
            assert_eq!(count, 0, "{}", other.display());
        }
    }
}
