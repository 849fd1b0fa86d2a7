//! `duralite store`: look at a store, check it, copy its rows, and make and restore backups.

mod copies;
mod dump;
mod line;
mod load;
mod look;
mod place;
mod when;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use duralite_store::RestoreTo;

use crate::proof;
use place::Place;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what a store holds; recover it first if necessary
    #[command(after_help = "Examples:\n  duralite store info STORE\n  duralite store info --json STORE")]
    Info(Place),
    /// Check the log, every page, the order of keys, the free pages, and that each page is reached once
    #[command(after_help = "Example:\n  duralite store verify STORE")]
    Verify(Place),
    /// Write all rows, as they are at one moment, as lines of text
    #[command(
        after_help = "Examples:\n  duralite store dump STORE > rows\n  duralite store dump --table accounts -o rows STORE"
    )]
    Dump {
        #[command(flatten)]
        place: Place,
        /// Write only this table; may be given several times
        #[arg(long = "table", value_name = "NAME")]
        tables: Vec<String>,
        /// Write to this file, and not to standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Put the rows of a dump into a store; create the store if there is none
    #[command(
        after_help = "Examples:\n  duralite store load STORE rows\n  duralite store dump OLD | duralite store load NEW"
    )]
    Load {
        #[command(flatten)]
        place: Place,
        /// The dump; `-` is standard input
        #[arg(default_value = "-", value_name = "FILE")]
        input: PathBuf,
        /// Overwrite rows that exist; without this option the first such row ends the command
        #[arg(long)]
        replace: bool,
    },
    /// Measure stores under TPC-B, TATP and TPC-C
    #[command(disable_help_flag = true)]
    Bench(proof::Arguments),
    /// Copy a store into a new directory, from which it can be restored
    #[command(after_help = "Example:\n  duralite store backup STORE BACKUP")]
    Backup {
        #[command(flatten)]
        place: Place,
        /// A directory that does not exist, or is empty
        #[arg(value_name = "BACKUP")]
        to: PathBuf,
    },
    /// Make a new store from one whose log is damaged before its end, with its state before the damage
    #[command(after_help = "Example:\n  duralite store salvage STORE OUT")]
    Salvage {
        #[command(flatten)]
        place: Place,
        /// A directory that does not exist, or is empty
        #[arg(value_name = "OUT")]
        to: PathBuf,
    },
    /// Make a store from a backup, with its state at some moment
    #[command(
        after_help = "Examples:\n  duralite store restore BACKUP STORE\n  duralite store restore BACKUP STORE --from-archive ARCHIVE --to 2026-01-31T23:59:59Z"
    )]
    Restore {
        /// The backup
        #[arg(value_name = "BACKUP")]
        from: PathBuf,
        #[command(flatten)]
        place: Place,
        /// A log object's number, or a time in UTC such as 2026-01-31T23:59:59Z; the last moment if not given
        #[arg(long, value_name = "LSN|TIME", value_parser = when::parse)]
        to: Option<RestoreTo>,
        /// Directory of the archive of the store that was backed up, for moments after the backup
        #[arg(long, value_name = "DIR")]
        from_archive: Option<PathBuf>,
    },
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Info(place) => look::info(place),
        Command::Verify(place) => look::verify(place),
        Command::Dump { place, tables, output } => dump::run(place, tables, output.as_deref()),
        Command::Load { place, input, replace } => load::run(place, input, *replace),
        Command::Bench(arguments) => proof::run_program("duralite-storebench", "store/bench", arguments),
        Command::Salvage { place, to } => copies::salvage(place, to),
        Command::Backup { place, to } => copies::backup(place, to),
        Command::Restore { from, place, to, from_archive } => {
            copies::restore(from, place, to.unwrap_or_default(), from_archive.as_deref())
        }
    }
}
