//! Figure 7: how the size of log sectors affects the run time.

use std::path::Path;

use anyhow::Result;

use super::config::{Config, InPaper, Latency};
use super::prepared::Prepared;
use super::timing::{ROUNDS, time};
use crate::nvwal::Effort;
use crate::report::{Table, number};

/// Figure 7: sizes of log sectors. Returns no table if no engine has sectors.
///
/// # Errors
/// An error of SQLite.
pub fn figure7(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let sectors: Vec<Config> = [Latency::None, Latency::Pcm].into_iter().flat_map(Config::sectors).collect();
    if sectors.is_empty() {
        return Ok(Vec::new());
    }
    let configs: Vec<Config> =
        [Config::wal(), Config::nvwal(Latency::None)].into_iter().chain(sectors).collect();
    let rounds = effort.rounds.min(ROUNDS);
    let mut table = Table::new(
        "ppl_figure7",
        "SQLite/PPL figure 7: size of a log sector",
        &["workload", "mode", "ms", "transactions/s", "WAL / this"],
    );
    for prepared in Prepared::all(dir)? {
        let timings = time(dir, &prepared, &configs, rounds)?;
        for timing in &timings {
            table.row([
                prepared.name(),
                timing.config.name.clone(),
                number(timing.ms),
                timing.per_second(&prepared),
                timing.times(InPaper::Wal, &timings),
            ]);
        }
    }
    table.note = format!(
        "Medians of {rounds} rounds. In the paper, the time falls on every workload when sectors become \
         larger, but hardly beyond 8 KiB, except on AndroBench. The rows with `overflow_bytes=0` have the \
         paper's policy, by which a page is merged as soon as its sector is full. In the others the log of a \
         page first takes some of the pool, so the size of its sector matters less."
    );
    Ok(vec![table])
}
