//! `duralite-demo`: stock SQLite inserts real input with one durable transaction per row, first without
//! Duralite, and then with Duralite loaded. After that the demonstration kills processes in the middle of
//! their work. It shows that every row that they acknowledged is there. The demonstration ends with a table
//! and a chart.
//!
//! Exit status: 0 every acknowledged row was found, 1 a row was missing or the demonstration failed, 2 wrong
//! usage, 130 interrupted.

mod check;
mod child;
mod crowd;
mod killed;
mod modes;
mod processes;
mod report;
mod rows;
mod scene;
mod screen;
mod stock;
mod system_calls;
mod timed;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use modes::MODES;
use scene::Scene;
use screen::{grouped, say};
use timed::Run;

const INTERRUPTED: u8 = 130;
const KILLED: [&str; 5] = ["waldio", "nvwal", "ppl", "scratchpad", "scratchpad-delete"];

#[derive(Parser)]
#[command(
    version,
    about = "Durable commits, fast: stock SQLite inserts real input, one transaction for each row"
)]
struct Options {
    /// Use only the first ROWS rows, and no crowd
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..))]
    rows: Option<u32>,
    /// Seed that repeats the kills of a run [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the databases and the chart
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Subcommand)]
enum Child {
    /// The process that is traced or killed
    #[command(hide = true, name = child::NAME)]
    Insert(child::Options),
}

fn main() -> ExitCode {
    let options = Options::parse();
    match &options.child {
        Some(Child::Insert(child)) => exit_code(child::run(child)),
        None => demonstrate(&options),
    }
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demonstrate(options: &Options) -> ExitCode {
    let scene = match set(options) {
        Ok(scene) => scene,
        Err(error) => return exit_code(Err(error)),
    };
    let result = show(&scene, options);
    if scene.processes.is_interrupted() {
        eprintln!("\ninterrupted; nothing is left running");
        return ExitCode::from(INTERRUPTED);
    }
    exit_code(result)
}

/// Checks that everything that the demonstration needs exists, and prepares it.
fn set(options: &Options) -> Result<Scene> {
    stock::built("duralite")?;
    stock::load_duralite()?;
    let out = std::path::absolute(&options.out).context("--out")?;
    Scene::new(rows::read(options.rows), options.seed.unwrap_or_else(|| u64::from(fastrand::u32(..))), &out)
}

fn show(scene: &Scene, options: &Options) -> Result<()> {
    let rows = grouped(scene.rows.len() as f64);
    say(&format!(
        "{};\n{rows} named characters of Unicode, each one durable transaction",
        stock::describe()
    ))?;
    say("(synchronous=FULL, journal_mode=WAL where nothing else is said).")?;
    say(&scene.places())?;
    let timed = |mode| timed::run(scene, mode).with_context(|| mode.label);
    let mut runs = MODES.iter().map(timed).collect::<Result<Vec<Run>>>()?;
    for key in KILLED {
        killed::run(scene, modes::find(key)?).with_context(|| key)?;
    }
    if options.rows.is_none() {
        crowd::run(scene)?;
    }
    count_system_calls(scene, &mut runs)?;
    like_the_cold(&mut runs);
    report::print(&runs)?;
    report::draw(scene, &runs, &std::path::absolute(&options.out)?.join("demo.svg"))
}

fn count_system_calls(scene: &Scene, runs: &mut [Run]) -> Result<()> {
    if !system_calls::can_count() {
        return say("\nSystem calls are not counted: there is no strace that may trace.");
    }
    say("\nCounting system calls with strace ...")?;
    for run in runs.iter_mut().filter(|run| run.mode.key != "warm") {
        run.system_calls = Some(system_calls::per_commit(scene, run.mode)?);
    }
    Ok(())
}

/// Copies the counts of the cold run to the warm run. A commit writes as many frames and makes as many system
/// calls in a recycled log as in a growing one.
fn like_the_cold(runs: &mut [Run]) {
    if let [cold, warm, ..] = runs {
        (warm.logged_bytes, warm.system_calls) = (cold.logged_bytes, cold.system_calls);
    }
}
