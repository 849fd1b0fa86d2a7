//! Explores schedules of transactions that commit beside each other. Of each race all schedules of coarse steps in which nobody
//! dies are run, or the first ones, and others are drawn in which a process may die.
//!
//! A test that fails prints the schedules in which something was wrong. `duralite-locking race replay MIX 'SCHEDULE'` shows one
//! of them step by step. `LOCKING_RACES=N` explores N times as many, and `LOCKING_SEED` draws others.

#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::process::{Command, Output};

/// The variable that names a fault, which a build with the feature `controls` puts back.
const CONTROL: &str = "LOCKING_CONTROL";

fn number(variable: &str) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
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

/// Explores a race in which nothing may be wrong: coarse schedules without deaths, and then random ones. `all` says that these
/// are all the coarse ones.
fn inv59_one_order_explains(mix: &str, limit: u64, all: bool, random: u64) {
    let (times, seed) = (number("LOCKING_RACES"), number("LOCKING_SEED"));
    for (limit, deaths, random) in [(limit, 0, 0), (0, 1, random)] {
        let settings = [
            format!("limit={}", limit * times),
            format!("deaths={deaths}"),
            format!("random={}", random * times),
            format!("seed={seed}"),
        ];
        let output = explore(mix, &settings, None);
        assert!(output.status.success(), "{mix}: something was wrong, see above");
        let is_complete = String::from_utf8_lossy(&output.stdout).contains(": all ");
        assert!(limit == 0 || !all || is_complete, "{mix}: there are more schedules than {limit}");
    }
}

/// Asserts that something is found when a rule is taken back.
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
    skew: "all" 200, random 100;
    new_log: "all" 400, random 100;
    skew_with_warm_caches: "all" 400, random 100;
    skew_and_a_reader: "all" 1400, random 100;
    ring: "some" 30, random 100;
    counter: "some" 30, random 100;
    apart: "some" 30, random 100;
    in_turn: "all" 200, random 100;
    allocation: "some" 30, random 100;
    leases: "all" 200, random 100;
    split: "some" 30, random 100;
    immediate: "some" 30, random 100;
    modes: "some" 30, random 100;
    checkpoint: "some" 30, random 100;
    log_that_starts_over: "some" 30, random 100;
    long_read: "some" 30, random 100;
    schema: "some" 30, random 100;
}

#[test]
fn every_race_is_a_test() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_duralite-locking")).args(["race", "list"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let listed: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(listed, RACES);
}

/// A process died between the two copies of the header. Another one makes the wal-index anew, while a third one reads by it.
/// It found pages as they were before what the log has.
#[test]
fn inv15_a_reader_goes_on_while_the_wal_index_is_made_anew() {
    let (until_it_dies, is_made_anew, reads) = ("0".repeat(30) + "a", "22", "1".repeat(20));
    let schedule = format!("fine 111111{until_it_dies}{is_made_anew}{reads}");
    let program = env!("CARGO_BIN_EXE_duralite-locking");
    let output = Command::new(program).args(["race", "replay", "long_read", &schedule]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The fault: what a transaction has read does not count when it is validated.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_inv58_unread() {
    finds("skew", "unread", "which has committed");
}

/// The fault: a transaction is published first, and validated then.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_inv59_unvalidated() {
    finds("skew", "unvalidated", "finds other rows");
}

/// The fault: SQLite keeps its cache when others have committed.
#[test]
#[cfg_attr(not(feature = "controls"), ignore = "needs a build with the fault: --features controls")]
fn control_inv61_undropped() {
    finds("skew_with_warm_caches", "undropped", "which it gets at none of the places");
}
