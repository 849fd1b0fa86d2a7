//! Measures how the size of the database and the length of the log affect commits.

use std::path::Path;

use anyhow::{Result, bail};

use super::child;
use super::scale::{self, WALDIO};
use super::tasks::{LENGTH, SIZE};
use crate::concurrent;
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::waldio;

/// If this environment variable is set, the benchmark also measures the sizes that take long.
const LARGE: &str = "DURALITE_BENCH_10GB";
const MB: u64 = 1_000_000;
/// The block size of the raw overwrites, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// The measurements. Each has the task, the name of the row, the size of the database or the length of the
/// log, and whether it takes long.
const STEPS: [(&str, &str, u64, bool); 9] = [
    (SIZE, "database of 1 MB", MB, false),
    (SIZE, "database of 10 MB", 10 * MB, false),
    (SIZE, "database of 100 MB", 100 * MB, false),
    (SIZE, "database of 1 GB", 1000 * MB, false),
    (SIZE, "database of 10 GB", 10_000 * MB, true),
    (LENGTH, "log of 10^3 frames", 1000, false),
    (LENGTH, "log of 10^4 frames", 10_000, false),
    (LENGTH, "log of 10^5 frames", 100_000, false),
    (LENGTH, "log of 10^6 frames", 1_000_000, true),
];

/// Returns the number of transactions per round. If the task depends on the database's size, this number is
/// large enough for checkpoints to occur. If it depends on the log's length, the number is at most a tenth
/// of that length, so that the transactions hardly change the length.
fn transactions(task: &str, amount: u64, effort: Effort) -> u64 {
    let asked = u64::from(effort.transactions);
    if task == SIZE { asked * 3 } else { asked.min(amount / 10) }
}

/// Measures commits per second by size of the database and by length of the log, for one thread on `waldio`.
///
/// # Errors
/// An error of SQLite, or of starting a process.
pub fn sizes(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "everyday_sizes",
        "waldio, one thread: what the size of the database does, and the length of the log",
        &[
            "what",
            "inserts/s",
            "updates of random rows/s",
            "raw overwrites/s",
            "inserts / raw",
            "updates / raw",
            "resident MiB",
        ],
    );
    let is_large = std::env::var_os(LARGE).is_some();
    let rounds = scale::rounds(effort) as u64;
    for (task, name, amount, takes_long) in STEPS {
        if takes_long && !is_large {
            continue;
        }
        let own = tempfile::tempdir_in(dir)?;
        let uri = concurrent::fresh(own.path(), Some(WALDIO));
        let said = child::ask(task, &uri, &[amount, transactions(task, amount, effort), rounds])?;
        let [inserts, updates, resident] = said[..] else { bail!("a worker said {said:?}") };
        let raw = waldio::raw_overwrites(own.path(), BLOCK_BYTES, effort.transactions)?;
        let of_raw = |rate: f64| format!("{:.2}x", rate / raw);
        table.row([
            name.to_owned(),
            number(inserts),
            number(updates),
            number(raw),
            of_raw(inserts),
            of_raw(updates),
            number(resident),
        ]);
    }
    table.note = format!(
        "A process for each row; medians of {rounds} rounds in it. Databases are filled by transactions of \
         10 MB, and then written with automatic checkpoints; logs have pages of a database of 1 MB, with \
         `wal_autocheckpoint=0`. Each transaction inserts a row at the end, or changes a row at random. Raw \
         overwrites are durable, of 4 KiB each, and measured immediately after the row, because a disk that \
         has just taken gigabytes may be slow for a while. Resident is all memory of the process that is in \
         RAM, including shared memory. 10 GB and 10^6 frames only with {LARGE} set."
    );
    Ok(table)
}
