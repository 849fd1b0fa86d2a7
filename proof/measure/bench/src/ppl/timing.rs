//! Times workloads on several configurations, which take turns.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::config::{Config, InPaper};
use super::io::Bytes;
use super::paper::{FLASH_PAGE_BYTES, FLASH_WRITE_NS};
use super::prepared::Prepared;
use super::replay::{Database, run};
use crate::report::number;
use crate::workload::{median, percentile};

/// The largest number of rounds. Few suffice, because a workload already has thousands of transactions.
pub const ROUNDS: usize = 3;

/// Returns the sentences in a table's note that explain how the paper's flash is modelled.
#[must_use]
pub fn flash_note() -> String {
    format!(
        "The paper's flash is a model: {:.2} ms, the time of a random write on its first SD card (516.3 per second), are added \
         for each page of 4 KiB that is handed over to the system to be written to the database or to SQLite's own log. What \
         this disk took for these writes stays in the time, which is little beside it. Not slowed are reads, which come from the \
         system's cache, flushes, and the pages that the file system writes for itself. Both of the last are more with stock \
         SQLite. The card writes faster in sequence, 5.1 MB/s, of which WAL's log would profit.",
        FLASH_WRITE_NS / 1e6
    )
}

/// The times of a workload on one configuration.
pub struct Timing {
    /// The configuration.
    pub config: Config,
    /// The milliseconds for all statements and for closing the database, as the median of the rounds.
    pub ms: f64,
    /// The microseconds per statement, without closing the database, as the median of the rounds.
    pub mean_us: f64,
    /// The microseconds of every statement of every round, in ascending order.
    pub latencies: Vec<f64>,
    /// The bytes read and written by system calls in the last round.
    pub bytes: Bytes,
}

impl Timing {
    /// Returns how many times as fast this configuration is as the reference, which is the first in `all` that belongs
    /// to the row `of` of the paper's tables.
    #[must_use]
    pub fn times(&self, of: InPaper, all: &[Self]) -> String {
        let base = all.iter().find(|timing| timing.config.in_paper == of);
        base.map_or_else(|| "-".to_owned(), |base| format!("{:.2}x", base.ms / self.ms))
    }

    /// Returns the number of pages that system calls wrote to files.
    #[must_use]
    pub fn pages_written(&self) -> u64 {
        self.bytes.written.div_ceil(FLASH_PAGE_BYTES)
    }

    /// Returns the milliseconds that the workload would take with its files on the paper's flash.
    #[must_use]
    pub fn on_flash_ms(&self) -> f64 {
        self.ms + self.pages_written() as f64 * FLASH_WRITE_NS / 1e6
    }

    /// Returns the cells of a row in a table of files on the paper's flash: the pages written, the milliseconds, and
    /// how many times as fast this configuration is as WAL.
    #[must_use]
    pub fn on_flash(&self, all: &[Self]) -> [String; 3] {
        let wal = all.iter().find(|timing| timing.config.in_paper == InPaper::Wal);
        let ratio = |wal: &Self| format!("{:.2}x", wal.on_flash_ms() / self.on_flash_ms());
        let ratio = wal.map_or_else(|| "-".to_owned(), ratio);
        [self.pages_written().to_string(), number(self.on_flash_ms()), ratio]
    }

    /// Returns the transactions per second.
    #[must_use]
    pub fn per_second(&self, prepared: &Prepared) -> String {
        number(prepared.workload.transactions.len() as f64 * 1e3 / self.ms)
    }

    /// Returns the latency in microseconds that `percent` per cent of the statements do not exceed.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        percentile(&self.latencies, percent as f64 / 100.0).unwrap_or(f64::NAN)
    }
}

/// Times a workload on each configuration, with files in `dir`. In each round the configurations run one after another.
///
/// # Errors
/// An error of SQLite or of the file system.
pub fn time(dir: &Path, prepared: &Prepared, configs: &[Config], rounds: usize) -> Result<Vec<Timing>> {
    let mut rows: Vec<Rounds> = configs.iter().map(|_| Rounds::default()).collect();
    for _ in 0..rounds {
        for (config, rows) in configs.iter().zip(&mut rows) {
            rows.add(dir, prepared, config)?;
        }
    }
    Ok(configs.iter().zip(rows).map(|(config, rows)| rows.timing(config)).collect())
}

#[derive(Default)]
struct Rounds {
    ms: Vec<f64>,
    mean_us: Vec<f64>,
    latencies: Vec<f64>,
    bytes: Bytes,
}

impl Rounds {
    fn add(&mut self, dir: &Path, prepared: &Prepared, config: &Config) -> Result<()> {
        let database = Database::new(dir, &prepared.template, config)?;
        let conn = database.open()?;
        let before = Bytes::now()?;
        let run = run(&conn, &prepared.workload)?;
        let closing = Instant::now();
        drop(conn);
        self.ms.push((run.elapsed + closing.elapsed()).as_secs_f64() * 1e3);
        self.bytes = before.since()?;
        self.mean_us.push(run.elapsed.as_secs_f64() * 1e6 / prepared.workload.statement_count() as f64);
        self.latencies.extend(run.latencies);
        Ok(())
    }

    fn timing(mut self, config: &Config) -> Timing {
        self.latencies.sort_by(f64::total_cmp);
        Timing {
            config: config.clone(),
            ms: median(self.ms),
            mean_us: median(self.mean_us),
            latencies: self.latencies,
            bytes: self.bytes,
        }
    }
}
