//! `duralite crashtest`: looks for evidence that a crash loses an acknowledged commit.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use duralite_crashtest::{
    Engine, FaultPlan, FileSystemKind, Length, Mutants, Outcome, Plan, PowerPlan, Verdict, cut_counting,
    explore_counting, explore_crowd, inject, missing_rig, register, replay,
};
use duralite_killtest::Report;

use duralite_cli::output::print_text;
use duralite_cli::progress::{self, HowFar};

/// To show that it would notice a bug, the test leaves out one operation at a time. It then builds this many
/// crash states for each window between two barriers.
const MUTANT_WINDOW_STATES: usize = 24;
/// After this many killed processes, the test continues with a new plan, which has other settings.
const KILLS_OF_A_PLAN: u64 = 500;
/// The hidden command that runs a process for `crashtest` to kill.
pub(crate) const WORKER: &str = "crashtest-worker";

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, value_name = "NAME", help = engine_help())]
    engine: Vec<Engine>,
    /// Crash states of memory and blocks to recover, for each engine
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    states: u64,
    /// States of a window between two barriers, where more than 12 lines or sectors are in doubt
    #[arg(long, value_name = "N", default_value_t = 256)]
    window_states: usize,
    /// Images of power cuts on a real file system to recover, for each engine (needs root)
    #[arg(long, value_name = "N", default_value_t = 0)]
    images: u64,
    /// The file system of those images: ext4, xfs or btrfs
    #[arg(long, value_name = "NAME", default_value = "ext4")]
    file_system: FileSystemKind,
    /// Mount options of that file system; with nobarrier, commits have to be lost
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    mount_options: String,
    /// Processes to kill, for each engine
    #[arg(long, value_name = "N", default_value_t = 0)]
    kills: u64,
    /// Let every N-th call of a workload fail, each in a run of its own
    #[arg(long, value_name = "N")]
    faults: Option<u64>,
    /// For N workloads, leave out every flush, fence and sync in turn, and show which omissions the test
    /// notices
    #[arg(long, value_name = "N")]
    mutations: Option<u64>,
    /// Let transactions of several connections overlap (concurrent=on), instead of one writer at a time
    #[arg(long)]
    concurrent: bool,
    /// Steps of a workload
    #[arg(long, value_name = "N", default_value_t = 40)]
    steps: u32,
    /// The first workload's seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory in which to keep states that fail
    #[arg(long, value_name = "DIR", default_value = "out/crashtest")]
    keep: PathBuf,
    /// Write the results to this file too, as a table in Markdown
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Recover a kept state again, and nothing else
    #[arg(long, value_name = "DIR")]
    replay: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(dir) = &options.replay {
        return Ok(match replay(dir)? {
            Ok(()) => {
                println!("recovers");
                ExitCode::SUCCESS
            }
            Err(what) => {
                println!("{what}");
                ExitCode::FAILURE
            }
        });
    }
    register()?;
    let mut run = Run { options, table: String::new(), calls: String::new(), broken: false, at: (0, 0) };
    run.all()?;
    if let Some(path) = &options.table {
        let mut table =
            format!("| engine | what | result | seconds |\n| --- | --- | --- | --- |\n{}", run.table);
        if !run.calls.is_empty() {
            let head = "| engine | left out | calls | what came of it |\n| --- | --- | --- | --- |\n";
            write!(table, "\n{head}{}", run.calls)?;
        }
        std::fs::write(path, table).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if run.broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn engine_help() -> String {
    let own: Vec<&str> = Engine::own().into_iter().map(Engine::as_str).collect();
    format!("Only this engine: {}; as controls stock, and stock-off, which has to fail", own.join(" or "))
}

struct Run<'a> {
    options: &'a Options,
    table: String,
    /// The rows of the second table, which says what happened when an operation was left out.
    calls: String,
    broken: bool,
    /// The number of the current engine, counted from 1, and the number of all engines.
    at: (usize, usize),
}

