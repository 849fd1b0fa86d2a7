//! Starts the commands that `duralite-proof` and other programs provide. These programs are separate, because users who
//! run a database need no benchmarks and no test rigs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};
use clap::Args;

const PROGRAM: &str = "duralite-proof";

#[derive(Args)]
pub(crate) struct Arguments {
    /// See `duralite-proof COMMAND --help`, `duralite-archive COMMAND --help`, or `duralite-storebench --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    all: Vec<OsString>,
}

/// Replaces this process with `duralite-proof` and the named command.
pub(crate) fn run(name: &str, arguments: &Arguments) -> Result<ExitCode> {
    become_program(PROGRAM, "proof/command", &[name], arguments)
}

/// Replaces this process with a program that has no subcommands.
pub(crate) fn run_program(program: &str, home: &str, arguments: &Arguments) -> Result<ExitCode> {
    become_program(program, home, &[], arguments)
}

/// Replaces this process with the program of this name. The program's file is in the directory of this program, or else
/// on `PATH`.
pub(crate) fn become_program(
    name: &str,
    home: &str,
    first: &[&str],
    arguments: &Arguments,
) -> Result<ExitCode> {
    let error = Command::new(program(name)?).args(first).args(&arguments.all).exec();
    Err(anyhow!("this command is a part of {name}, which cannot be run ({error}); build {name} from {home}"))
}

/// Returns the path of a program in the directory of this program. If there is none, returns only the name, which the
/// system then looks up on `PATH`.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name(name);
    Ok(if beside.is_file() { beside } else { name.into() })
}
