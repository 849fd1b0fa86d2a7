//! Figures 6, 7 and 8 and table 5: how long the workloads take.

use std::path::Path;

use anyhow::{Context, Result};

use super::config::{Config, InPaper, Latency};
use super::paper::{PCM_LINE_BYTES, PCM_READ_NS, PCM_WRITE_NS};
use super::prepared::Prepared;
use super::timing::{Timing, time};
use crate::nvwal::Effort;
use crate::report::{Table, number};

/// Where files in memory are.
const MEMORY: &str = "/dev/shm";
/// Rounds of what takes long and varies little.
const FEW: usize = 3;

/// How many times as long as `this` stock SQLite in that mode took.
fn times(of: InPaper, this: &Timing, all: &[Timing]) -> String {
    let base = all.iter().find(|timing| timing.config.in_paper == of);
    base.map_or_else(|| "-".to_owned(), |base| format!("{:.2}x", base.ms / this.ms))
}

fn per_second(prepared: &Prepared, ms: f64) -> String {
    number(prepared.workload.transactions.len() as f64 * 1e3 / ms)
}

/// Figure 6 and table 5, of the same runs.
///
/// # Errors
/// SQLite's.
pub fn figure6(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let mut configs = vec![Config::delete(), Config::wal()];
    for latency in [Latency::None, Latency::Pcm] {
        configs.push(Config::nvwal(latency));
        configs.extend(Config::ppl(latency));
    }
    let mut elapsed = Table::new(
        "ppl_figure6",
        "SQLite/PPL figure 6: time for each workload, the database on this disk",
        &["workload", "mode", "ms", "transactions/s", "DELETE / this", "WAL / this"],
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
    for prepared in Prepared::all(dir)? {
        let timings = time(dir, &prepared, &configs, effort.rounds)?;
        let wal =
            timings.iter().find(|timing| timing.config.in_paper == InPaper::Wal).context("WAL is timed")?;
        for timing in &timings {
            let mode = timing.config.name.clone();
            elapsed.row([
                prepared.name(),
                mode.clone(),
                number(timing.ms),
                per_second(&prepared, timing.ms),
                times(InPaper::Delete, timing, &timings),
                times(InPaper::Wal, timing, &timings),
            ]);
            let [delete_ms, wal_ms, ppl_ms] = prepared.workload.paper.latency_ms;
            let paper = match timing.config.in_paper {
                InPaper::Delete => Some(delete_ms),
                InPaper::Wal => Some(wal_ms),
                InPaper::Ppl => Some(ppl_ms),
                InPaper::Absent => None,
            };
            let shown = |text: &dyn Fn(f64) -> String| paper.map_or_else(|| "-".to_owned(), text);
            latency.row([
                prepared.name(),
                mode,
                number(timing.mean_us),
                number(timing.percentile(50)),
                number(timing.percentile(99)),
                format!("{:.2}x", wal.mean_us / timing.mean_us),
                shown(&|ms| number(ms * 1e3)),
                shown(&|ms| format!("{:.2}x", wal_ms / ms)),
            ]);
        }
    }
    elapsed.note = format!(
        "Medians of {} rounds, in each of which all modes take their turn. From the first statement until the \
         database is closed, checkpoints included; synchronous=FULL, automatic checkpoints every 1,000 pages, \
         normal locking. Engines with a log in NVRAM have the same limit for it. {} The paper's SQLite/PPL is up to \
         16.54 times as fast as DELETE and 8.25 times as WAL on the five traces, 24.27 and 9.47 times on AndroBench; \
         its SD card made a page durable in milliseconds, this disk takes a tenth of one, so that less can be \
         saved of it by leaving it alone, and more of the time is SQLite's own.",
        effort.rounds,
        pcm()
    );
    latency.note = "Of the same runs, without closing; a batch's last statement has its COMMIT in it. The paper's \
                    figures are from its slower SD card. They are 30 to 300 times this disk's, and \
                    only the columns with ratios compare. The median statement is a read or a statement inside \
                    a batch where those are the most."
        .to_owned();
    Ok(vec![elapsed, latency])
}

/// How PCM's latencies are set.
fn pcm() -> String {
    format!(
        "`PCM`: the paper's table 1 (408 ns to read 4 bytes, 7.5 us to write them; its board writes up to 32 at \
         once), a line of 64 bytes being two such accesses: nvram_write_ns={PCM_WRITE_NS}, nvram_read_ns={PCM_READ_NS}, \
         and no cost of a fence besides, as none is named."
    )
}

/// Figure 7: sizes of log sectors. Nothing where there is no engine with sectors.
///
/// # Errors
/// SQLite's.
pub fn figure7(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let sectors: Vec<Config> = [Latency::None, Latency::Pcm].into_iter().flat_map(Config::sectors).collect();
    if sectors.is_empty() {
        return Ok(Vec::new());
    }
    let configs: Vec<Config> =
        [Config::wal(), Config::nvwal(Latency::None)].into_iter().chain(sectors).collect();
    let rounds = effort.rounds.min(FEW);
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
                per_second(&prepared, timing.ms),
                times(InPaper::Wal, timing, &timings),
            ]);
        }
    }
    table.note = format!(
        "Medians of {rounds} rounds. In the paper time falls with the sector's size on every workload, and from \
         8 KiB on hardly, but for AndroBench."
    );
    Ok(vec![table])
}

/// Nanoseconds that PCM would take for what was read and written with system calls.
fn in_pcm_ns(timing: &Timing) -> u64 {
    let lines = |bytes: u64, ns: u32| bytes.div_ceil(PCM_LINE_BYTES) * u64::from(ns);
    lines(timing.bytes.written, PCM_WRITE_NS) + lines(timing.bytes.read, PCM_READ_NS)
}

/// Figure 8: databases and logs in memory, and in PCM.
///
/// # Errors
/// SQLite's, or there is no place for files in memory.
pub fn figure8(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let memory = tempfile::tempdir_in(MEMORY).context(MEMORY)?;
    let rounds = effort.rounds.min(FEW);
    let mut table = Table::new(
        "ppl_figure8",
        "SQLite/PPL figure 8: databases and logs in memory",
        &["workload", "mode", "ms", "transactions/s", "WAL / this", "in PCM: ms", "in PCM: WAL / this"],
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
                per_second(&prepared, timing.ms),
                times(InPaper::Wal, timing, &timings),
                number(*ms),
                format!("{:.2}x", wal_in_pcm / ms),
            ]);
        }
        for (timing, disk) in timings.iter().skip(stock.len()).zip(on_disk) {
            let mut cells = vec![prepared.name(), format!("{}, database on this disk", timing.config.name)];
            cells.extend(["-", "-", "-"].map(str::to_owned));
            cells.extend([number(disk.ms), format!("{:.2}x", wal_in_pcm / disk.ms)]);
            table.row(cells);
        }
    }
    table.note = format!(
        "Medians of {rounds} rounds, all files in {MEMORY}. {} In PCM: of a log in NVRAM each line is waited for as it is \
         written; what goes through files (all of stock SQLite's, the checkpoints of the others) is counted in \
         bytes, and its lines' time added. `database on this disk` has only its log in PCM, which is the paper's \
         ordinary configuration. The paper's figure 8 has no numbers: SQLite/PPL leads on all workloads, and with the \
         database on flash still leads stock SQLite in PCM on KakaoTalk, Twitter and AndroBench.",
        pcm()
    );
    Ok(vec![table])
}