impl Run<'_> {
    fn all(&mut self) -> Result<()> {
        let options = self.options;
        let engines = if options.engine.is_empty() { Engine::own() } else { options.engine.clone() };
        let (seed, length) = (options.seed, Length { steps: options.steps });
        let concurrent = options.concurrent;
        let all = engines.len();
        for (nth, engine) in engines.into_iter().enumerate() {
            self.at = (nth + 1, all);
            if options.states > 0 {
                let (states, window_states) = (options.states, options.window_states);
                let plan = Plan { engine, seed, states, length, window_states, concurrent };
                let what = "crash states of memory and blocks";
                let (doing, done) = (self.doing(engine, "crash states"), AtomicU64::new(0));
                let how_far = || HowFar::of(done.load(Ordering::Relaxed), states, "states");
                let explore = || explore_counting(&plan, &done);
                self.part(engine, what, || progress::with(&doing, how_far, explore))?;
                if concurrent {
                    let threads = Plan { states: states / 4, ..plan };
                    let explore = || progress::with(&doing, HowFar::default, || explore_crowd(&threads));
                    self.part(engine, "crash states of threads", explore)?;
                }
            }
            if options.images > 0 {
                if let Some(why) = missing_rig(options.file_system) {
                    anyhow::bail!("power cuts cannot be tried here: {why}");
                }
                let (file_system, images) = (options.file_system, options.images);
                let mount_options = options.mount_options.clone();
                let plan = PowerPlan { engine, file_system, mount_options, seed, images, length, concurrent };
                let what = format!("power cuts on {}", file_system.name());
                let (doing, done) = (self.doing(engine, &what), AtomicU64::new(0));
                let how_far = || HowFar::of(done.load(Ordering::Relaxed), images, "images");
                let cut = || cut_counting(&plan, &done);
                self.part(engine, &what, || progress::with(&doing, how_far, cut))?;
            }
            if options.kills > 0 {
                self.kills(engine)?;
            }
            if let Some(every) = options.faults {
                let every_allocation = every * 8;
                let plan =
                    FaultPlan { engine, seed, length, every, every_allocation, crashes: 3, concurrent };
                let what = "faults";
                let doing = self.doing(engine, what);
                self.part(engine, what, || progress::with(&doing, HowFar::default, || inject(&plan)))?;
            }
            if let Some(workloads) = options.mutations {
                self.mutations(engine, workloads, length)?;
            }
        }
        Ok(())
    }

    /// Returns the text that a terminal shows while a test runs.
    fn doing(&self, engine: Engine, what: &str) -> String {
        let (nth, all) = self.at;
        format!("{engine} ({nth} of {all}): {what}")
    }

    /// Prints the result of one kind of test, and adds it to the table.
    fn report(&mut self, engine: Engine, what: &str, result: &str, started: Instant) -> Result<()> {
        let seconds = started.elapsed().as_secs_f64();
        let what =
            if self.options.concurrent { format!("concurrent writers, {what}") } else { what.to_owned() };
        print_text(&format!("{engine}: {what}: {result} ({seconds:.0} s)\n"))?;
        writeln!(self.table, "| {engine} | {what} | {result} | {seconds:.0} |")?;
        Ok(())
    }

    /// Runs one kind of test, and reports its result.
    fn part<T: std::fmt::Display>(
        &mut self,
        engine: Engine,
        what: &str,
        body: impl FnOnce() -> Verdict<T>,
    ) -> Result<()> {
        let started = Instant::now();
        let result = match body()? {
            Ok(tally) => tally.to_string(),
            Err(violation) => {
                self.broken = true;
                let again = if violation.has_state() {
                    format!("--replay {}", violation.keep(&self.options.keep)?.display())
                } else {
                    let concurrent = if self.options.concurrent { " --concurrent" } else { "" };
                    format!("--engine {engine} --states 0 --faults 1 --seed {}{concurrent}", violation.seed)
                };
                format!("BROKEN: {violation}; again: duralite crashtest {again}")
            }
        };
        self.report(engine, what, &result, started)
    }

    fn kills(&mut self, engine: Engine) -> Result<()> {
        let started = Instant::now();
        let Engine::Own(tested) = engine else { return Ok(()) };
        let program = std::env::current_exe().context("cannot find this program")?;
        let worker = duralite_killtest::Worker { program, arguments: vec![WORKER.into()] };
        let doing = self.doing(engine, "killing");
        let mut kills = 0;
        let mut acknowledged = 0;
        let mut result = None;
        for seed in self.options.seed.. {
            let left = self.options.kills - kills.min(self.options.kills);
            if left == 0 {
                break;
            }
            let of_plan = left.min(KILLS_OF_A_PLAN) as u32;
            let plan = if self.options.concurrent {
                duralite_killtest::Plan::concurrent(tested.into(), of_plan, seed)
            } else {
                duralite_killtest::Plan::varied(tested.into(), of_plan, seed)
            };
            let done = AtomicU64::new(kills);
            let how_far = || HowFar::of(done.load(Ordering::Relaxed), self.options.kills, "processes");
            let mut tell = |so_far: &Report| done.store(kills + so_far.total_kills(), Ordering::Relaxed);
            let run = || duralite_killtest::run(&plan, &worker, &mut tell);
            match progress::with(&doing, how_far, run) {
                Ok(report) => {
                    kills += report.total_kills();
                    acknowledged += report.acknowledged;
                }
                Err(error) => {
                    self.broken = true;
                    result = Some(format!("BROKEN: {error:#}"));
                    break;
                }
            }
        }
        let counted = format!("{kills} processes killed, {acknowledged} commits acknowledged, none lost");
        self.report(engine, "deaths of processes", &result.unwrap_or(counted), started)
    }

    fn mutations(&mut self, engine: Engine, workloads: u64, length: Length) -> Result<()> {
        let started = Instant::now();
        let seed = self.options.seed;
        let record = || Mutants::record(engine, seed..seed + workloads, length);
        let mutants = progress::with(&self.doing(engine, "recording"), HowFar::default, record)?;
        let (all, doing) = (mutants.all(), self.doing(engine, "leaving out"));
        let (mut noticed, mut explained, mut missed) = (0, 0, 0);
        for (nth, mutation) in all.iter().enumerate() {
            let how_far = || HowFar::of(nth as u64, all.len() as u64, "calls");
            let run = || mutants.try_out(mutation, MUTANT_WINDOW_STATES);
            let outcome = progress::with(&doing, how_far, run)?;
            let Outcome { calls, states, caught, .. } = outcome;
            let what = match caught {
                Some(what) => {
                    noticed += 1;
                    format!("noticed after {states} states: {what}")
                }
                None => {
                    let why = match mutation.explanation(engine) {
                        Some(why) => {
                            explained += 1;
                            why
                        }
                        None => {
                            missed += 1;
                            "NOBODY KNOWS WHY"
                        }
                    };
                    format!("not noticed in {states} states: {why}")
                }
            };
            print_text(&format!("{engine}: {mutation} ({calls} calls): {what}\n"))?;
            writeln!(self.calls, "| {engine} | {mutation} | {calls} | {what} |")?;
        }
        self.broken |= missed > 0;
        let result = format!("{noticed} noticed, {explained} explained, {missed} missed");
        self.report(engine, "calls left out", &result, started)
    }
}
