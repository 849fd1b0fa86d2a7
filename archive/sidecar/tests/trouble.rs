//! Tests what can go wrong around the sidecar: places that cannot be reached or are full, wrong arguments, and a second
//! sidecar.

use std::path::Path;

use duralite_ltx::{HEADER_BYTES, Header};
use duralite_testkit::{Actor, Engine, Fixture, TinyDirectory, run};
use rustix::process::Signal;

use crate::common::{FOR_EVER, Machine, NAME, Place, Sidecar, assert_equal, done, program, refused, until};

#[test]
fn an_archive_that_is_away_for_a_while_is_waited_for() {
    for engine in Engine::all() {
        let (machine, place) = (Machine::new(engine), Place::new());
        machine.session(&["CREATE TABLE t(x)"]);
        let mut sidecar = machine.sidecar(&place);
        let conn = machine.open("");
        run(&conn, "INSERT INTO t VALUES(1)").unwrap();
        sidecar.until_archived(&conn);
        place.take_away();
        let mut hasty = Actor::sql(&machine.fixture.uri(NAME, "replicated=on&replicated_timeout=200"));
        assert!(hasty.run("INSERT INTO t VALUES(2)").starts_with("error"), "{engine:?}");
        let why = hasty.run("SELECT duralite_last_error()");
        assert!(why.starts_with("committed here, not in the archive"), "{why}");
        let mut patient = Actor::sql(&machine.fixture.uri(NAME, FOR_EVER));
        patient.tell("INSERT INTO t VALUES(3)");
        std::thread::sleep(std::time::Duration::from_millis(200));
        place.bring_back();
        assert_eq!(patient.line(), "", "{engine:?}");
        sidecar.until_archived(&conn);
        hasty.finish();
        patient.finish();
        conn.close().unwrap();
        sidecar.until_plain(&machine);
        sidecar.end();
        assert_eq!(place.lines(), ["first"]);
        assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &format!("{engine:?}"));
    }
}

#[test]
fn an_archive_that_is_away_when_the_sidecar_starts_or_ends_is_no_obstacle() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    machine.once(&place);
    machine.session(&["INSERT INTO t VALUES(1)"]);
    place.take_away();
    let sidecar = machine.sidecar(&place);
    std::thread::sleep(std::time::Duration::from_secs(1));
    sidecar.end();
    let sidecar = machine.sidecar(&place);
    let conn = machine.open("");
    run(&conn, "INSERT INTO t VALUES(2)").unwrap();
    place.bring_back();
    sidecar.end_after(conn, &machine);
    assert_eq!(place.lines(), ["first"]);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
}

#[test]
fn a_database_has_one_sidecar() {
    let (machine, place, other) = (Machine::new(Engine::under_test()), Place::new(), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    let mut sidecar = machine.sidecar(&place);
    let conn = machine.open("");
    sidecar.until_archived(&conn);
    assert!(refused(machine.replicate(NAME, &place).arg("--once")).contains("another process replicates"));
    assert!(refused(machine.replicate(NAME, &other).arg("--once")).contains("another process replicates"));
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    sidecar.end_after(conn, &machine);
    let said = refused(machine.replicate(NAME, &other).arg("--once"));
    assert!(said.contains("duralite enable --archive"), "{said}");
    assert!(!other.path().exists());
    // An archive holds one database, so the sidecar refuses to archive another one there.
    let stranger = Machine::new(Engine::under_test());
    stranger.session(&["CREATE TABLE strange(x)"]);
    let said = refused(stranger.replicate(NAME, &place).arg("--once"));
    assert!(said.contains("another database"), "{said}");
    assert_eq!(place.lines(), ["first"]);
}

#[test]
fn a_url_that_is_wrong_is_refused_and_not_remembered() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    for url in ["ftp://somewhere/x", "nothing", "s3://", "file://"] {
        let mut command = program();
        command.arg("replicate").arg(machine.database()).arg(url).args(machine.options()).arg("--once");
        refused(&mut command);
    }
    machine.once(&place);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
    let missing = machine.fixture.path("missing.db");
    refused(program().arg("replicate").arg(&missing).arg(place.url()));
    assert!(!missing.exists());
    refused(program().arg("restore").arg(place.url()).arg(machine.database()));
    refused(program().arg("restore").arg(place.url()).arg(&missing).args(["--txid", "1000000"]));
    refused(program().arg("follow").arg(place.url()).arg(machine.database()));
    refused(program().arg("promote").arg(place.url()).arg(machine.database()));
    assert!(!missing.exists());
    assert_eq!(place.lines(), ["first"]);
    machine.once(&place);
}

