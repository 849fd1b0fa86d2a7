//! Tests of standbys. The old primary is stopped at a random moment, and a standby becomes the primary.

use std::time::Duration;

use duralite_testkit::{Actor, Engine, Ledger, Rng, for_seeds, integrity, one, run, stock};
use duralite_wal::DatabaseIdentity;
use duralite_wal::archive::{ArchiveFile, new_token};
use rustix::process::Signal;

use crate::common::{FOR_EVER, Machine, NAME, Place, Sidecar, assert_equal, done, patient, program, refused};

/// Returns the last number that a writer has recorded after an acknowledged commit; 0 if there is none. Skips the first
/// record, which is the number that the writer found when it started.
fn acknowledged(machine: &Machine) -> i64 {
    let bytes = std::fs::read(machine.fixture.path("acknowledged")).unwrap_or_default();
    bytes.as_chunks().0.iter().skip(1).map(|number| i64::from_le_bytes(*number)).next_back().unwrap_or(0)
}

fn writer(machine: &Machine, settings: &str) -> Actor {
    let acknowledgements = machine.fixture.path("acknowledged");
    let mut writer = Actor::start(&[
        "write",
        &machine.fixture.uri(NAME, settings),
        acknowledgements.to_str().unwrap(),
        "0",
    ]);
    assert_eq!(writer.line(), "ready");
    writer
}

fn fail_over(engine: Engine, seed: u64) {
    println!("{engine:?} seed {seed}");
    let mut rng = Rng::new(seed);
    let (old, new, place) = (Machine::new(engine), Machine::new(engine), Place::new());
    old.session(&["CREATE TABLE first(x)"]);
    let sidecar = old.sidecar(&place);
    let mut writing = writer(&old, FOR_EVER);
    let standby = rng.chance(2).then(|| {
        Sidecar::start(program().args(["follow", &place.url(), "--interval", "10ms"]).arg(new.database()))
    });
    std::thread::sleep(Duration::from_millis(300 + rng.below(300)));
    // Stop the old primary in the middle of its work, whatever it is doing.
    sidecar.signal(Signal::STOP);
    if let Some(standby) = standby {
        standby.end();
    }
    done(&mut new.promote(&place));
    let copy = new.fixture.path("copy.db");
    std::fs::copy(new.database(), &copy).unwrap();
    let had = ledger_of(&stock(&copy));
    assert!(had >= acknowledged(&old), "{engine:?} seed {seed}: {had} of {}", acknowledged(&old));
    sidecar.signal(Signal::CONT);
    let said = sidecar.failed();
    assert!(said.contains("taken over") || said.contains("primary"), "{said}");
    // From now on, no commit of the old primary is acknowledged.
    std::thread::sleep(Duration::from_millis(100));
    assert!(acknowledged(&old) <= had, "{engine:?} seed {seed}: {} after {had}", acknowledged(&old));
    assert!(!writing.has_ended() || acknowledged(&old) <= had);
    let said = refused(&mut old.replicate(NAME, &place));
    assert!(said.contains("primary"), "{said}");
    writing.kill();
    // The new primary goes on.
    let sidecar = new.sidecar(&place);
    let conn = new.open("");
    let ledger = Ledger::prepare(&conn).unwrap();
    for number in had + 1..=had + 20 {
        ledger.append(&conn, number).unwrap();
    }
    sidecar.end_after(conn, &new);
    assert_equal(&place.restored(&[]).bytes, &new.bytes(), &format!("{engine:?} seed {seed}"));
    let restored = place.restored(&[]);
    assert_eq!(ledger_of(&restored.open()), had + 20);
    place.verify();
}

fn ledger_of(conn: &rusqlite::Connection) -> i64 {
    Ledger::prepare(conn).unwrap().verify(conn)
}

#[test]
fn a_new_primary_has_all_that_was_acknowledged_and_fences_the_old_one() {
    for engine in Engine::all() {
        for_seeds(2, |seed| fail_over(engine, seed));
    }
}

