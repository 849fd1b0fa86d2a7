//! `duralite reclaim`: shows how much of the regions in a directory belongs to logs of the engine `scratchpad`, and
//! frees what belongs to deleted logs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use duralite_cli::output::{print_json, print_text};
use duralite_wal::engines::scratchpad::{RegionUse, reclaim};
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory of the regions
    directory: PathBuf,
    /// Free the space of logs that are not in the directory: use this only if they were deleted, not moved
    #[arg(long)]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { ref directory, discard, json } = *arguments;
    let regions = reclaim(directory, discard)?;
    if regions.is_empty() {
        bail!("{} has no region", directory.display());
    }
    if json {
        print_json(&Value::Array(regions.iter().map(|region| as_json(region, discard)).collect()))?;
    } else {
        print_text(&regions.iter().map(|region| as_text(region, directory, discard)).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(region: &RegionUse, discarded: bool) -> Value {
    json!({
        "region": region.path.display().to_string(),
        "limit_bytes": region.limit_bytes,
        "used_bytes": region.used_bytes,
        "missing_logs": region.missing_logs,
        "missing_bytes": region.missing_bytes,
        "discarded": discarded,
    })
}

fn as_text(region: &RegionUse, directory: &Path, discarded: bool) -> String {
    let RegionUse { ref path, limit_bytes, used_bytes, missing_bytes, missing_logs } = *region;
    let done = if discarded { "freed" } else { "kept" };
    format!(
        "{}: {used_bytes} of {limit_bytes} bytes belong to logs in {} or in use; {missing_bytes} bytes of \
         {missing_logs} other logs were {done}\n",
        path.display(),
        directory.display()
    )
}
