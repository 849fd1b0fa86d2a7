//! The database or log that a command works on.

use std::path::PathBuf;

use clap::Args;

/// A database or log, and where to look for logs.
#[derive(Args)]
pub struct Target {
    /// A database, or a log file (DATABASE-duralite)
    pub path: PathBuf,
    /// Directory with the logs, if it is none of the usual places
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Directory with the logs in NVRAM, if it is none of the usual places
    #[arg(long, value_name = "DIR", env = "DURALITE_NVRAM_DIR")]
    pub nvram_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
