//! Counts system calls per commit with strace.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::child;
use crate::modes::Mode;
use crate::scene::Scene;

const COMMITS: usize = 400;

/// Returns whether strace is installed and allowed to trace.
pub(crate) fn can_count() -> bool {
    Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Counts the system calls per commit. The result comes from the difference between two traced runs, so the
/// calls at start-up do not count.
///
/// # Errors
/// An error if a traced run fails, or after an interrupt.
pub(crate) fn per_commit(scene: &Scene, mode: &Mode) -> Result<f64> {
    let commits = COMMITS.min(scene.rows.len() / 2);
    let (few, many) = (total(scene, mode, commits)?, total(scene, mode, 2 * commits)?);
    Ok((many as f64 - few as f64) / commits as f64)
}

fn total(scene: &Scene, mode: &Mode, commits: usize) -> Result<u64> {
    let path = scene.database(&format!("traced-{}-{commits}", mode.key));
    let summary = scene.databases().join("strace.txt");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(&summary).arg(std::env::current_exe()?);
    command
        .arg(child::NAME)
        .arg(mode.key)
        .arg(path)
        .arg(scene.pool())
        .arg(commits.to_string())
        .arg("--traced");
    let answer = scene.processes.output(&mut command)?;
    if !answer.status.success() {
        bail!("the traced process: {}", String::from_utf8_lossy(&answer.stderr).trim());
    }
    calls_of(&fs::read_to_string(summary)?).context("strace has counted nothing")
}

/// Returns the total of the column `calls`. The position of this column differs between versions of strace.
/// Most versions print the microseconds per call before it.
fn calls_of(summary: &str) -> Option<u64> {
    let column = summary
        .lines()
        .next()?
        .split_whitespace()
        .filter(|word| *word != "%")
        .position(|word| word == "calls")?;
    let total = summary.lines().rfind(|line| line.ends_with(" total"))?;
    total.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_that_of_the_calls() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.000100          10        10         2 read\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.000100          10        12         2 total\n";
        assert_eq!(calls_of(summary), Some(12));
        assert_eq!(calls_of("strace: nothing"), None);
    }
}
