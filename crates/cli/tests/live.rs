//! `duralite info` and `verify` while programs write the database.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use duralite_testkit::{Engine, Fixture};

const CALLS: u32 = 60;

fn command(arguments: &[&str], fixture: &Fixture) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.args(arguments).arg("--log-dir").arg(fixture.log_dir()).arg(fixture.path("l.db"));
    command.output().unwrap()
}

/// Every call of the command has to succeed. Meanwhile the log often starts again from its beginning, and the writer
/// sometimes closes the database and opens it again.
#[test]
fn inv12_a_healthy_log_is_never_called_damaged_beside_its_writer() {
    for engine in Engine::all() {
        for arguments in [&["info", "--json"][..], &["verify"], &["verify", "--frames", "--json"]] {
            beside_a_writer(engine, arguments);
        }
    }
}

fn beside_a_writer(engine: Engine, arguments: &[&str]) {
    let fixture = Fixture::on(engine);
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let keeper = fixture.open("l.db");
    keeper.execute_batch("CREATE TABLE t(a, b)").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let conn = fixture.open("l.db");
                conn.execute_batch("PRAGMA wal_autocheckpoint=50").unwrap();
                for row in 0..500 {
                    conn.execute("REPLACE INTO t(rowid, a, b) VALUES(?1, ?1, randomblob(700))", [row % 200])
                        .unwrap();
                    commits.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let before = commits.load(Ordering::Relaxed);
        for call in 0..CALLS {
            let output = command(arguments, &fixture);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            if !output.status.success() {
                stop.store(true, Ordering::Relaxed);
                panic!("{engine:?} {arguments:?} {call}: {said}");
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(commits.load(Ordering::Relaxed) > before, "nobody has written meanwhile");
    });
}

/// `info` prints the state first, then the processes that have the database open, with their programs.
#[test]
fn info_says_the_state_first_and_who_has_the_database_open() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open("l.db");
    conn.execute_batch("CREATE TABLE t(a)").unwrap();
    let said = String::from_utf8(command(&["info"], &fixture).stdout).unwrap();
    let names: Vec<_> = said.lines().filter_map(|line| line.split_whitespace().next()).take(4).collect();
    assert_eq!(names, ["state", "database", "open_in", "engine"], "{said}");
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("open_in           process {}, {}\n", std::process::id(), own.trim_end());
    assert!(said.contains(&holder), "{said}");
    let json = command(&["info", "--json"], &fixture).stdout;
    let facts: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(facts["open_in"][0]["pid"], std::process::id(), "{facts:#}");
}
