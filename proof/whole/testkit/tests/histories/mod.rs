//! Tests many sessions that work on one database at the same time. One order of their transactions must explain what
//! all of them saw.
//!
//! The sessions are threads of child processes (`duralite-actor sessions`). The process of the test only judges their
//! reports, and does not know how the database isolates the sessions.
//!
//! With `TESTKIT_CONCURRENT_SECONDS` each test runs for that many seconds, with one seed after another. With
//! `TESTKIT_CONCURRENT_TRANSACTIONS` each test runs until it has judged that many transactions that committed. Each
//! seed has a database of its own, and the judge looks at one database at a time. So only one history is in memory, and
//! a longer run takes proportionally longer to judge.
//!
//! `TESTKIT_CONCURRENT_SETTINGS` replaces the settings of the sessions. `a=1&b=2;c=3` means two settings: sessions with
//! even numbers use the first, and sessions with odd numbers the second. `DURALITE_SEED` repeats a run, as far as the
//! scheduling of threads allows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod controls;
mod judge;
mod kills;
mod lists;
mod logic;
mod replay;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Fixture, Reads, SessionPlan, Work, for_seeds};

const NAME: &str = "shared.db";

/// The sessions on a database, and what they do.
#[derive(Clone, Copy)]
struct Case {
    /// The URI parameters. Each session uses one entry, and the next session the next entry.
    settings: &'static [&'static str],
    processes: u64,
    /// The number of sessions of a process.
    threads: u64,
    /// The number of transactions that each session attempts.
    transactions: u64,
    keys: u64,
    /// The distance between neighbouring keys of lists or registers.
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

/// Returns the lines that the processes have reported. Leaves out a last line that was cut off when its process was
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

/// Totals of the histories that the judge has accepted.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    /// The number of transactions that committed.
    committed: u64,
    /// The processor time that the judge used.
    took: Duration,
}

impl Judged {
    /// Lets the judge decide, and measures its time.
    fn by<T>(judge: impl FnOnce() -> T, committed: impl FnOnce(&T) -> u64) -> (T, Self) {
        let begun = computed();
        let verdict = judge();
        let took = computed() - begun;
        let committed = committed(&verdict);
        (verdict, Self { committed, took })
    }
}

/// Runs a case with one seed after another: with `count` seeds, or for as long as the environment variables demand.
fn for_long(first_seed: u64, count: u64, case: impl Fn(u64) -> Judged) {
    let number = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let wanted = (number("TESTKIT_CONCURRENT_SECONDS"), number("TESTKIT_CONCURRENT_TRANSACTIONS"));
    if wanted == (None, None) || std::env::var_os("DURALITE_SEED").is_some() {
        return for_seeds(count, |seed| {
            case(first_seed + seed - 1);
        });
    }
    let (seconds, transactions) = (wanted.0.unwrap_or(0), wanted.1.unwrap_or(0));
    let (begun, mut all) = (Instant::now(), Judged::default());
    for nth in 1.. {
        eprintln!("DURALITE_SEED={nth}");
        let judged = case(first_seed + nth - 1);
        all.committed += judged.committed;
        all.took += judged.took;
        if begun.elapsed().as_secs() >= seconds && all.committed >= transactions {
            let name = std::thread::current().name().unwrap_or("a test").to_owned();
            let (judge, memory) = (all.took.as_secs_f64(), most_memory());
            // `scripts/proof` adds these numbers up.
            return eprintln!(
                "judged {} transactions in {nth} rounds: {name}, in {judge:.1} s; {memory} KiB at most",
                all.committed
            );
        }
    }
}

/// Returns the processor time that this thread has used.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap()
}

/// Returns the largest amount of memory that this process has had, in KiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
