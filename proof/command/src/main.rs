//! `duralite-proof`: takes the measurements and draws them, traces what reaches a device, and looks for crashes that lose
//! data. `duralite bench`, `chart`, `iotrace` and `crashtest` run it.
//!
//! Exit status: 0 success, 1 the command failed or found a loss, 2 wrong usage.

mod bench;
mod chart;
mod crashtest;
mod iotrace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Durable and fast commits for stock SQLite: measurements and evidence")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure, and reproduce the papers' tables and figures
    Bench(bench::Options),
    /// Trace what a command writes to the device of a database, and what for (needs root)
    Iotrace(iotrace::Options),
    /// Draw tables of figures as SVG or PNG
    Chart(chart::Options),
    /// Look for a crash that loses an acknowledged commit
    Crashtest(crashtest::Options),
    /// One process of those that `crashtest` kills
    #[command(hide = true, name = crashtest::WORKER)]
    CrashtestWorker {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// One process of a crowd that `bench` measures
    #[command(hide = true)]
    BenchWorker { uri: String, milliseconds: u64 },
    /// One process of those that `bench` lets write
    #[command(hide = true, name = duralite_bench::writers::WORKER)]
    BenchWriter { uri: String, job: String, writer: usize },
    /// One process that `bench` starts for one task
    #[command(hide = true, name = duralite_bench::everyday::WORKER)]
    BenchTask { task: String, uri: String, numbers: Vec<u64> },
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Iotrace(options) => iotrace::run(&options),
        Command::Chart(options) => chart::run(&options),
        Command::Crashtest(options) => crashtest::run(&options),
        Command::CrashtestWorker { arguments } => Ok(duralite_killtest::worker_main(&arguments)),
        Command::BenchWorker { uri, milliseconds } => {
            duralite_bench::concurrent::worker(&uri, std::time::Duration::from_millis(milliseconds))
                .map(|()| ExitCode::SUCCESS)
        }
        Command::BenchWriter { uri, job, writer } => {
            duralite_bench::writers::writer(&uri, &job, writer).map(|()| ExitCode::SUCCESS)
        }
        Command::BenchTask { task, uri, numbers } => {
            duralite_bench::everyday::work(&task, &uri, &numbers).map(|()| ExitCode::SUCCESS)
        }
    };
    duralite_cli::output::exit_code(result)
}