/// Returns the text of a configuration for databases in one directory, each with its own archive.
fn config(fixture: &Fixture, places: &[(&str, &Place)]) -> String {
    let log_dir = fixture.log_dir().display();
    let settings = fixture.engine().settings(fixture.log_dir());
    let settings: Vec<String> = settings
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| format!("{name} = \"{value}\""))
        .collect();
    let one = |(name, place): &(&str, &Place)| {
        format!(
            "[[database]]\npath = \"{}\"\narchive = \"{}\"\ninterval = \"10ms\"\nlog_dir = \"{log_dir}\"\nnvram_dir = \"{log_dir}\"\nsettings = {{ {} }}\n",
            fixture.path(name).display(),
            place.url(),
            settings.join(", ")
        )
    };
    places.iter().map(one).collect()
}

#[test]
fn one_process_replicates_several_databases_and_goes_on_if_one_of_them_fails() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let places = [Place::new(), Place::new(), Place::new()];
        let names = ["a.db", "b.db", "c.db"];
        let conns = names.map(|name| fixture.open(name));
        for conn in &conns {
            run(conn, "CREATE TABLE t(x)").unwrap();
        }
        let file = fixture.path("duralite.toml");
        std::fs::write(
            &file,
            config(&fixture, &[(names[0], &places[0]), (names[1], &places[1]), (names[2], &places[2])]),
        )
        .unwrap();
        let command = || {
            let mut command = program();
            command.args(["replicate", "--config"]).arg(&file);
            command
        };
        let mut sidecar = Sidecar::start(&mut command());
        for conn in &conns {
            run(conn, "INSERT INTO t VALUES(1)").unwrap();
            sidecar.until_archived(conn);
        }
        // Another machine takes the first archive over.
        let taken = Machine::new(engine);
        done(&mut taken.promote(&places[0]));
        run(&conns[0], "INSERT INTO t VALUES(2)").unwrap();
        sidecar.until("the first one goes on", || {
            crate::common::status(&conns[0], "archive").contains("fenced")
                || !crate::common::status(&conns[0], "archive").contains("sidecar runs")
        });
        for conn in &conns[1..] {
            run(conn, "INSERT INTO t VALUES(2)").unwrap();
            sidecar.until_archived(conn);
        }
        for conn in conns {
            conn.close().unwrap();
        }
        sidecar.until("a guard is on", || names[1..].iter().all(|name| !fixture.is_guarded(name)));
        sidecar.signal(Signal::TERM);
        let said = sidecar.failed();
        assert!(said.contains("a.db") && !said.contains("not replicated any longer: b.db"), "{said}");
        for (name, place) in names.iter().zip(&places).skip(1) {
            assert_equal(&place.restored(&[]).bytes, &std::fs::read(fixture.path(name)).unwrap(), name);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let said = refused(program().args(["replicate", "--config"]).arg(dir.path().join("none.toml")));
    assert!(said.contains("none.toml"), "{said}");
    refused(program().args(["replicate", "--config"]).arg(dir.path()));
}

#[test]
fn a_snapshot_that_takes_long_ends_when_the_sidecar_is_told_to() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)", "INSERT INTO t VALUES(randomblob(100000))"]);
    let sidecar = Sidecar::start(machine.replicate(NAME, &place).args(["--limit", "1"]));
    let begun = || {
        let names = std::fs::read_dir(place.path().join("generations")).into_iter().flatten();
        names
            .map(|entry| entry.unwrap().path())
            .any(|path| path.extension().is_some_and(|end| end == "start"))
    };
    until("no generation begins", begun);
    sidecar.end();
    machine.session(&["INSERT INTO t VALUES(1)"]);
    machine.once(&place);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
}

