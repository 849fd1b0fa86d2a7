//! `duralite generate`: writes the files that packages install with the command.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Command, Subcommand};
use clap_complete::Shell;

#[derive(Subcommand)]
pub(crate) enum What {
    /// Write duralite(1), and a page for each command, into a directory
    Man {
        /// The directory; created if it does not exist
        dir: PathBuf,
    },
    /// Write the completions for bash, zsh and fish into a directory
    Completions {
        /// The directory; created if it does not exist
        dir: PathBuf,
    },
}

pub(crate) fn run(what: &What, mut command: Command) -> Result<ExitCode> {
    let (What::Man { dir } | What::Completions { dir }) = what;
    let failed = || format!("write into {}", dir.display());
    fs::create_dir_all(dir).with_context(failed)?;
    match what {
        What::Man { .. } => clap_mangen::generate_to(command, dir).with_context(failed)?,
        What::Completions { .. } => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut command, "duralite", dir).with_context(failed)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