/// Stock SQLite reads a standby while `duralite follow` updates the standby.
#[test]
fn a_standby_is_consistent_while_it_is_updated() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&[
        "PRAGMA auto_vacuum=INCREMENTAL",
        "CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER)",
        "CREATE TABLE history(id INTEGER PRIMARY KEY AUTOINCREMENT, who INTEGER, amount INTEGER)",
        "CREATE TABLE ballast(id INTEGER PRIMARY KEY, data BLOB)",
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99) INSERT INTO accounts SELECT i, 100 FROM n",
    ]);
    machine.once(&place);
    let moment = place.newest();
    let mut sidecar = machine.sidecar(&place);
    let replica = machine.fixture.path("replica.db");
    let follow = || {
        let mut command = program();
        command.args(["follow", &place.url(), "--interval", "10ms"]).arg(&replica);
        command
    };
    done(follow().arg("--once"));
    let mut following = Sidecar::start(&mut follow());
    let stop = machine.fixture.path("stop");
    let stopped = stop.to_str().unwrap();
    let audit = format!("file:{}", replica.display());
    let mut audits: Vec<Actor> = (0..2).map(|_| Actor::start(&["audit", &audit, "10000", stopped])).collect();
    for audit in &mut audits {
        assert_eq!(audit.line(), "ready");
    }
    let uri = machine.fixture.uri(NAME, "");
    let conn = patient(&uri);
    for round in 0..4 {
        let mut transfer = Actor::start(&["transfer", &uri, &round.to_string(), "50"]);
        for statement in [
            "INSERT INTO ballast(data) SELECT randomblob(20000) FROM accounts",
            "DELETE FROM ballast",
            "PRAGMA incremental_vacuum",
        ] {
            run(&conn, statement).unwrap();
            let reader = stock(&replica);
            integrity(&reader);
        }
        assert_eq!(transfer.line(), "done");
    }
    sidecar.until_archived(&conn);
    let count: i64 = one(&conn, "SELECT count(*) FROM history");
    let reader = stock(&replica);
    following.until("the standby lags", || one::<i64>(&reader, "SELECT count(*) FROM history") == count);
    std::fs::write(&stop, "").unwrap();
    for mut audit in audits {
        let states: u64 = audit.line().parse().unwrap();
        println!("{states} states were seen");
        audit.finish();
    }
    drop(reader);
    following.end();
    done(follow().arg("--once"));
    conn.close().unwrap();
    sidecar.until_plain(&machine);
    sidecar.end();
    // `follow` can also make a copy of the database as it was at an earlier moment.
    let past = machine.fixture.path("past.db");
    done(program().args(["follow", &place.url(), "--txid", &moment.to_string()]).arg(&past));
    integrity(&stock(&past));
    // Two processes must not update one copy. A process that updates a copy locks the file beside it, as this test
    // does here.
    let beside = std::fs::File::open(machine.fixture.path("replica.db-follow")).unwrap();
    beside.lock().unwrap();
    let output = follow().arg("--once").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("another process"));
}

/// If a new generation does not begin with the state of a follower's copy, the follower replaces the whole copy.
#[test]
fn a_standby_goes_over_to_a_new_generation() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x, y)", "INSERT INTO t VALUES(1, randomblob(50000))"]);
    machine.once(&place);
    let replica = machine.fixture.path("replica.db");
    let mut follow = program();
    follow.args(["follow", &place.url(), "--once"]).arg(&replica);
    done(&mut follow);
    for number in 2..5 {
        machine.session(&[&format!("INSERT INTO t VALUES({number}, 0)")]);
        let plain = stock(&machine.database());
        run(&plain, "DELETE FROM t WHERE x = 1").unwrap();
        plain.close().unwrap();
        machine.once(&place);
        done(&mut follow);
        let (copy, plain) = (stock(&replica), stock(&machine.database()));
        assert_eq!(duralite_testkit::dump(&copy), duralite_testkit::dump(&plain));
        integrity(&copy);
    }
}

