//! Runs one plan after another for some minutes, on all engines in turn. The plans cover everything that
//! processes can do to each other.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use duralite_testkit::Engine;

use crate::{Plan, Report, Worker, run};

/// The length of the run of one plan in seconds.
const SECONDS: u64 = 45;
/// The number of processes at a time, not counting the auditor.
const PROCESSES: u32 = 8;
/// The number of pages in the log at which every process makes a checkpoint.
const AUTOCHECKPOINT: u32 = 8;
/// The space that all logs of the database may take, in pages. A plan allows at least [`LOG_BYTES`]. The
/// limits are large, because a process that is stopped while it reads delays checkpoints for up to 1.5 s, and
/// because VACUUM writes all pages at once.
const LOG_PAGES: u64 = 64 << 10;
const LOG_BYTES: u64 = 256 << 20;

/// The parameters of a soak.
#[derive(Debug, Clone)]
pub struct Soak {
    /// The shortest time for which the soak runs.
    pub time: Duration,
    /// The seed of the first plan. Each later plan has the next seed.
    pub seed: u64,
    /// The directory in which the soak makes the databases' directories; `None` for the temporary directory.
    pub directory: Option<PathBuf>,
}

/// The result of one plan.
#[derive(Debug)]
pub struct Outcome {
    /// The engine.
    pub engine: Engine,
    /// The seed.
    pub seed: u64,
    /// The plan's report, or an error that says what was wrong.
    pub result: Result<Report>,
}

/// Returns whether this process may start processes of other users.
#[must_use]
pub fn has_two_users() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the plan of a seed. It has eight processes, which belong to two users if that is possible.
#[must_use]
pub fn plan(engine: Engine, seed: u64) -> Plan {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x736f_616b);
    let mut plan = Plan::varied(engine, u32::MAX, seed);
    if plan.is_weak() {
        plan.settings.clear();
    }
    plan.writers = rng.u32(1..=3);
    plan.forkers = rng.u32(1..=2);
    plan.openers = rng.u32(1..=2);
    plan.onlookers = 1;
    plan.checkpointers = rng.u32(..=1);
    let others = plan.forkers + plan.openers + plan.onlookers + plan.checkpointers;
    plan.writers = plan.writers.min(PROCESSES - others);
    plan.readers = PROCESSES - others - plan.writers;
    plan.users = if has_two_users() { 2 } else { 1 };
    plan.names = rng.bool();
    plan.pauses = true;
    plan.beside = rng.bool();
    plan.autocheckpoint = Some(AUTOCHECKPOINT);
    plan.longest_ms = [20, 200, 1000][rng.usize(..3)];
    plan.hang = Duration::from_secs(40);
    plan.busy_timeout = Duration::from_secs(15);
    plan.seconds = SECONDS;
    plan.log_bytes = LOG_BYTES.max(LOG_PAGES * u64::from(plan.page_bytes));
    plan
}

/// Returns the engines in the order in which the soak tests them. Consecutive seeds belong to consecutive
/// engines.
fn engines() -> Vec<Engine> {
    Engine::all().into_iter().rev().collect()
}

/// Runs plans until the time is over, and reports the outcome of each. If a plan fails, the next ones still
/// run.
pub fn soak(soak: &Soak, worker: &Worker, told: &mut dyn FnMut(&Outcome)) -> Vec<Outcome> {
    let start = Instant::now();
    let mut outcomes = Vec::new();
    let engines = engines();
    for (seed, engine) in (soak.seed..).zip(engines.iter().copied().cycle()) {
        if start.elapsed() >= soak.time && seed >= soak.seed + engines.len() as u64 {
            break;
        }
        let plan = Plan { directory: soak.directory.clone(), ..plan(engine, seed) };
        let outcome = Outcome { engine, seed, result: run(&plan, worker, &mut |_| {}) };
        told(&outcome);
        outcomes.push(outcome);
    }
    outcomes
}

/// Returns a table of the outcomes by engine. It has the same columns as the table of `duralite crashtest`.
///
/// # Errors
/// This function never fails.
pub fn table(outcomes: &[Outcome]) -> Result<String> {
    let mut text = String::from("| engine | what | result | seconds |\n| --- | --- | --- | --- |\n");
    let users = if has_two_users() { "two users" } else { "one user" };
    for engine in engines() {
        let of_engine = outcomes.iter().filter(|outcome| outcome.engine == engine);
        let good: Vec<&Report> =
            of_engine.clone().filter_map(|outcome| outcome.result.as_ref().ok()).collect();
        let sum = |of: fn(&Report) -> u64| good.iter().map(|report| of(report)).sum::<u64>();
        let bad = of_engine.count() - good.len();
        let most = good.iter().map(|report| report.log_bytes).max().unwrap_or(0);
        writeln!(
            text,
            "| {} | soak, {PROCESSES} processes of {users} | {} runs, {bad} broken; {} processes killed, {} stopped, \
             {} strikes while renamed, {} commits acknowledged, {} times closed and nothing left, logs of at \
             most {:.1} MiB (limit {} MiB, {LOG_PAGES} pages where that is more) | {} |",
            engine.name(),
            good.len() + bad,
            sum(Report::total_kills),
            sum(|report| report.stopped + report.continued + report.paused),
            sum(|report| report.renamed),
            sum(|report| report.acknowledged),
            sum(|report| report.settled),
            most as f64 / f64::from(1 << 20),
            LOG_BYTES >> 20,
            sum(|report| report.elapsed.as_secs()),
        )
        .context("no table")?;
    }
    Ok(text)
}
