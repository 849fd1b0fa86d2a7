//! Many concurrent connections: stock SQLite starves all but one.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::scene::Scene;
use crate::screen::{say, table};
use crate::stock;

/// Runs the corresponding measurement of `duralite bench`, and prints the result.
///
/// # Errors
/// If the measurement fails, or after an interrupt.
pub(crate) fn run(scene: &Scene) -> Result<()> {
    say("\nMany writers at once, two seconds each (busy timeout 20 s) ...")?;
    let mut command = Command::new(stock::built("duralite")?);
    command.args(["bench", "--json", "--rounds", "1", "--dir"]);
    command.arg(scene.databases().join("crowd")).arg("waldio_crowds");
    let answer = scene.processes.output(&mut command)?;
    if !answer.status.success() {
        bail!("duralite bench: {}", String::from_utf8_lossy(&answer.stderr).trim());
    }
    let report: Value = serde_json::from_slice(&answer.stdout).context("what duralite bench printed")?;
    let rows: Vec<Vec<String>> = serde_json::from_value(report["tables"][0]["rows"].clone())?;
    let rows: Vec<_> =
        rows.into_iter().filter(|row| row.get(1).is_some_and(|what| !what.contains("embedded"))).collect();
    let heading = ["", "", "commits/s", "of stock", "slowest / mean", "worst commit, ms", "SQLITE_BUSY"];
    say(&table(&heading, &rows))
}
