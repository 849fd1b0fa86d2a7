//! The commands that are `duralite-proof`'s: who runs a database needs no benchmarks and no rigs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};
use clap::Args;

const PROGRAM: &str = "duralite-proof";

#[derive(Args)]
pub(crate) struct Arguments {
    /// See `duralite-proof COMMAND --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    all: Vec<OsString>,
}

/// Becomes that command: the one beside this program, else the one on `PATH`.
pub(crate) fn run(name: &str, arguments: &Arguments) -> Result<ExitCode> {
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    let program = if beside.is_file() { beside } else { PROGRAM.into() };
    let error = Command::new(&program).arg(name).args(&arguments.all).exec();
    Err(anyhow!(
        "`duralite {name}` is a part of {PROGRAM}, which cannot be run ({error}); it is in proof/command"
    ))
}
