//! Explores schedules of transactions that commit at the same time. For each race, a test runs schedules of
//! coarse steps in which no process dies: all of them, or the first ones. It also runs random schedules, in
//! which a process may die.
//!
//! A test that fails prints the schedules in which something was wrong. `duralite-locking race replay MIX
//! 'SCHEDULE'` shows such a schedule step by step. `make test-long` sets `LOCKING_LONG=1`. Without that
//! variable a test runs at most the first 250 coarse schedules of a race, and only a third of the random
//! ones. With `LOCKING_RACES=N` a test runs N times as many schedules. `LOCKING_SEED` sets the seed of the
//! random ones.

#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::process::{Command, Output};

/// The environment variable that names a fault. A build with the feature `controls` puts this fault back into
/// Duralite.
const CONTROL: &str = "LOCKING_CONTROL";

fn number(variable: &str) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The largest number of coarse schedules of a race in a short run.
const COARSE: u64 = 250;

fn is_long() -> bool {
    std::env::var_os("LOCKING_LONG").is_some()
}

fn explore(mix: &str, settings: &[String], control: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite-locking"));
    command.args(["race", "explore", mix]).args(settings).env_remove(CONTROL);
    if let Some(control) = control {
        command.env(CONTROL, control);
    }
    let output = command.output().unwrap();
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// Explores a race in which nothing may go wrong. On `nvwal`, runs coarse schedules without deaths, and then
/// random schedules. After that, runs fewer random schedules on `waldio` and on `ppl`, whose processes also
/// wait for a lock in the segment. If `all` is set, `limit` must be large enough for all coarse schedules.
fn inv59_one_order_explains(mix: &str, limit: u64, all: bool, random: u64) {
    let (limit, all, random) = if is_long() {
        (limit, all, random)
    } else {
        (limit.min(COARSE), all && limit <= COARSE, random / 3)
    };
    for (engine, limit, deaths, random) in [
        ("nvwal", limit, 0, 0),
        ("nvwal", 0, 1, random),
        ("waldio", 0, 1, random / 3),
        ("ppl", 0, 2, random / 3),
    ] {
        let is_complete = is_explained(mix, engine, limit, deaths, random);
        assert!(limit == 0 || !all || is_complete, "{mix}: there are more schedules than {limit}");
    }
}

/// Explores a race in which nothing may go wrong. Returns whether the exploration ran all schedules of coarse
/// steps.
fn is_explained(mix: &str, engine: &str, limit: u64, deaths: u64, random: u64) -> bool {
    let (times, seed) = (number("LOCKING_RACES"), number("LOCKING_SEED"));
    let settings = [
        format!("engine={engine}"),
        format!("limit={}", limit * times),
        format!("deaths={deaths}"),
        format!("random={}", random * times),
        format!("seed={seed}"),
    ];
    let output = explore(mix, &settings, None);
    assert!(output.status.success(), "{mix}: something was wrong, see above");
    String::from_utf8_lossy(&output.stdout).contains(": all ")
}

/// Puts the fault `control` back into Duralite, and checks that the exploration then finds `what`.
fn finds(mix: &str, control: &str, what: &str) {
    let settings = ["limit=2000", "deaths=0", "random=0", &format!("until={what}")].map(str::to_owned);
    let output = explore(mix, &settings, Some(control));
    let is_found = String::from_utf8_lossy(&output.stdout).contains(what);
    assert!(output.status.code() == Some(1) && is_found, "{mix}: nothing like `{what}` was found");
}

macro_rules! races {
    ($($name:ident: $how:literal $limit:literal, random $random:literal;)*) => {
        const RACES: &[&str] = &[$(stringify!($name)),*];
        mod one_order_explains {
            $(#[test]
            fn $name() {
                super::inv59_one_order_explains(stringify!($name), $limit, $how == "all", $random);
            })*
        }
    };
}

races! {
    skew: "all" 200, random 70;
    new_log: "all" 400, random 70;
    skew_with_warm_caches: "all" 400, random 70;
    skew_and_a_reader: "all" 1400, random 70;
    ring: "some" 30, random 70;
    counter: "some" 30, random 70;
    apart: "some" 30, random 70;
    in_turn: "all" 200, random 70;
    allocation: "some" 30, random 70;
    leases: "all" 200, random 70;
    split: "some" 30, random 70;
    immediate: "some" 30, random 70;
    modes: "some" 30, random 70;
    checkpoint: "some" 30, random 70;
    log_that_starts_over: "some" 30, random 70;
    start_over_by_sqlite: "some" 30, random 70;
    long_read: "some" 30, random 70;
    schema: "some" 30, random 70;
}

#[test]
fn every_race_is_a_test() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_duralite-locking")).args(["race", "list"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let listed: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(listed, RACES);
}

/// The test runs every schedule of coarse steps in which no process dies. It also runs every one in which one
/// process, or all processes, die at some step. A short run takes only the first of these schedules.
#[test]
fn inv59_one_order_explains_what_is_there_wherever_a_process_dies() {
    let limit = if is_long() { 1000 } else { COARSE };
    let are_all = is_explained("skew", "nvwal", limit, 1, 0);
    assert!(are_all || !is_long(), "there are more schedules");
}

/// Runs one schedule of a race, and checks that nothing goes wrong. Each pair names a process, and the number
/// of steps that the process takes next. A letter kills a process (`a` is process 0).
fn goes_well(mix: &str, steps: &[(char, usize)]) {
    let steps: String = steps.iter().flat_map(|(process, steps)| vec![*process; *steps]).collect();
    let program = env!("CARGO_BIN_EXE_duralite-locking");
    let output =
        Command::new(program).args(["race", "replay", mix, &format!("fine {steps}")]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A process died between its stores to the two copies of the header. Another process rebuilds the wal-index
/// while a third process uses it. In an earlier version, the third process could read old pages, without the
/// commits in the log.
#[test]
fn inv15_a_reader_goes_on_while_the_wal_index_is_made_anew() {
    goes_well("long_read", &[('1', 6), ('0', 30), ('a', 1), ('2', 2), ('1', 20)]);
}

/// A process died while it started the log over. The header of the wal-index already said that the log is
/// empty. But it still gave the number of frames that the last checkpoint had copied into the database file.
/// Then other processes committed. In an earlier version, processes took the first frames of these commits
/// for frames that the checkpoint had copied. So no process saw these commits, and in the end they were lost.
#[test]
fn inv15_commits_after_a_start_over_that_was_cut_short_are_not_taken_for_home() {
    goes_well("checkpoint", &[('2', 12), ('0', 38), ('a', 1), ('1', 75)]);
    goes_well("start_over_by_sqlite", &[('0', 27), ('a', 1), ('1', 80), ('2', 80)]);
    goes_well("log_that_starts_over", &[('1', 24), ('b', 1), ('2', 39), ('c', 1), ('0', 200)]);
}

/// The fault in this control: the validation of a transaction ignores the pages that the transaction has
/// read.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_inv58_unread() {
    finds("skew", "unread", "which has committed");
}

/// The fault: a transaction is published before it is validated.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_inv59_unvalidated() {
    finds("skew", "unvalidated", "finds other rows");
}

/// The fault: SQLite keeps its cache although other connections have committed.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_inv61_undropped() {
    finds("skew_with_warm_caches", "undropped", "which it gets at none of the places");
}
