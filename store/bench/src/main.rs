//! `duralite-storebench`: measures the store under TPC-B, TATP and TPC-C, compares it with other stores, and repeats
//! the experiments of the NV-Logging paper.
//!
//! Exit status: 0 if all went well, 1 if a measurement failed or rows contradicted each other, 2 for wrong usage.

// Simulated media that can crash, shared with the store's own tests.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../tests/common/crash.rs"]
mod crash;
mod kv;
mod measure;
mod model;
mod nv;
mod peers;
mod row;
mod size;
mod tatp;
#[cfg(test)]
mod tests;
mod tpcb;
mod tpcc;
mod trace;
mod workload;
mod ycsb;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use duralite_bench::machine;
use duralite_bench::report::{Table, pictures_of};
use serde::Deserialize;

use measure::plan::Plan;

/// Measure the store under TPC-B, TATP and TPC-C
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// What to run; everything if nothing is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Directory on the disk that is to be measured
    #[arg(long, default_value = "out/storebench")]
    dir: PathBuf,
    /// Directory in memory, for logs in NVRAM
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    memory: PathBuf,
    /// Measure all rows of all tables, with databases of full size; takes some hours
    #[arg(long)]
    full: bool,
    /// Number of rounds; each result is the median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds that a run takes [default: 400, with --full 5000]
    #[arg(long, value_name = "MS")]
    milliseconds: Option<u64>,
    /// Number of threads, in tables that do not vary it
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// Seconds that each store is measured for a row of `sizes`, over all its turns
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Number of turns that each store gets for a row of `sizes`
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// MiB of cache in `sizes`
    #[arg(long, default_value_t = 32, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cache: u64,
    /// Measure only rows of `sizes` whose names contain TEXT, such as `ycsb-a-10x`; may be repeated
    #[arg(long = "row", value_name = "TEXT")]
    rows: Vec<String>,
    /// Measure all rows of `sizes`; takes most of a day
    #[arg(long)]
    all_rows: bool,
    /// Measure only this store in `sizes`; may be repeated
    #[arg(long = "store", value_name = "NAME")]
    stores: Vec<String>,
    /// Write NAME.csv files into this directory, and NAME.svg if a table has a picture
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write a Markdown report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// A measurement that makes one table, or one that makes several.
#[derive(Clone, Copy)]
enum Measurement {
    One(fn(&Plan) -> Result<Table>),
    Several(fn(&Plan) -> Result<Vec<Table>>),
}

impl Measurement {
    fn tables(self, plan: &Plan) -> Result<Vec<Table>> {
        match self {
            Self::One(measure) => Ok(vec![measure(plan)?]),
            Self::Several(measure) => measure(plan),
        }
    }
}

const MEASUREMENTS: [(&str, Measurement); 20] = [
    ("sizes", Measurement::One(size::measure)),
    ("peers_disk", Measurement::One(measure::peers::on_disk)),
    ("peers_memory", Measurement::One(measure::peers::in_memory)),
    ("one_thread", Measurement::One(measure::limits::one_thread)),
    ("hot_row", Measurement::One(measure::limits::hot_row)),
    ("long_scan", Measurement::One(measure::long_scan::long_scan)),
    ("recovery", Measurement::One(measure::limits::recovery)),
    ("memory", Measurement::One(measure::limits::memory)),
    ("figure6", Measurement::One(measure::traffic::figure6)),
    ("figure8", Measurement::One(measure::traffic::figure8)),
    ("figure9", Measurement::One(measure::traffic::figure9)),
    ("figure11", Measurement::One(measure::limits::figure11)),
    ("figure12", Measurement::One(measure::schemes::figure12)),
    ("figure13_tatp", Measurement::One(measure::schemes::figure13_tatp)),
    ("figure13_tpcb", Measurement::One(measure::schemes::figure13_tpcb)),
    ("figure14_tatp", Measurement::One(measure::schemes::figure14_tatp)),
    ("figure14_tpcb", Measurement::One(measure::schemes::figure14_tpcb)),
    ("figure15", Measurement::One(measure::breakdown::figure15)),
    ("figure16", Measurement::One(measure::traffic::figure16)),
    ("cores", Measurement::Several(measure::cores::cores)),
];

fn main() -> ExitCode {
    if let Ok(task) = std::env::var(measure::limits::CHILD) {
        return exit(child(&task));
    }
    exit(run(&Cli::parse()))
}

/// The task of a child process of this program.
#[derive(Deserialize)]
#[serde(untagged)]
enum Task {
    Size(size::Task),
    Limit(measure::limits::Task),
}

fn child(task: &str) -> Result<()> {
    match serde_json::from_str(task).context("a child's task")? {
        Task::Size(task) => size::child(&task),
        Task::Limit(task) => measure::limits::child(&task),
    }
}

fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("duralite-storebench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    for name in &cli.names {
        if !MEASUREMENTS.iter().any(|(known, _)| known.starts_with(name.as_str())) {
            let known: Vec<_> = MEASUREMENTS.iter().map(|(name, _)| *name).collect();
            bail!("there is no measurement {name}; there are {}", known.join(", "));
        }
    }
    std::fs::create_dir_all(&cli.dir)?;
    let memory = tempfile::tempdir_in(&cli.memory)?;
    let plan = Plan {
        disk: cli.dir.canonicalize()?,
        memory: memory.path().to_owned(),
        rounds: cli.rounds.max(1),
        time: Duration::from_millis(cli.milliseconds.unwrap_or(if cli.full { 5000 } else { 400 })),
        threads: cli.threads,
        is_full: cli.full,
        sizes: size::Sizes {
            cache_bytes: cli.cache << 20,
            seconds: cli.seconds,
            turns: cli.turns,
            rows: cli.rows.clone(),
            is_all: cli.all_rows,
            stores: cli.stores.clone(),
        },
    };
    let places = cli.report.as_ref().zip(cli.csv.as_ref());
    let pictures = places.map(|(report, csv)| pictures_of(report, csv)).transpose()?;
    let mut text = heading();
    let mut failed = Vec::new();
    for (name, measure) in MEASUREMENTS {
        if !cli.names.is_empty() && !cli.names.iter().any(|wanted| name.starts_with(wanted.as_str())) {
            continue;
        }
        let begun = Instant::now();
        match measure.tables(&plan) {
            Ok(tables) => {
                for table in tables {
                    println!("{}", table.markdown(None));
                    text.push_str(&format!("\n{}", table.markdown(pictures.as_deref())));
                    cli.csv.as_ref().map_or(Ok(()), |dir| table.write_csv(dir))?;
                }
            }
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
        eprintln!("{name}: {:.0} s", begun.elapsed().as_secs_f64());
        // Writes the report after each measurement, so that a later failure does not lose it.
        if let Some(path) = &cli.report {
            std::fs::write(path, &text)?;
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

fn heading() -> String {
    format!(
        "# The store's benchmarks\n\nWritten by `scripts/storebench`. Machine: {}. Pages are on the disk's file system. Logs in NVRAM are in emulated NVRAM (a mapped file in shared memory). The machine is shared, so compare numbers within a table, and not across runs.\n",
        machine::describe()
    )
}
