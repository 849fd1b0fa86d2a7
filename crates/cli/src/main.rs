//! `duralite`: look at databases and their logs, check them, fold a log back into its database,
//! and take the measurements.
//!
//! Exit status: 0 all is well, 1 the command failed or `verify` found damage, 2 wrong usage.

mod bench;
mod checkpoint;
mod crashtest;
mod info;
mod iotrace;
mod locate;
mod output;
mod target;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::{print_json, print_text};
use target::Target;

#[derive(Parser)]
#[command(version, about = "Durable and fast commits for stock SQLite: tools")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what a database or log file is, and where its newest commits are
    Info(Target),
    /// Walk a log, report every transaction, and decide whether it would recover
    Verify {
        #[command(flatten)]
        target: Target,
        /// Report each frame, not only each transaction
        #[arg(long)]
        frames: bool,
    },
    /// Write a log home and make its database one plain SQLite file again
    Checkpoint {
        #[command(flatten)]
        target: Target,
        /// Let a copy of the original database take over its log
        #[arg(long)]
        adopt: bool,
        /// The log is lost: lift the guard and go back to the last checkpoint
        #[arg(long, conflicts_with = "adopt")]
        discard_log: bool,
    },
    /// Measure, and reproduce the papers' tables and figures
    Bench(bench::Options),
    /// Trace what a command writes to the device of a database, and what for (needs root)
    Iotrace(iotrace::Options),
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
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Info(target) => info::run(&target),
        Command::Verify { target, frames } => verify::run(&target, frames),
        Command::Checkpoint { target, adopt, discard_log } => checkpoint::run(&target, adopt, discard_log),
        Command::Bench(options) => bench::run(&options),
        Command::Iotrace(options) => iotrace::run(&options),
        Command::Crashtest(options) => crashtest::run(&options),
        Command::CrashtestWorker { arguments } => Ok(duralite_killtest::worker_main(&arguments)),
        Command::BenchWorker { uri, milliseconds } => {
            duralite_bench::concurrent::worker(&uri, std::time::Duration::from_millis(milliseconds))
                .map(|()| ExitCode::SUCCESS)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("duralite: {error:#}");
            ExitCode::FAILURE
        }
    }
}
