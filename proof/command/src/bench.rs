//! `duralite bench`: runs the measurements and writes their results.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use duralite_bench::nvwal::{self, Effort};
use duralite_bench::report::{Table, pictures_of};
use duralite_bench::{
    archive, everyday, flush, machine, ppl, scratchpad, waldio, waldio_bytes, waldio_trace, writers,
};

use duralite_cli::output::{print_json, print_text};
use duralite_cli::progress::{self, HowFar};

#[derive(Args)]
pub(crate) struct Options {
    /// What to run, one by one or as `everyday`, `writers`, `archive`, `waldio`, `ppl` or `scratchpad`; everything if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Directory for the databases; it decides which disk is measured
    #[arg(long, default_value = "out/bench")]
    dir: PathBuf,
    /// Write NAME.csv files into this directory, and NAME.svg where a table has a picture
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write a Markdown report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Rounds; each result is their median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Transactions per run
    #[arg(long, default_value_t = 1000)]
    transactions: u32,
    /// Seconds that each run of `writers` lasts; those of `archive` last some times as long
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Let the writers of `writers` be processes instead of threads
    #[arg(long)]
    processes: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

type OneTable = fn(&Path, Effort) -> Result<Table>;
type Tables = fn(&Path, Effort) -> Result<Vec<Table>>;

/// A measurement, which makes one report table or several. It may make none if this build lacks an engine.
#[derive(Clone, Copy)]
enum Measurement {
    One(OneTable),
    Several(Tables),
}

use Measurement::{One, Several};

impl Measurement {
    fn take(self, dir: &Path, effort: Effort) -> Result<Vec<Table>> {
        match self {
            One(measure) => measure(dir, effort).map(|table| vec![table]),
            Several(measure) => measure(dir, effort),
        }
    }
}

/// The measurements by name. A user selects one measurement by its full name, or several by the first words
/// of their names: `archive` selects `archive_writers`, `archive_replicated` and `archive_restore`.
const MEASUREMENTS: [(&str, Measurement); 51] = [
    ("everyday", One(everyday::everyday)),
    ("everyday_sizes", One(everyday::sizes)),
    ("writers_rows", One(writers::rows)),
    ("writers_inserts", One(writers::inserts)),
    ("writers_work", One(writers::work)),
    ("writers_alone", One(writers::alone)),
    ("writers_programs", One(writers::programs)),
    ("writers_orders", One(writers::orders)),
    ("writers_turns", One(writers::turns)),
    ("archive_writers", Several(archive::writers)),
    ("archive_replicated", Several(archive::replicated)),
    ("archive_restore", Several(archive::restore)),
    ("waldio_single", One(waldio::single)),
    ("waldio_crowds", One(waldio::crowds)),
    ("waldio_latency", One(waldio::latency)),
    ("waldio_figure2", Several(waldio_trace::figure2)),
    ("waldio_figure3", One(waldio::figure3)),
    ("waldio_figure6_13", One(waldio::figure6_13)),
    ("waldio_figure11", One(waldio_trace::figure11)),
    ("waldio_figure12", One(waldio_trace::figure12)),
    ("waldio_figure14", One(waldio::figure14)),
    ("waldio_figure15", One(waldio::figure15)),
    ("waldio_bytes", One(waldio_bytes::bytes)),
    ("headline", One(nvwal::headline)),
    ("sustained", One(nvwal::sustained)),
    ("flush_pair", One(|_, effort| flush::pair_cost(effort.rounds))),
    ("table1", One(nvwal::table1)),
    ("table2", One(nvwal::table2)),
    ("nvwal_blocks", One(nvwal::blocks)),
    ("figure5_6", One(nvwal::figures_5_and_6)),
    ("figure5_split", One(nvwal::figure5)),
    ("figure7", One(nvwal::figure7)),
    ("nvwal_queue", One(nvwal::queue)),
    ("nvwal_persistency", One(nvwal::persistency)),
    ("figure8", Several(nvwal::figure8)),
    ("figure9", One(nvwal::figure9)),
    ("ppl_table3", One(ppl::table3)),
    ("ppl_figure6", Several(ppl::figure6)),
    ("ppl_table4", One(ppl::table4)),
    ("ppl_figure7", Several(ppl::figure7)),
    ("ppl_table6", One(ppl::table6)),
    ("ppl_figure8", Several(ppl::figure8)),
    ("ppl_large", One(ppl::large)),
    ("scratchpad_figure5", One(scratchpad::figure5)),
    ("scratchpad_figure13_14", Several(scratchpad::figures_13_14)),
    ("scratchpad_figure15_16", One(scratchpad::figures_15_16)),
    ("scratchpad_figure17_18", Several(scratchpad::figures_17_18)),
    ("scratchpad_figure19_20", Several(scratchpad::figures_19_20)),
    ("scratchpad_heat", One(scratchpad::heat)),
    ("scratchpad_latency", One(scratchpad::latencies)),
    ("scratchpad_rollback", One(scratchpad::rollback)),
];

/// Returns whether the name `given` on the command line selects the measurement `name`.
fn means(given: &str, name: &str) -> bool {
    name.strip_prefix(given).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let known: Vec<&str> = MEASUREMENTS.iter().map(|(name, _)| *name).collect();
    if let Some(name) = options.names.iter().find(|given| !known.iter().any(|name| means(given, name))) {
        bail!("no measurement {name}; there are: {}", known.join(", "));
    }
    if options.rounds == 0 || options.transactions == 0 {
        bail!("rounds and transactions are at least 1");
    }
    let time = Duration::try_from_secs_f64(options.seconds).context("--seconds")?;
    std::fs::create_dir_all(&options.dir)?;
    let (rounds, transactions, processes) = (options.rounds, options.transactions, options.processes);
    let effort = Effort { rounds, transactions, time, processes };
    let places = options.report.as_ref().zip(options.csv.as_ref());
    let pictures = places.map(|(report, csv)| pictures_of(report, csv)).transpose()?;
    let mut tables = Vec::new();
    let is_meant =
        |name: &str| options.names.is_empty() || options.names.iter().any(|given| means(given, name));
    let meant: Vec<_> = MEASUREMENTS.into_iter().filter(|(name, _)| is_meant(name)).collect();
    for (nth, (name, measure)) in meant.iter().enumerate() {
        let what = format!("measuring {name}");
        if !std::io::stderr().is_terminal() {
            eprintln!("{what} …");
        }
        let how_far = || HowFar::of(nth as u64, meant.len() as u64, "measurements");
        for table in progress::with(&what, how_far, || measure.take(&options.dir, effort))? {
            if !options.json {
                print_text(&format!("{}\n", table.markdown(None)))?;
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
        std::fs::write(path, report(&tables, pictures.as_deref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(tables: &[Table], pictures: Option<&str>) -> String {
    let mut text = format!(
        "# Benchmarks\n\nWritten by `make bench`. Machine: {}. Database files are on the disk's file system; \
         logs of `waldio` beside them, those of `nvwal` in emulated NVRAM (a mapped file in shared memory). The \
         machine is shared: compare figures within a table, not across runs.\n\n",
        machine::describe()
    );
    for table in tables {
        text.push_str(&table.markdown(pictures));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_itself_and_a_paper_all_its_measurements() {
        assert!(means("ppl_table4", "ppl_table4") && means("ppl", "ppl_table4"));
        assert!(!means("ppl_table", "ppl_table4") && !means("ppl", "waldio_single"));
    }
}
