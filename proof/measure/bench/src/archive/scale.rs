//! Decides how much a run measures. Also measures how much other programs load the machine.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::nvwal::Effort;

/// The largest number of rounds. The benchmark reports the median of the rounds.
const ROUNDS: usize = 3;

pub(super) fn rounds(effort: Effort) -> usize {
    effort.rounds.min(ROUNDS)
}

/// Measures for a second, and returns the percentage of processor time that other programs use.
pub(super) fn load_before() -> Result<f64> {
    let read = || -> Result<(f64, f64)> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat is empty")?;
        let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        // These two fields count idle time and waiting for a device.
        let idle = ticks.iter().skip(3).take(2).sum();
        Ok((ticks.iter().sum(), idle))
    };
    let before = read()?;
    std::thread::sleep(Duration::from_secs(1));
    let after = read()?;
    Ok(100.0 * (1.0 - (after.1 - before.1) / (after.0 - before.0)))
}

/// Returns a sentence about the load by other programs, for the note under a table.
pub(super) fn of_others(load: f64) -> String {
    format!("Before the run, other programs used {load:.0}% of the processors.")
}
