//! The commands that are `duralite-proof`'s: who runs a database needs no benchmarks and no rigs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};
use clap::Args;

const PROGRAM: &str = "duralite-proof";

#[derive(Args)]
pub(crate) struct Arguments {
    /// See `duralite-proof COMMAND --help`, or `duralite-storebench --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    all: Vec<OsString>,
}

/// Becomes that command.
pub(crate) fn run(name: &str, arguments: &Arguments) -> Result<ExitCode> {
    become_program(PROGRAM, "proof/command", &[name.into()], arguments)
}

/// Becomes a program that has one purpose.
pub(crate) fn run_program(program: &str, home: &str, arguments: &Arguments) -> Result<ExitCode> {
    become_program(program, home, &[], arguments)
}

/// The one beside this program, else the one on `PATH`.
fn become_program(name: &str, home: &str, first: &[OsString], arguments: &Arguments) -> Result<ExitCode> {
    let beside = std::env::current_exe()?.with_file_name(name);
    let program = if beside.is_file() { beside } else { name.into() };
    let error = Command::new(&program).args(first).args(&arguments.all).exec();
    Err(anyhow!("this is a part of {name}, which cannot be run ({error}); it is in {home}"))
}
