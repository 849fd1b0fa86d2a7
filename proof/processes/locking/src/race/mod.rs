//! Explores races of concurrent transactions (`concurrent=on` and `concurrent=upgrade`): runs many schedules
//! of their steps, and reports what went wrong.
//!
//! Each process has one connection, through which it runs small transactions ([`mix`]). A process stops where
//! other processes could notice what it does next ([`crate::grain`]). The stops are in the VFS above
//! Duralite's, in the VFS below it, in the log's memory ([`memory`]) and in the memory of the wal-index
//! ([`trap`]). So the tests run the same code as users do. At each stop the leader ([`lead`]) lets any
//! process continue, or kills one process or all, as the schedule says ([`schedule`]). The [`ledger`] holds
//! what all processes have seen, and the [`judge`] runs the transactions again, one after another.

mod judge;
mod lead;
mod ledger;
mod memory;
mod mix;
mod schedule;
mod session;
mod trap;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::grain::Grain;
use crate::lead::tell;
use lead::{Outcome, Rig};
use mix::{MIXES, Mix};
use schedule::{Deaths, Draw, Every, Follow, Schedule};

/// The limits of an exploration.
pub struct Bounds {
    /// The largest number of schedules of coarse steps. The exploration goes through all such schedules in a
    /// fixed order until it reaches this number.
    pub limit: usize,
    /// The largest number of deaths in a schedule.
    pub deaths: usize,
    /// The number of additional random schedules. Half of them have fine steps.
    pub random: u64,
    pub seed: u64,
    /// A text. The exploration ends when a finding contains it. `None` if there is no such text.
    pub until: Option<String>,
}

/// The result of an exploration.
#[derive(Default)]
struct Report {
    schedules: u64,
    /// Whether the exploration ran all schedules of coarse steps.
    is_complete: bool,
    /// Whether a repeated schedule took other steps than the first time.
    diverged: bool,
    random: u64,
    committed: u64,
    refused: u64,
    died: u64,
    took: Duration,
    /// Each kind of finding, with the first schedule that showed it, and the number of schedules that showed
    /// it.
    findings: BTreeMap<String, (Schedule, u64)>,
}

impl Report {
    fn take(&mut self, outcome: Outcome) {
        self.committed += outcome.committed;
        self.refused += outcome.refused;
        self.died += outcome.died;
        for finding in outcome.findings {
            self.findings.entry(finding).or_insert_with(|| (outcome.schedule.clone(), 0)).1 += 1;
        }
    }

    fn is_enough(&self, bounds: &Bounds) -> bool {
        let is_sought = |text: &String| self.findings.keys().any(|found| found.contains(text));
        bounds.until.as_ref().is_some_and(is_sought)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, random, committed, refused, died, took, .. } = self;
        let all = if self.is_complete { "all " } else { "the first " };
        let diverged = if self.diverged { ", NOT REPEATED" } else { "" };
        write!(
            f,
            "{all}{schedules} coarse schedules and {random} random ones{diverged}: {committed} transactions committed, {refused} \
             were refused, {died} died; {:.1} s",
            took.as_secs_f64()
        )
    }
}

fn explore(mix: &'static Mix, bounds: &Bounds) -> Report {
    let (rig, begun) = (Rig::new(mix), Instant::now());
    let mut report = Report::default();
    // `waldio` publishes a transaction before it makes the transaction durable and acknowledges it. So other
    // processes may see a transaction that is not durable yet. If all processes then die, the transaction is
    // lost, and the judge would report that.
    let deaths = Deaths { most: bounds.deaths, of_all: session::engine() != "waldio" };
    let mut every = Every::new(deaths);
    while report.schedules < bounds.limit as u64 && !report.is_complete && !report.is_enough(bounds) {
        report.take(rig.run(Grain::Coarse, &mut every));
        report.schedules += 1;
        report.is_complete = !every.advance();
    }
    report.diverged = every.diverged;
    for seed in 0..bounds.random {
        if report.is_enough(bounds) {
            break;
        }
        let seed = bounds.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        let grain = if seed % 2 == 0 { Grain::Fine } else { Grain::Coarse };
        report.take(rig.run(grain, &mut Draw::new(seed, deaths)));
        report.random += 1;
    }
    report.took = begun.elapsed();
    report
}

fn named(name: &str) -> &'static Mix {
    mix::named(name).unwrap_or_else(|| panic!("no race {name}; `duralite-locking race list` shows them"))
}

/// Explores a race, and prints the findings. Returns whether there were no findings.
pub fn explore_race(name: &str, bounds: &Bounds) -> bool {
    tell_report(name, &explore(named(name), bounds))
}

/// Explores all races, and prints a row for the table in docs/fault-model.md.
pub fn explore_all(bounds: &Bounds) -> bool {
    let (begun, mut sum, mut is_good) = (Instant::now(), Report::default(), true);
    for mix in MIXES {
        let report = explore(mix, bounds);
        is_good &= tell_report(mix.name, &report);
        sum.schedules += report.schedules + report.random;
        sum.committed += report.committed;
        sum.refused += report.refused;
        sum.died += report.died;
    }
    let Report { schedules, committed, refused, died, .. } = sum;
    println!(
        "| {} | schedules of transactions that commit beside each other (interleavings of coarse steps in order, and random ones \
         of fine steps, with at most {} deaths) | {schedules} schedules of {} races, {committed} transactions committed, {refused} \
         were refused, {died} died; {} | {} |",
        session::engine(),
        bounds.deaths,
        MIXES.len(),
        if is_good { "nothing wrong" } else { "BROKEN" },
        begun.elapsed().as_secs()
    );
    is_good
}

/// Prints the findings of a race. Returns `true` if there were none, and if every repeated schedule had the
/// same steps as the first time.
fn tell_report(name: &str, report: &Report) -> bool {
    println!("{name}: {report}");
    for (finding, (schedule, count)) in &report.findings {
        println!("{name}: {count} times: {finding}: race replay {name} '{schedule}'");
    }
    report.findings.is_empty() && !report.diverged
}

/// Runs one schedule, and prints its steps one by one.
pub fn replay(name: &str, schedule: &str) -> bool {
    let schedule: Schedule = schedule.parse().unwrap();
    let outcome = Rig::new(named(name)).run(schedule.grain, &mut Follow(&schedule.choices));
    tell();
    lead::tell_seen();
    println!("{}", outcome.schedule);
    for finding in &outcome.findings {
        println!("{finding}");
    }
    outcome.findings.is_empty()
}

/// Prints the names of all races.
pub fn list() {
    MIXES.iter().for_each(|mix| println!("{}: {}", mix.name, mix.about));
}
