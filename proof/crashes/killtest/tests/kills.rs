//! Kills processes at any instruction, and checks that nothing acknowledged is lost (invariants 4, 7, 11).
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use duralite_killtest::{Acknowledge, Engine, Plan, Report, Worker, run, soak_plan};

fn worker() -> Worker {
    Worker { program: env!("CARGO_BIN_EXE_duralite-killtest").into(), arguments: vec!["worker".into()] }
}

fn seed(default: u64) -> u64 {
    std::env::var("DURALITE_SEED").map_or(default, |seed| seed.parse().unwrap())
}

fn kills(plan: &Plan) -> Report {
    let report = run(plan, &worker(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{plan}: {report}");
    assert!(report.total_kills() >= u64::from(plan.kills) && report.acknowledged > 0, "{report}");
    report
}

#[test]
fn inv07_150_kills_on_nvwal() {
    let report = kills(&Plan::new(Engine::NVWAL, 150, seed(1)));
    assert!(report.wipes > 0 && report.settled > 0 && report.full_checks > report.settled, "{report}");
}

#[test]
fn inv07_150_kills_on_waldio() {
    let report = kills(&Plan::new(Engine::WALDIO, 150, seed(1)));
    assert!(report.wipes > 0 && report.settled > 0 && report.full_checks > report.settled, "{report}");
}

#[test]
fn inv07_150_kills_on_ppl() {
    let report = kills(&Plan { autocheckpoint: Some(20), ..Plan::new(Engine::PPL, 150, seed(1)) });
    assert!(report.wipes > 0 && report.settled > 0 && report.full_checks > report.settled, "{report}");
}

/// Processes write concurrently, and the test kills them while they begin, read, validate and publish.
/// Another process writes with the WRITE lock. An unfinished transaction of a dead process must have no
/// effect, and no process may wait for a dead one.
fn concurrent_writers_are_killed(engine: Engine) {
    // The database of this seed has no pointer maps, so that connections lease free pages.
    let seed = seed(6);
    let report = kills(&Plan { settings: String::new(), ..Plan::concurrent(engine, 60, seed) });
    assert!(report.wipes > 0 && report.settled > 0, "{report}");
    if std::env::var_os("KILLTEST_LONG").is_some() {
        for seed in seed + 1..seed + 4 {
            kills(&Plan::concurrent(engine, 300, seed));
            kills(&Plan { forkers: 1, pauses: true, ..Plan::concurrent(engine, 100, seed) });
        }
    }
}

#[test]
fn inv64_kills_of_concurrent_writers_on_nvwal() {
    concurrent_writers_are_killed(Engine::NVWAL);
}

#[test]
fn inv64_kills_of_concurrent_writers_on_waldio() {
    concurrent_writers_are_killed(Engine::WALDIO);
}

#[test]
fn inv64_kills_of_concurrent_writers_on_ppl() {
    concurrent_writers_are_killed(Engine::PPL);
}

#[test]
fn inv64_kills_of_concurrent_writers_on_scratchpad() {
    concurrent_writers_are_killed(Engine::SCRATCHPAD);
}

#[test]
fn inv11_kills_with_threads_in_the_background() {
    let settings = String::from("background_checkpoint=60&layout=embedded");
    kills(&Plan { settings, ..Plan::new(Engine::WALDIO, 60, seed(2)) });
    // The process that finds a page's log full merges the page.
    let settings = String::from("background_checkpoint=1&overflow_bytes=0&log_limit=33554432");
    kills(&Plan { settings, autocheckpoint: Some(3), ..Plan::new(Engine::PPL, 60, seed(2)) });
}

#[test]
fn inv11_only_the_death_of_all_loses_what_group_synch_may_lose() {
    let settings = String::from("group_synch=16&group_interval_ms=2");
    kills(&Plan { settings, ..Plan::new(Engine::WALDIO, 60, seed(3)) });
}

/// A worker acknowledges too early. The auditor must notice the loss.
fn an_early_acknowledgement_is_found(engine: Engine) {
    early_acknowledgements_are_found(Plan::new(engine, 400, seed(4)));
}

fn early_acknowledgements_are_found(plan: Plan) {
    let plan = Plan { acknowledge: Acknowledge::BeforeCommit, ..plan };
    let Err(error) = run(&plan, &worker(), &mut |_| {}) else { panic!("nobody noticed") };
    let message = error.to_string();
    let found = message.contains("lost: ") || message.contains("was acknowledged");
    assert!(found, "another failure: {message}");
    assert!(message.contains("to repeat: ") && message.contains("seed=4"), "{message}");
    // Delete the directories that the message says are kept.
    for kept in message.split([' ', ',', ';']).filter(|word| word.contains("/duralite-killtest-")) {
        let _ = std::fs::remove_dir_all(kept);
    }
}

#[test]
fn inv04_an_early_acknowledgement_on_nvwal_is_found() {
    an_early_acknowledgement_is_found(Engine::NVWAL);
}

#[test]
fn inv04_an_early_acknowledgement_on_waldio_is_found() {
    an_early_acknowledgement_is_found(Engine::WALDIO);
}

#[test]
fn inv04_an_early_acknowledgement_on_ppl_is_found() {
    an_early_acknowledgement_is_found(Engine::PPL);
}

/// All processes are concurrent writers, so that a concurrent writer makes the early acknowledgement.
#[test]
fn inv04_an_early_acknowledgement_of_a_concurrent_writer_is_found() {
    let plan = Plan { writers: 0, openers: 0, concurrent: 4, ..Plan::new(Engine::NVWAL, 400, seed(4)) };
    early_acknowledgements_are_found(plan);
}

/// Runs everything that a soak does, for a short time.
fn everything(engine: Engine) {
    for seed in seed(5)..seed(5) + 2 {
        let plan = Plan { kills: 40, seconds: 0, users: 1, longest_ms: 20, ..soak_plan(engine, seed) };
        kills(&plan);
    }
}

#[test]
fn inv14_forks_renames_and_stops_on_nvwal() {
    everything(Engine::NVWAL);
}

#[test]
fn inv14_forks_renames_and_stops_on_waldio() {
    everything(Engine::WALDIO);
}

#[test]
fn inv14_forks_renames_and_stops_on_ppl() {
    everything(Engine::PPL);
}
