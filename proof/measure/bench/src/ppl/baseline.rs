//! Figure 6 and table 5: the run times of the workloads with databases on disk.

use std::path::Path;

use anyhow::{Context, Result};

use super::config::{Config, InPaper, Latency, POLICY_NOTE, pcm_note};
use super::prepared::Prepared;
use super::timing::{ROUNDS, Timing, flash_note, time};
use crate::nvwal::Effort;
use crate::report::{Table, number};

/// Measures figure 6, with files on this disk. Also calculates the times for the flash device of the paper.
/// The same runs give table 5.
pub fn figure6(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let mut configs = vec![Config::delete(), Config::wal()];
    for latency in [Latency::None, Latency::Pcm] {
        configs.push(Config::nvwal(latency));
        configs.extend(Config::ppl(latency));
        configs.extend(Config::of_paper(latency).into_iter().next());
    }
    let mut elapsed = Table::new(
        "ppl_figure6",
        "SQLite/PPL figure 6: time for each workload, the database on this disk",
        &["workload", "mode", "ms", "transactions/s", "DELETE / this", "WAL / this"],
    );
    let mut flash = Table::new(
        "ppl_figure6_flash",
        "SQLite/PPL figure 6: time for each workload, the database on the paper's flash",
        &["workload", "mode", "pages written", "ms", "WAL / this"],
    );
    let mut latency = Table::new(
        "ppl_table5",
        "SQLite/PPL table 5: time per statement",
        &[
            "workload",
            "mode",
            "mean us",
            "median us",
            "99% us",
            "WAL / this",
            "paper: mean us",
            "paper: WAL / this",
        ],
    );
    let rounds = effort.rounds.min(ROUNDS);
    for prepared in Prepared::all(dir)? {
        let timings = time(dir, &prepared, &configs, rounds)?;
        let wal =
            timings.iter().find(|timing| timing.config.in_paper == InPaper::Wal).context("WAL is timed")?;
        for timing in &timings {
            elapsed.row([
                prepared.name(),
                timing.config.name.clone(),
                number(timing.ms),
                timing.per_second(&prepared),
                timing.times(InPaper::Delete, &timings),
                timing.times(InPaper::Wal, &timings),
            ]);
            let names = [prepared.name(), timing.config.name.clone()];
            flash.row(names.into_iter().chain(timing.on_flash(&timings)));
            latency.row(per_statement(&prepared, timing, wal));
        }
    }
    elapsed.note = format!(
        "Medians of {rounds} rounds, in each of which all modes take their turn. From the first statement \
         until the database is closed, checkpoints included; synchronous=FULL, automatic checkpoints every \
         1,000 pages, normal locking. All engines with a log in NVRAM have the same limit for that log. {} {} \
         The paper's SQLite/PPL is up to 16.54 times as fast as DELETE and 8.25 times as WAL on the five \
         traces, 24.27 and 9.47 times on AndroBench; its SD card made a page durable in milliseconds. This \
         disk takes a tenth of a millisecond, so avoiding writes to it saves less, and more of the time is \
         SQLite's own.",
        POLICY_NOTE,
        pcm_note()
    );
    flash.note = format!("From the same runs. {}", flash_note());
    latency.note = "From the same runs, without closing; the time of a batch's last statement includes the \
                    COMMIT. The paper's figures are from its slower SD card, and are 30 to 300 times those \
                    of this disk, so only the columns with ratios can be compared. In workloads in which \
                    most statements are reads, or are inside batches, the median statement is one of those."
        .to_owned();
    Ok(vec![elapsed, flash, latency])
}

/// Returns a row of table 5.
fn per_statement(prepared: &Prepared, timing: &Timing, wal: &Timing) -> [String; 8] {
    let [delete_ms, wal_ms, ppl_ms] = prepared.workload.paper.latency_ms;
    let paper = match timing.config.in_paper {
        InPaper::Delete => Some(delete_ms),
        InPaper::Wal => Some(wal_ms),
        InPaper::Ppl => Some(ppl_ms),
        InPaper::Absent => None,
    };
    let shown = |text: &dyn Fn(f64) -> String| paper.map_or_else(|| "-".to_owned(), text);
    [
        prepared.name(),
        timing.config.name.clone(),
        number(timing.mean_us),
        number(timing.percentile(50)),
        number(timing.percentile(99)),
        format!("{:.2}x", wal.mean_us / timing.mean_us),
        shown(&|ms| number(ms * 1e3)),
        shown(&|ms| format!("{:.2}x", wal_ms / ms)),
    ]
}
