//! Compares the system calls of transactions in rollback mode with the calls of stock SQLite.

use std::collections::BTreeMap;
use std::fs;

use duralite_testkit::{Actor, Engine, Fixture, stock};

use super::{MODES, NAME, make};

const ROUNDS: usize = 10;

/// The number of calls. The key is the name of the call, and what the file's name adds to the database's
/// name.
type Calls = BTreeMap<(String, String), usize>;

/// Counts the calls of `ROUNDS` transactions that read and `ROUNDS` transactions that write. All files exist
/// before the count begins.
fn calls(fixture: &Fixture, uri: &str, mode: &str) -> Option<Calls> {
    make(fixture);
    let trace = fixture.path("trace");
    let mut actor = Actor::traced(uri, &trace)?;
    actor.run(&format!("PRAGMA journal_mode={mode}"));
    for number in 0..2 {
        assert_eq!(actor.run(&format!("UPDATE t SET b = {number} WHERE a = 3")), "");
    }
    let marks = ["begins here", "ends here"].map(|mark| format!("SELECT '{mark}'"));
    actor.run(&marks[0]);
    for number in 0..ROUNDS {
        assert_eq!(actor.run("SELECT count(*) FROM t"), "3");
        assert_eq!(actor.run(&format!("UPDATE t SET b = {} WHERE a = 3", number + 7)), "");
    }
    actor.run(&marks[1]);
    actor.finish();
    let text = fs::read_to_string(&trace).unwrap();
    let lines = text.lines().skip_while(|line| !line.contains(&marks[0]));
    let lines = lines.take_while(|line| !line.contains(&marks[1]));
    let mut calls = Calls::new();
    let start = fixture.path(NAME).display().to_string();
    for line in lines {
        let Some((call, arguments)) = line.split_once('(') else { continue };
        let Some((_, end)) = arguments.split_once(&start) else { continue };
        let call = call.rsplit(' ').next().unwrap().to_owned();
        let end = end.split(['>', '"', '<']).next().unwrap().to_owned();
        *calls.entry((call, end)).or_default() += 1;
    }
    Some(calls)
}

fn of_stock(mode: &str) -> Option<Calls> {
    let fixture = Fixture::on(Engine::NVWAL);
    drop(stock(&fixture.path(NAME)));
    calls(&fixture, &format!("file:{}", fixture.path(NAME).display()), mode)
}

/// If an engine keeps no rollback journals, Duralite does not look for one.
#[test]
fn an_engine_without_rollback_journals_costs_no_call_more() {
    for mode in MODES {
        let Some(theirs) = of_stock(mode) else { return };
        for engine in [Engine::NVWAL, Engine::WALDIO] {
            let fixture = Fixture::on(engine);
            let ours = calls(&fixture, &fixture.uri(NAME, ""), mode).unwrap();
            let mut theirs = theirs.clone();
            // Duralite reads the guard when SQLite looks for a WAL, and before SQLite writes page 1.
            *theirs.get_mut(&("pread64".to_owned(), String::new())).unwrap() += 3 * ROUNDS;
            assert_eq!(ours, theirs, "{engine:?}, {mode}");
        }
    }
}

/// The journal and the guard cost no system call.
#[test]
fn a_transaction_costs_sqlites_locks_and_what_is_done_to_the_database() {
    for mode in MODES {
        let Some(theirs) = of_stock(mode) else { return };
        // Leave out the test engine `sideundo`, which reads files of its own in each operation.
        for engine in
            Engine::keeping_rollback_journals().into_iter().filter(|engine| engine.name() != "sideundo")
        {
            let fixture = Fixture::on(engine);
            let ours = calls(&fixture, &fixture.uri(NAME, ""), mode).unwrap();
            for ((call, end), count) in &ours {
                let most = theirs.get(&(call.clone(), end.clone())).copied().unwrap_or(0);
                assert!(end.is_empty() && *count <= most, "{engine:?}, {mode}: {count} {call} {end}");
            }
        }
    }
}
