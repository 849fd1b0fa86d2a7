//! Tests that no acknowledged commit is lost if stock SQLite and Duralite use one database at the same time
//! (invariants 1, 2, 7).
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use duralite_mixed::{Acknowledge, Engine, Plan, Report, Side, Verdict, Worker, run, verdict};
use rusqlite::ffi;

fn worker() -> Worker {
    Worker { program: env!("CARGO_BIN_EXE_duralite-mixed").into(), arguments: vec!["worker".into()] }
}

fn seed() -> u64 {
    std::env::var("DURALITE_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// The largest number of rounds in which a test waits for both sides to commit.
const MOST_ROUNDS: u64 = 8;

/// Runs one round with kills and stops, and one without them. In about one of twelve rounds, some Duralite
/// connection is open all the time, so stock SQLite commits nothing. In that case further rounds without
/// kills and stops follow.
fn rounds(engine: Option<Engine>) {
    let all = Plan { modes: true, onlookers: true, second: true, ..Plan::varied(engine, seed()) };
    let killed = Plan { kills: true, stops: true, longest_ms: 60, exclusive: 3, vacuum: true, ..all.clone() };
    let calm = |round| Plan { kills: false, stops: false, seed: seed() + round, ..all.clone() };
    let mut total = Report::default();
    let is_mixed =
        |total: &Report| total.stock > 0 && (engine.is_none() || (total.ours > 0 && total.refusals() > 0));
    for plan in [killed].into_iter().chain((1..MOST_ROUNDS).map(calm)) {
        let is_first = plan.kills;
        let report = run(&plan, &worker()).unwrap_or_else(|error| panic!("{error:#}"));
        eprintln!("{plan}: {report}");
        total.add(&report);
        if !is_first && is_mixed(&total) {
            break;
        }
    }
    assert!(total.kills > 0 && total.stops > 0, "{total}");
    assert!(is_mixed(&total), "the two did not meet: {total}");
}

#[test]
fn stock_sqlite_alone_loses_nothing() {
    rounds(None);
}

#[test]
fn inv02_stock_sqlite_beside_nvwal() {
    rounds(Some(Engine::NVWAL));
}

#[test]
fn inv02_stock_sqlite_beside_waldio() {
    rounds(Some(Engine::WALDIO));
}

#[test]
fn inv02_stock_sqlite_beside_ppl() {
    rounds(Some(Engine::PPL));
}

#[test]
fn inv02_stock_sqlite_beside_scratchpad() {
    rounds(Some(Engine::SCRATCHPAD));
}

/// A control. A test that cannot notice a loss would always pass. So this test checks that the rounds notice
/// a writer that records an acknowledgement too early.
#[test]
fn an_early_acknowledgement_is_found() {
    let plan =
        Plan { acknowledge: Acknowledge::BeforeCommit, kills: true, millis: 20_000, ..Plan::varied(None, 3) };
    let Err(error) = run(&plan, &worker()) else { panic!("nobody noticed") };
    let message = format!("{error:#}");
    assert!(message.contains("lost: "), "another failure: {message}");
    assert!(message.contains("to repeat: ") && message.contains("seed=3"), "{message}");
    // The message names the directories that the round has kept. Remove them.
    for kept in message.split([' ', ',', ';']).filter(|word| word.contains("/duralite-mixed-")) {
        let _ = std::fs::remove_dir_all(kept);
    }
}

#[test]
fn the_text_of_a_plan_repeats_it() {
    for seed in 0..20 {
        for engine in [None, Some(Engine::WALDIO)] {
            let plan = Plan {
                directory: (seed % 3 == 0).then(|| "/somewhere".into()),
                ..Plan::varied(engine, seed)
            };
            // The text is quoted for a shell, so remove the quotes.
            let text = plan.to_string().replace('\'', "");
            assert_eq!(Plan::parse(text.split(' ')).unwrap().arguments(), plan.arguments());
        }
    }
    assert!(Plan::parse(["seed"]).is_err());
    assert!(Plan::parse(["colour=red"]).is_err());
    assert!(Plan::parse(["engine=none"]).is_err());
}

#[test]
fn only_errors_that_stock_sqlite_gives_are_excused() {
    let damage = [ffi::SQLITE_CORRUPT, ffi::SQLITE_IOERR_DELETE, ffi::SQLITE_IOERR_READ, ffi::SQLITE_FULL];
    for side in [Side::Ours, Side::Stock] {
        for code in damage {
            assert_eq!(verdict(side, true, true, code), Verdict::Failure);
        }
        assert_eq!(verdict(side, false, true, ffi::SQLITE_CANTOPEN), Verdict::Failure);
        assert_eq!(verdict(side, false, true, ffi::SQLITE_BUSY_SNAPSHOT), Verdict::Again);
        // If no process uses Duralite, no process may get this error.
        assert_eq!(verdict(side, false, false, ffi::SQLITE_NOTADB), Verdict::Failure);
        assert_eq!(verdict(side, true, true, ffi::SQLITE_READONLY_RECOVERY), Verdict::Reopen);
    }
    assert_eq!(verdict(Side::Stock, false, true, ffi::SQLITE_NOTADB), Verdict::Reopen);
    assert_eq!(verdict(Side::Ours, false, true, ffi::SQLITE_NOTADB), Verdict::Failure);
    assert_eq!(verdict(Side::Ours, false, true, ffi::SQLITE_READONLY), Verdict::Failure);
}
