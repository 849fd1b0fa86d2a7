//! `duralite`: look at databases and their logs, check them, and checkpoint a log back into its database;
//! and the same for stores.
//! Measurements and rigs are a command of their own, `duralite-proof`, which is run from here.
//!
//! Exit status: 0 all is well, 1 the command failed or `verify` found damage, 2 wrong usage.

mod checkpoint;
mod info;
mod locate;
mod proof;
mod reclaim;
mod store;
mod target;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use duralite_cli::output;
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
    /// Show what logs have of the regions in a directory (scratchpad), and give back what deleted ones have had
    Reclaim(reclaim::Arguments),
    /// Look at a transactional store, check it, copy its rows, back it up and restore it
    #[command(subcommand)]
    Store(store::Command),
    /// Measure, and reproduce the papers' tables and figures
    #[command(disable_help_flag = true)]
    Bench(proof::Arguments),
    /// Trace what a command writes to the device of a database, and what for (needs root)
    #[command(disable_help_flag = true)]
    Iotrace(proof::Arguments),
    /// Look for a crash that loses an acknowledged commit
    #[command(disable_help_flag = true)]
    Crashtest(proof::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Info(target) => info::run(&target),
        Command::Verify { target, frames } => verify::run(&target, frames),
        Command::Checkpoint { target, adopt, discard_log } => checkpoint::run(&target, adopt, discard_log),
        Command::Reclaim(arguments) => reclaim::run(&arguments),
        Command::Store(command) => store::run(&command),
        Command::Bench(arguments) => proof::run("bench", &arguments),
        Command::Iotrace(arguments) => proof::run("iotrace", &arguments),
        Command::Crashtest(arguments) => proof::run("crashtest", &arguments),
    };
    output::exit_code(result)
}