/// The program has moved a copy back, and dies before it has noted that. When it follows the archive again, the archive
/// has later transactions, and the program dies a second time before it has changed the copy.
#[test]
fn a_copy_whose_moves_were_cut_short_has_every_transaction() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)", "INSERT INTO t VALUES(1)"]);
    machine.once(&place);
    let moment = place.newest().to_string();
    // The move goes back over two objects, so no single object leads on from both of its ends.
    for row in [2, 3] {
        machine.session(&[&format!("INSERT INTO t VALUES({row})")]);
        machine.once(&place);
    }
    let (replica, state) = (machine.fixture.path("replica.db"), machine.fixture.path("replica.db-follow"));
    let follow = |options: &[&str]| {
        let mut command = program();
        command.args(["follow", &place.url()]).args(options).arg(&replica);
        command
    };
    // While another connection holds WRITE, the program notes what it is about to do, but cannot change the copy.
    let cut_short = |options: &[&str]| {
        let before = std::fs::read(&state).unwrap();
        let conn = stock(&replica);
        run(&conn, "BEGIN IMMEDIATE").unwrap();
        let mut following = Sidecar::start(&mut follow(options));
        following.until("nothing is noted", || std::fs::read(&state).unwrap() != before);
        following.kill();
        run(&conn, "ROLLBACK").unwrap();
        conn.close().unwrap();
        std::fs::read(&state).unwrap()
    };
    done(&mut follow(&["--once"]));
    let noted = cut_short(&["--txid", &moment]);
    done(&mut follow(&["--txid", &moment]));
    std::fs::write(&state, noted).unwrap();
    assert_eq!(one::<i64>(&stock(&replica), "SELECT count(*) FROM t"), 1);
    // These transactions change other pages than those that the move took back.
    machine.session(&["CREATE TABLE u(x)", "INSERT INTO u VALUES(4)"]);
    machine.once(&place);
    cut_short(&["--once"]);
    done(&mut follow(&["--once"]));
    let (copy, plain) = (stock(&replica), stock(&machine.database()));
    assert_eq!(duralite_testkit::dump(&copy), duralite_testkit::dump(&plain));
    integrity(&copy);
}

/// An archive that Litestream has made has no generations. If a URL names the prefix of one generation, the program
/// treats that prefix as such an archive.
#[test]
fn a_copy_follows_an_archive_without_generations() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)", "INSERT INTO t VALUES(1)"]);
    machine.once(&place);
    let url = format!("{}/g0000000000000001", place.url());
    let listed = done(program().args(["list", &url])).stdout;
    let listed = String::from_utf8(listed).unwrap();
    assert!(listed.starts_with("made by Litestream\n  from transaction 1 "), "{listed}");
    let replica = machine.fixture.path("replica.db");
    for number in 2..5 {
        done(program().args(["follow", &url, "--once"]).arg(&replica));
        {
            let (copy, plain) = (stock(&replica), stock(&machine.database()));
            assert_eq!(duralite_testkit::dump(&copy), duralite_testkit::dump(&plain));
        }
        machine.session(&[&format!("INSERT INTO t VALUES({number})")]);
        machine.once(&place);
    }
    // This archive counts as Litestream's, so Duralite deletes nothing in it.
    done(program().args(["prune", "--keep", "0s", &url]));
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
}

