//! A part of the schedules of each scenario. `make proof` explores more.
//!
//! A test that fails prints schedules that broke a rule; `duralite-locking replay SCENARIO 'SCHEDULE'` shows one step by step.

#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::process::{Command, Output};

/// Names a fault that a build with the feature `controls` puts back into the guard. Not a name of a setting: Duralite
/// refuses those that it does not know.
const CONTROL: &str = "LOCKING_CONTROL";

/// Explores a scenario in a program of its own.
fn explore(scenario: &str, settings: &[&str], control: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite-locking"));
    command.args(["explore", scenario]).args(settings).env_remove(CONTROL);
    if let Some(control) = control {
        command.env(CONTROL, control);
    }
    let output = command.output().unwrap();
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// Explores a scenario in which no rule may be broken. Each schedule begins as the one that it was made of: nothing that a process
/// does depends on anything but the schedule.
fn finds_nothing_in(scenario: &str, settings: &[&str]) {
    let output = explore(scenario, settings, None);
    assert!(output.status.success(), "{scenario}: a rule was broken, see above");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(", 0 diverged"), "{scenario}: a schedule was not repeated");
}

fn finds_nothing(scenario: &str) {
    for settings in [["limit=50", "random=25", "engine=waldio"], ["limit=8", "random=4", "engine=nvwal"]] {
        finds_nothing_in(scenario, &settings);
    }
}

/// With a fault put back into the guard, or without Duralite at all, something is found.
fn finds(scenario: &str, control: Option<&str>, what: &str) {
    let output = explore(scenario, &["limit=400", "random=400", &format!("until={what}")], control);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.code() == Some(1) && text.contains(what),
        "{scenario}: nothing like `{what}` was found"
    );
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        const SCENARIOS: &[&str] = &[$(stringify!($name)),*];
        mod finds_nothing {
            $(#[test]
            fn $name() {
                super::finds_nothing(stringify!($name));
            })*
        }
    };
}

scenarios! {
    leaving_wal_while_a_log_is_opened,
    exclusive_over_an_ordinary_wal,
    reading_while_another_is_exclusive,
    reading_while_another_leaves_wal,
    a_hot_journal_is_left_meanwhile,
    a_hot_journal_is_found,
    an_ordinary_wal_is_found,
    a_log_is_found,
    into_wal_by_either,
    to_and_fro_by_ours,
    exclusive_by_ours,
    transactions_beside_stock,
    stock_alone,
    ours_leaves_wal,
}

/// With a hot journal left among the rest, while the other one waits to open the log.
#[test]
fn finds_nothing_wherever_one_dies_that_leaves_wal() {
    let every_death = ["preemptions=0", "deaths=1", "limit=10000", "random=0"];
    finds_nothing_in("leaving_wal_while_a_log_is_opened", &every_death);
}

#[test]
fn every_scenario_is_a_test() {
    let output = Command::new(env!("CARGO_BIN_EXE_duralite-locking")).arg("list").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let listed: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
    let tested: Vec<&str> = SCENARIOS.iter().copied().chain(["stock_leaves_wal"]).collect();
    assert_eq!(listed, tested);
}

#[test]
fn a_schedule_is_repeated_by_its_text() {
    let run = || {
        let plan = "order=1,0 12>0 31|1 60x";
        let program = env!("CARGO_BIN_EXE_duralite-locking");
        Command::new(program).args(["replay", "into_wal_by_either", plan]).output().unwrap().stdout
    };
    let first = run();
    assert!(first.len() > 1000);
    assert_eq!(String::from_utf8(first).unwrap(), String::from_utf8(run()).unwrap());
}

/// Stock SQLite itself loses commits where one leaves WAL mode. It shows that the rules can be broken.
#[test]
fn control_stock_sqlite_leaves_wal_mode() {
    finds("stock_leaves_wal", None, "are not there");
    finds("stock_leaves_wal", None, "commits to an ordinary -wal, and the header says Rollback");
}

/// SHARED is given up while the log is opened, and what SQLite has read before is not looked at again.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_lapse() {
    let what = "commits to an ordinary -wal, and the header says Rollback";
    finds("leaving_wal_while_a_log_is_opened", Some("lapse"), what);
}

/// EXCLUSIVE is given up while an ordinary `-wal` is checkpointed, and it is not said that it is gone.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_absorb() {
    finds("exclusive_over_an_ordinary_wal", Some("absorb"), "deletes the -wal that process 1 uses");
}

/// Who may only read goes on without SHARED where it did not come back.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_unlocked() {
    let what = "believes to hold SHARED after `open`, and the base holds nothing";
    finds("reading_while_another_is_exclusive", Some("unlocked"), what);
}
