//! Explores how processes use the locks of a database file, with and without Duralite.
//!
//! ```text
//! duralite-locking list
//! duralite-locking explore SCENARIO [preemptions=1] [deaths=1] [limit=400] [random=100] [seed=1] [until=TEXT] [engine=waldio]
//! duralite-locking all [the same]
//! duralite-locking replay SCENARIO 'order=0,1 57>1' [engine=waldio]
//! duralite-locking race list
//! duralite-locking race explore MIX [limit=400] [deaths=1] [random=100] [seed=1] [until=TEXT] [engine=nvwal]
//! duralite-locking race all [the same]
//! duralite-locking race replay MIX 'coarse 0011' [engine=nvwal]
//! ```
//!
//! Every process is real and runs the real code. A VFS below SQLite and Duralite stops the process before
//! each call that other processes can notice. One process runs at a time, and time passes only in sleeps.
//! So a schedule is a list of choices, and each choice says which process continues. The text of a schedule
//! is enough to run the schedule again.
//!
//! The scenarios are about the locks of files. The races, in [`race`], are about transactions that commit at
//! the same time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure ends the program, and the test sees it

mod actor;
mod board;
mod call;
mod child;
mod clock;
mod explore;
mod grain;
mod lead;
mod me;
mod plan;
mod race;
mod scenario;
mod shared;
mod shim;
mod watch;

use std::process::ExitCode;
use std::time::Instant;

use explore::{Bounds, Report};
use lead::Rig;
use plan::Plan;
use scenario::{ENGINE, SCENARIOS, Scenario};

/// The names of settings and of parts of a schedule.
const NAMES: [&str; 8] = ["preemptions", "deaths", "limit", "random", "seed", "until", "engine", "order"];

/// Refuses an unknown name. If a user misspells a setting, the exploration would otherwise use the default, and prove
/// less than the user thinks.
fn check_names(arguments: &[String]) {
    for (name, _) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
        assert!(NAMES.contains(&name), "no setting {name}; there are {NAMES:?}");
    }
}

fn setting<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
}

fn number(arguments: &[String], name: &str, default: u64) -> u64 {
    setting(arguments, name).map_or(default, |text| text.parse().unwrap())
}

fn scenario_of(arguments: &[String]) -> &'static Scenario {
    let name = arguments.get(1).expect("which scenario? `duralite-locking list` shows them");
    scenario::named(name).unwrap_or_else(|| panic!("no scenario {name}; `duralite-locking list` shows them"))
}

fn bounds(arguments: &[String]) -> Bounds {
    Bounds {
        preemptions: number(arguments, "preemptions", 1) as usize,
        deaths: number(arguments, "deaths", 1) as usize,
        limit: number(arguments, "limit", 400) as usize,
        random: number(arguments, "random", 100),
        seed: number(arguments, "seed", 1),
        until: setting(arguments, "until").map(str::to_owned),
    }
}

fn explore_scenario(arguments: &[String]) -> bool {
    let scenario = scenario_of(arguments);
    let report = explore::explore(&Rig::new(scenario), bounds(arguments));
    tell(scenario, &report);
    report.findings.is_empty()
}

/// Explores all scenarios, and prints a row for the table in docs/fault-model.md.
fn explore_all(arguments: &[String]) -> bool {
    let (start, bounds, mut sum, mut broken) = (Instant::now(), bounds(arguments), Report::default(), 0);
    for scenario in SCENARIOS {
        let report = explore::explore(&Rig::new(scenario), bounds.clone());
        tell(scenario, &report);
        if report.findings.is_empty() == scenario.is_control {
            broken += 1;
        }
        sum.schedules += report.schedules;
        sum.steps += report.steps;
        sum.deaths += report.deaths;
    }
    let Report { schedules, steps, deaths, .. } = sum;
    let engine = ENGINE.get().map_or("", String::as_str);
    let result = if broken == 0 { "no rule broken".to_owned() } else { format!("{broken} BROKEN") };
    println!(
        "| {engine} | schedules of the locks of the database file, of at most {} preemptions and {} deaths each (bounded preemptions, not all interleavings) | \
         {schedules} schedules of {} scenarios, {steps} steps, {deaths} deaths; {result} | {} |",
        bounds.preemptions,
        bounds.deaths,
        SCENARIOS.len(),
        start.elapsed().as_secs()
    );
    broken == 0
}

fn tell(scenario: &Scenario, report: &Report) {
    let Report { schedules, steps, deaths, possible, diverged, findings } = report;
    println!(
        "{}: {schedules} schedules of {possible}, {steps} steps, {deaths} deaths, {diverged} diverged",
        scenario.name
    );
    for (finding, (plan, count)) in findings {
        println!("{}: {count} times: {finding}: replay '{plan}'", scenario.name);
    }
}

fn replay(arguments: &[String]) -> bool {
    let plan: Plan = arguments.get(2).expect("which schedule?").parse().unwrap();
    let outcome = Rig::new(scenario_of(arguments)).follow(&plan);
    lead::tell();
    for finding in &outcome.findings {
        println!("{finding}");
    }
    outcome.findings.is_empty()
}

fn bounds_of_race(arguments: &[String]) -> race::Bounds {
    let Bounds { deaths, limit, random, seed, until, .. } = bounds(arguments);
    race::Bounds { limit, deaths, random, seed, until }
}

fn run_race(arguments: &[String]) -> bool {
    let argument = |at: usize, what: &str| arguments.get(at).expect(what).as_str();
    match argument(1, "list, explore, all or replay?") {
        "list" => {
            race::list();
            true
        }
        "explore" => race::explore_race(argument(2, "which race?"), &bounds_of_race(arguments)),
        "all" => race::explore_all(&bounds_of_race(arguments)),
        "replay" => race::replay(argument(2, "which race?"), argument(3, "which schedule?")),
        _ => panic!("list, explore, all or replay?"),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    check_names(&arguments);
    let is_race = arguments.first().is_some_and(|first| first == "race");
    let engine = setting(&arguments, "engine").unwrap_or(if is_race { "nvwal" } else { "waldio" });
    ENGINE.get_or_init(|| engine.to_owned());
    clock::check();
    shim::register();
    let is_good = match arguments.first().map(String::as_str) {
        Some("list") => {
            SCENARIOS.iter().for_each(|scenario| println!("{}: {}", scenario.name, scenario.about));
            true
        }
        Some("all") => explore_all(&arguments),
        Some("explore") => explore_scenario(&arguments),
        Some("replay") => replay(&arguments),
        Some("race") => run_race(&arguments),
        _ => panic!("list, explore, all, replay or race?"),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
