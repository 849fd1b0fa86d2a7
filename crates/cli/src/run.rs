//! `duralite run` and `duralite shell`: run a program with Duralite under its SQLite.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;

use crate::launch::{self, Orders, Settings};
use crate::program::Missing;

/// The exit statuses by which a shell says that a program does not exist, or that it cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
const WRONG_USAGE: u8 = 2;
/// SQLite's own shell.
pub(crate) const SHELL: &str = "sqlite3";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Set WAL mode in every database that the program opens; without this option a database in another mode stays plain SQLite
    #[arg(long)]
    wal: bool,
    /// Print nothing at the end
    #[arg(long, short)]
    quiet: bool,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    settings: Settings,
    /// The database
    database: OsString,
    /// Further arguments of sqlite3: SQL, or options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    rest: Vec<OsString>,
}

/// Replaces this process with the program. So the program has its own exit status, signals and terminal.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some((program, rest)) = arguments.program.split_first() else {
        return Ok(ExitCode::from(WRONG_USAGE));
    };
    let orders = Orders { wal: arguments.wal, quiet: arguments.quiet, reasons: false };
    become_program(program, rest, &arguments.settings, orders)
}

/// Replaces this process with SQLite's own shell.
pub(crate) fn shell(arguments: &ShellArguments) -> Result<ExitCode> {
    let rest: Vec<OsString> = [&arguments.database].into_iter().chain(&arguments.rest).cloned().collect();
    let orders = Orders { wal: false, quiet: true, reasons: true };
    become_program(OsStr::new(SHELL), &rest, &arguments.settings, orders)
}

fn become_program(name: &OsStr, rest: &[OsString], settings: &Settings, orders: Orders) -> Result<ExitCode> {
    if let Err(error) = settings.variables() {
        eprintln!("duralite: {error:#}");
        return Ok(ExitCode::from(WRONG_USAGE));
    }
    let error = match launch::command(name, settings, orders) {
        Ok(mut command) => anyhow!("{}: {}", name.display(), command.args(rest).exec()),
        Err(error) => error,
    };
    eprintln!("duralite: {error:#}");
    Ok(ExitCode::from(if error.is::<Missing>() { NOT_FOUND } else { NOT_RUN }))
}
