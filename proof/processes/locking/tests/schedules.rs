//! Explores some schedules of each scenario; `make proof` explores more.
//!
//! A test that fails prints the schedules that broke a rule. `duralite-locking replay SCENARIO 'SCHEDULE'`
//! shows such a schedule step by step.

#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::process::{Command, Output};

/// The environment variable that names a fault. A build with the feature `controls` puts this fault back into
/// the guard. The variable's name must not look like a setting of Duralite, because Duralite refuses unknown
/// settings.
const CONTROL: &str = "LOCKING_CONTROL";

/// Explores a scenario in a separate process.
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

/// Explores a scenario in which no rule may be broken. Each schedule extends an earlier one, and must begin
/// with the same steps as that one. Otherwise the behaviour of a process depends on something other than the
/// schedule.
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

/// Checks that the exploration finds `what`. With `control`, Duralite's guard has this fault. Otherwise the
/// scenario uses only stock SQLite.
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

/// One process leaves WAL mode, and dies at one of its steps. There is a schedule for every step. In some of
/// these schedules, the process leaves a hot journal while another process waits to open the log.
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

/// Stock SQLite loses commits when a connection leaves WAL mode. So this test shows that the exploration
/// notices broken rules.
#[test]
fn control_stock_sqlite_leaves_wal_mode() {
    finds("stock_leaves_wal", None, "are not there");
    finds("stock_leaves_wal", None, "commits to an ordinary -wal, and the header says Rollback");
}

/// The fault: the guard releases SHARED while it opens the log. After that, it does not check whether the
/// pages that SQLite had read before are still current.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_lapse() {
    let what = "commits to an ordinary -wal, and the header says Rollback";
    finds("leaving_wal_while_a_log_is_opened", Some("lapse"), what);
}

/// The fault: the guard releases EXCLUSIVE while Duralite checkpoints an ordinary `-wal`, and does not tell
/// SQLite that the lock is lost.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_absorb() {
    finds("exclusive_over_an_ordinary_wal", Some("absorb"), "deletes the -wal that process 1 uses");
}

/// The fault: a read-only connection fails to take SHARED again, and continues without it.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_unlocked() {
    let what = "believes to hold SHARED after `open`, and the base holds nothing";
    finds("reading_while_another_is_exclusive", Some("unlocked"), what);
}

#[test]
fn a_misspelt_bound_is_refused() {
    let program = env!("CARGO_BIN_EXE_duralite-locking");
    let output = Command::new(program).args(["explore", SCENARIOS[0], "preemtions=3"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no setting preemtions"));
}