/// A copy can become a primary only if no other process has it open for a moment. If a process reads the copy,
/// `promote` notices that before it fences the old primary.
#[test]
fn a_copy_that_is_read_is_not_promoted_and_nobody_is_fenced() {
    let (old, new, place) =
        (Machine::new(Engine::under_test()), Machine::new(Engine::under_test()), Place::new());
    old.session(&["CREATE TABLE t(x)", "INSERT INTO t VALUES(1)"]);
    old.once(&place);
    done(program().args(["follow", &place.url(), "--once"]).arg(new.database()));
    let reader = stock(&new.database());
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    let said = refused(&mut new.promote(&place));
    assert!(said.contains("nothing was taken over"), "{said}");
    assert_eq!(place.lines(), ["first"]);
    old.session(&["INSERT INTO t VALUES(2)"]);
    old.once(&place);
    reader.close().unwrap();
    assert!(new.fixture.path("app.db-follow").exists());
    done(&mut new.promote(&place));
    assert!(!new.fixture.path("app.db-follow").exists());
    assert_eq!(place.lines(), ["first", "continues"]);
    assert_eq!(one::<i64>(&place.restored(&[]).open(), "SELECT count(*) FROM t"), 2);
}

/// If a promotion fails after the claim, the user can run it again.
#[test]
fn a_promotion_that_fails_behind_the_claim_is_run_again() {
    let (old, new, place) =
        (Machine::new(Engine::under_test()), Machine::new(Engine::under_test()), Place::new());
    old.session(&["CREATE TABLE t(x)", "INSERT INTO t VALUES(1)"]);
    old.once(&place);
    // A file has the name of the directory for the next generation's objects. So the directory cannot be created.
    let objects = place.path().join("g0000000000000002");
    std::fs::write(&objects, "").unwrap();
    refused(&mut new.promote(&place));
    std::fs::remove_file(&objects).unwrap();
    new.fixture.assert_plain(NAME);
    done(&mut new.promote(&place));
    let conn = new.open("");
    run(&conn, "INSERT INTO t VALUES(2)").unwrap();
    conn.close().unwrap();
    new.once(&place);
    assert_eq!(one::<i64>(&place.restored(&[]).open(), "SELECT count(*) FROM t"), 2);
}

/// Even a sidecar that has nothing to archive notices a takeover. It ends, and leaves a record for programs that open
/// the database later.
#[test]
fn inv70_commits_fail_at_once_on_a_machine_whose_archive_was_taken_over() {
    let (old, new, place) =
        (Machine::new(Engine::under_test()), Machine::new(Engine::under_test()), Place::new());
    old.session(&["CREATE TABLE t(x)"]);
    let mut sidecar = old.sidecar(&place);
    let conn = old.open("");
    sidecar.until_archived(&conn);
    conn.close().unwrap();
    sidecar.until_plain(&old);
    done(&mut new.promote(&place));
    let said = sidecar.failed();
    assert!(said.contains("another is the primary") && !said.contains("tried again"), "{said}");
    let fails_at_once = || {
        let conn = patient(&old.fixture.uri(NAME, FOR_EVER));
        assert_eq!(crate::common::status(&conn, "archive"), "fenced");
        run(&conn, "INSERT INTO t VALUES(1)").unwrap_err();
        let why: String = one(&conn, "SELECT duralite_last_error()");
        assert!(why.starts_with("committed here, not in the archive: another primary"), "{why}");
        conn.close().unwrap();
    };
    fails_at_once();
    // A sidecar that starts again fails with the same error. Commits fail at once, even while another program has the
    // database open.
    let conn = old.open("");
    run(&conn, "INSERT INTO t VALUES(2)").unwrap();
    assert!(refused(&mut old.replicate(NAME, &place)).contains("another is the primary"));
    fails_at_once();
    conn.close().unwrap();
    // The fence applies to one archive only. In another archive this machine may be the primary.
    let other = Place::new();
    let identity = DatabaseIdentity::of(&old.database()).unwrap();
    ArchiveFile::enable(&identity, &other.url(), 0, new_token().unwrap()).unwrap();
    old.once(&other);
    let conn = patient(&old.fixture.uri(NAME, ""));
    assert_ne!(crate::common::status(&conn, "archive"), "fenced");
}