/// The sidecar must report the failure at once, and not only when the next regular snapshot is due, an hour later.
#[test]
fn a_snapshot_that_fails_beside_the_commits_is_reported_at_once() {
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    machine.once(&place);
    // Give the newest snapshot an old time, so that another one is due. The new snapshot has the same last transaction
    // but different contents, so its upload fails.
    let snapshots = std::fs::read_dir(place.path().join("g0000000000000001/ltx/9")).unwrap();
    let paths: Vec<_> = snapshots.map(|entry| entry.unwrap().path()).collect();
    let [path] = paths.as_slice() else { panic!("{paths:?}") };
    let mut bytes = std::fs::read(path).unwrap();
    let head = bytes.first_chunk_mut::<HEADER_BYTES>().unwrap();
    *head = Header { timestamp_ms: 1, ..Header::decode(head).unwrap() }.encode().unwrap();
    std::fs::write(path, bytes).unwrap();
    let conn = machine.open("");
    let mut sidecar = Sidecar::start(machine.replicate(NAME, &place).args(["--snapshot-every", "1h"]));
    until("nothing is reported", || sidecar.said().contains("take a snapshot: "));
    conn.close().unwrap();
    sidecar.until_plain(&machine);
    sidecar.end();
}

/// Returns the path of a database in a small directory.
fn small(dir: &Path) -> String {
    dir.join(NAME).display().to_string()
}

#[test]
fn a_backlog_for_which_there_is_no_space_costs_a_snapshot() {
    let Some(tiny) = TinyDirectory::new(1500) else { return };
    for engine in Engine::all() {
        let (machine, place) = (Machine::new(engine), Place::new());
        let name = small(tiny.path());
        let path = tiny.path().join(NAME);
        let uri = machine.fixture.uri(&name, "");
        let session = |statements: &[&str]| {
            let conn = crate::common::patient(&uri);
            for statement in statements {
                run(&conn, statement).unwrap();
            }
            conn.close().unwrap();
        };
        session(&[
            "PRAGMA journal_mode=WAL",
            "CREATE TABLE t(x)",
            "INSERT INTO t VALUES(randomblob(600000))",
        ]);
        done(machine.replicate(&name, &place).arg("--once"));
        // The database does not grow, and the directory has no space for a second copy of it.
        session(&["UPDATE t SET x = randomblob(600000)", "UPDATE t SET x = randomblob(600000)"]);
        assert!(!machine.fixture.is_guarded(&name), "{engine:?}");
        done(machine.replicate(&name, &place).arg("--once"));
        assert_equal(&place.restored(&[]).bytes, &std::fs::read(&path).unwrap(), &format!("{engine:?}"));
        assert_eq!(place.lines(), ["first", "gap"], "{engine:?}");
        session(&["INSERT INTO t VALUES(1)"]);
        done(machine.replicate(&name, &place).arg("--once"));
        assert_equal(&place.restored(&[]).bytes, &std::fs::read(&path).unwrap(), &format!("{engine:?}"));
        assert_eq!(place.lines(), ["first", "gap"], "{engine:?}");
        for entry in std::fs::read_dir(tiny.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

#[test]
fn temporary_files_for_which_there_is_no_space_are_tried_again() {
    let Some(tiny) = TinyDirectory::new(1000) else { return };
    let (machine, place) = (Machine::new(Engine::under_test()), Place::new());
    machine.session(&["CREATE TABLE t(x)"]);
    let mut sidecar = Sidecar::start(machine.replicate(NAME, &place).env("TMPDIR", tiny.path()));
    let conn = machine.open("");
    sidecar.until_archived(&conn);
    run(&conn, "INSERT INTO t VALUES(randomblob(30000000))").unwrap();
    let mut seen = String::new();
    until("it says nothing", || {
        seen = sidecar.said();
        seen.contains("No space left")
    });
    run(&conn, "INSERT INTO t VALUES(1)").unwrap();
    // The sidecar runs until it gets the order to end.
    sidecar.end();
    let sidecar = machine.sidecar(&place);
    sidecar.end_after(conn, &machine);
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), "the end");
}

#[test]
fn a_store_without_credentials_is_refused_at_once() {
    let url = "s3://bucket/prefix?endpoint=http://127.0.0.1:9&region=us-east-1";
    let said = |without: &[&str], with: &[(&str, &str)]| {
        let mut list = program();
        for name in without {
            list.env_remove(name);
        }
        refused(list.args(["list", url]).envs(with.iter().copied()))
    };
    let both = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    assert!(said(&both, &[]).contains("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"));
    assert!(said(&both[..1], &[]).contains("AWS_ACCESS_KEY_ID is not set"));
    assert!(said(&both[1..], &[]).contains("AWS_SECRET_ACCESS_KEY is not set"));
}
