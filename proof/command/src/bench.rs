//! `duralite bench`: run the measurements and write them down.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use duralite_bench::nvwal::{self, Effort};
use duralite_bench::report::Table;
use duralite_bench::{flush, machine, waldio};

use duralite_cli::output::{print_json, print_text};

#[derive(Args)]
pub(crate) struct Options {
    /// What to run; everything if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Directory for the databases; it decides which disk is measured
    #[arg(long, default_value = "out/bench")]
    dir: PathBuf,
    /// Write NAME.csv files into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write a Markdown report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Rounds a median is taken of
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Transactions per run
    #[arg(long, default_value_t = 1000)]
    transactions: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

type Measurement = fn(&Path, Effort) -> Result<Table>;

const MEASUREMENTS: [(&str, Measurement); 15] = [
    ("waldio_single", waldio::single),
    ("waldio_crowds", waldio::crowds),
    ("waldio_latency", waldio::latency),
    ("waldio_figure3", waldio::figure3),
    ("waldio_figure6_13", waldio::figure6_13),
    ("waldio_figure14", waldio::figure14),
    ("waldio_figure15", waldio::figure15),
    ("headline", nvwal::headline),
    ("sustained", nvwal::sustained),
    ("flush_pair", |_, effort| flush::pair_cost(effort.rounds)),
    ("table1", nvwal::table1),
    ("table2", nvwal::table2),
    ("figure5_6", nvwal::figures_5_and_6),
    ("figure7", nvwal::figure7),
    ("figure9", nvwal::figure9),
];

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let known: Vec<&str> = MEASUREMENTS.iter().map(|(name, _)| *name).collect();
    if let Some(name) = options.names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no measurement {name}; there are: {}", known.join(", "));
    }
    if options.rounds == 0 || options.transactions == 0 {
        bail!("rounds and transactions are at least 1");
    }
    std::fs::create_dir_all(&options.dir)?;
    let effort = Effort { rounds: options.rounds, transactions: options.transactions };
    let mut tables = Vec::new();
    for (name, measure) in MEASUREMENTS {
        if options.names.is_empty() || options.names.iter().any(|wanted| wanted == name) {
            eprintln!("measuring {name} …");
            let table = measure(&options.dir, effort)?;
            if !options.json {
                print_text(&format!("{}\n", table.markdown()))?;
            }
            if let Some(dir) = &options.csv {
                table.write_csv(dir)?;
            }
            tables.push(table);
        }
    }
    if options.json {
        print_json(&serde_json::json!({ "machine": machine::describe(), "tables": tables }))?;
    }
    if let Some(path) = &options.report {
        std::fs::write(path, report(&tables))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(tables: &[Table]) -> String {
    let mut text = format!(
        "# Benchmarks\n\nWritten by `make bench`. Machine: {}. Database files are on the disk's file system; \
         logs of `waldio` beside them, those of `nvwal` in emulated NVRAM (a mapped file in shared memory). The \
         machine is shared: compare figures within a table, not across runs.\n\n",
        machine::describe()
    );
    for table in tables {
        text.push_str(&table.markdown());
        text.push('\n');
    }
    text
}
