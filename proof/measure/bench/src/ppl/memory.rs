//! Figure 8: the run times of the workloads with files in memory and in PCM.

use std::path::Path;

use anyhow::{Context, Result};

use super::config::{Config, InPaper, Latency, pcm_note};
use super::paper::{PCM_LINE_BYTES, PCM_READ_NS, PCM_WRITE_NS};
use super::prepared::Prepared;
use super::timing::{ROUNDS, Timing, flash_note, time};
use crate::nvwal::Effort;
use crate::report::{Table, number};

/// The directory of files in memory.
const MEMORY: &str = "/dev/shm";
/// Returns the nanoseconds that PCM would take for the bytes that system calls read and wrote.
fn in_pcm_ns(timing: &Timing) -> u64 {
    let lines = |bytes: u64, ns: u32| bytes.div_ceil(PCM_LINE_BYTES) * u64::from(ns);
    lines(timing.bytes.written, PCM_WRITE_NS) + lines(timing.bytes.read, PCM_READ_NS)
}

/// Measures figure 8: databases and logs in memory, and in PCM.
///
/// # Errors
/// An error of SQLite, or there is no directory for files in memory.
pub fn figure8(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let memory = tempfile::tempdir_in(MEMORY).context(MEMORY)?;
    let rounds = effort.rounds.min(ROUNDS);
    let mut table = Table::new(
        "ppl_figure8",
        "SQLite/PPL figure 8: databases and logs in memory",
        &[
            "workload",
            "mode",
            "ms",
            "transactions/s",
            "WAL / this",
            "nvwal / this",
            "in PCM: ms",
            "in PCM: WAL / this",
        ],
    );
    let in_nvram = |latency| std::iter::once(Config::nvwal(latency)).chain(Config::ppl(latency));
    let stock = [Config::delete(), Config::wal()];
    let plain: Vec<Config> = stock.iter().cloned().chain(in_nvram(Latency::None)).collect();
    let slow: Vec<Config> = in_nvram(Latency::Pcm).collect();
    for prepared in Prepared::all(memory.path())? {
        let timings = time(memory.path(), &prepared, &plain, rounds)?;
        let slowed = time(memory.path(), &prepared, &slow, rounds)?;
        let on_disk = time(dir, &prepared, &slow, rounds)?;
        let in_pcm: Vec<f64> = (timings.iter().take(stock.len()).chain(&slowed))
            .map(|timing| timing.ms + in_pcm_ns(timing) as f64 / 1e6)
            .collect();
        let wal_in_pcm = *in_pcm.get(1).context("WAL is timed")?;
        for (timing, ms) in timings.iter().zip(&in_pcm) {
            table.row([
                prepared.name(),
                timing.config.name.clone(),
                number(timing.ms),
                timing.per_second(&prepared),
                timing.times(InPaper::Wal, &timings),
                timing.times(InPaper::Absent, &timings),
                number(*ms),
                format!("{:.2}x", wal_in_pcm / ms),
            ]);
        }
        for timing in &slowed {
            let ms = timing.on_flash_ms();
            let mut cells =
                vec![prepared.name(), format!("{}, database on the paper's flash", timing.config.name)];
            cells.extend(["-"; 4].map(str::to_owned));
            cells.extend([number(ms), format!("{:.2}x", wal_in_pcm / ms)]);
            table.row(cells);
        }
        for (timing, disk) in timings.iter().skip(stock.len()).zip(on_disk) {
            let mut cells = vec![prepared.name(), format!("{}, database on this disk", timing.config.name)];
            cells.extend(["-"; 4].map(str::to_owned));
            cells.extend([number(disk.ms), format!("{:.2}x", wal_in_pcm / disk.ms)]);
            table.row(cells);
        }
    }
    table.note = format!(
        "Medians of {rounds} rounds, all files in {MEMORY}. {} In PCM: for each line written to a log in \
         NVRAM, the run waits PCM's time. For data written through files (all of stock SQLite's, and the \
         checkpoints of the others), bytes are counted, and the time of their lines is added. `database on \
         the paper's flash` has only its log in PCM, which is the paper's ordinary configuration. {} `database on \
         this disk` is the same with the files on this disk, which is much faster than flash. The paper's figure \
         8 has no numbers: SQLite/PPL is the fastest on all workloads. Even with the database on flash it is \
         faster than stock SQLite in PCM on KakaoTalk, Twitter and AndroBench.",
        pcm_note(),
        flash_note()
    );
    Ok(vec![table])
}
