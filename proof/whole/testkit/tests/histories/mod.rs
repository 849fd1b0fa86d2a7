//! Many sessions work on one database at the same time. One order of their transactions must explain what all
//! of them saw.
//!
//! The sessions are threads of child processes (`duralite-actor sessions`). This process only judges their
//! reports. This process does not know how the database isolates the sessions.
//!
//! `TESTKIT_CONCURRENT_SECONDS` lets each test run for so many seconds, with one seed after another.
//! `TESTKIT_CONCURRENT_SETTINGS` replaces the settings of the sessions: `a=1&b=2;c=3` means two settings,
//! which the sessions take in turn. `DURALITE_SEED` repeats a run, as far as the scheduling of threads
//! allows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod controls;
mod judge;
mod kills;
mod lists;
mod logic;
mod replay;

use std::path::PathBuf;
use std::time::Instant;

use duralite_testkit::{Actor, Fixture, Reads, SessionPlan, Work, for_seeds};

const NAME: &str = "shared.db";

/// The sessions on a database, and what they do.
#[derive(Clone, Copy)]
struct Case {
    /// URI parameters; the sessions take them in turn.
    settings: &'static [&'static str],
    processes: u64,
    /// Sessions of a process.
    threads: u64,
    /// Transactions that each session tries.
    transactions: u64,
    keys: u64,
    /// The distance between neighbouring rows that matter.
    spread: u64,
    reads: Reads,
}

impl Case {
    fn plan(&self, fixture: &Fixture, work: Work, seed: u64, process: u64) -> SessionPlan {
        let replaced = std::env::var("TESTKIT_CONCURRENT_SETTINGS").ok();
        let given = || self.settings.iter().map(|&settings| settings.to_owned()).collect();
        SessionPlan {
            uri: fixture.uri(NAME, ""),
            report: report(fixture, process),
            work,
            reads: self.reads,
            seed,
            first: process * self.threads,
            threads: self.threads,
            transactions: self.transactions,
            keys: self.keys,
            spread: self.spread,
            settings: replaced.map_or_else(given, |all| all.split(';').map(str::to_owned).collect()),
        }
    }

    fn start(&self, fixture: &Fixture, work: Work, seed: u64, process: u64) -> Actor {
        start(&self.plan(fixture, work, seed, process))
    }
}

fn start(plan: &SessionPlan) -> Actor {
    let arguments = plan.to_arguments();
    let arguments: Vec<&str> =
        std::iter::once("sessions").chain(arguments.iter().map(String::as_str)).collect();
    Actor::start(&arguments)
}

fn report(fixture: &Fixture, process: u64) -> PathBuf {
    fixture.path(&format!("report-{process}"))
}

/// The lines that the processes have reported, without a last line that was cut off when its process was
/// killed.
fn reported(fixture: &Fixture, processes: u64) -> String {
    let mut all = String::new();
    for process in 0..processes {
        // A process that was killed early has no report.
        let text = std::fs::read_to_string(report(fixture, process)).unwrap_or_default();
        all += text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        all.push('\n');
    }
    all
}

/// Runs a case with one seed after another: `count` of them, or for as long as the environment says.
fn for_long(first_seed: u64, count: u64, case: impl Fn(u64)) {
    let seconds = std::env::var("TESTKIT_CONCURRENT_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let Some(seconds) = seconds.filter(|_: &u64| std::env::var_os("DURALITE_SEED").is_none()) else {
        return for_seeds(count, |seed| case(first_seed + seed - 1));
    };
    let begun = Instant::now();
    for seed in first_seed.. {
        eprintln!("seed {seed}");
        case(seed);
        if begun.elapsed().as_secs() >= seconds {
            return eprintln!("{} seeds", seed + 1 - first_seed);
        }
    }
}
