//! The database or log that a command works on.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct Target {
    /// A database, or a log file (DATABASE-duralite)
    pub(crate) path: PathBuf,
    /// Directory with the logs, if it is none of the usual places
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Directory with the logs in NVRAM, if it is none of the usual places
    #[arg(long, value_name = "DIR", env = "DURALITE_NVRAM_DIR")]
    pub(crate) nvram_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
