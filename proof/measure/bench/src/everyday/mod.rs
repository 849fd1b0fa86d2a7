//! Measures performance as users notice it: many connections, one connection, a process per transaction,
//! recovery, a long run, readers beside writers, and the effect of size. Each value stands beside a reference
//! value from the same run.

mod alone;
mod child;
mod crowds;
mod line;
mod readers;
mod recovery;
mod scale;
mod sizes;
mod soak;
mod starts;
mod tasks;
mod turns;

use std::path::Path;

use anyhow::Result;

use crate::nvwal::Effort;
use crate::report::{Table, number};
use line::Line;

pub use child::WORKER;
pub(crate) use scale::{NVWAL, WALDIO};
pub use sizes::sizes;
pub use tasks::work;

/// Measures what users notice. Each row has the value, its reference, and the target.
///
/// # Errors
/// An error of SQLite or of starting a process, or a value that was not measured.
pub fn everyday(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "everyday",
        "Where users feel it",
        &["what", "figure", "reference", "its figure", "ratio", "wanted"],
    );
    let crowds = crowds::measure(dir, effort)?;
    let disk = alone::on_disk(dir, effort)?;
    let starts = starts::measure(dir)?;
    let memory = alone::in_memory(dir, effort)?;
    let parts: [Vec<Line>; 7] = [
        crowds.lines,
        disk.lines,
        starts.lines,
        recovery::measure(dir, effort)?,
        soak::measure(dir, effort)?,
        memory,
        readers::measure(dir, effort)?,
    ];
    for line in parts.into_iter().flatten() {
        table.row(line.cells());
    }
    table.note = format!(
        "One 100-byte insert per transaction, `synchronous=FULL`, normal locking, automatic checkpoints \
         every 1,000 pages, unless a row says otherwise. Medians of {} rounds, of {} for crowds, readers and \
         recoveries, in turns with their references; one soak. `nvwal` is on emulated NVRAM. Stock SQLite's \
         log is warm: it is recycled in place. **A durable 4 KiB overwrite of a preallocated file takes {} \
         us in this run.** Crowds and readers work for {} s each; {} answers of SQLITE_BUSY. Each start is a \
         new process that opens, does one thing and closes: medians of {}; one that does nothing takes {} \
         ms. A recovery is the first open and SELECT in a new process after SIGKILL; before the kill, \
         `wal_autocheckpoint` was 0. During the recovery stock SQLite's log is in the page cache, unless a \
         row says that it was dropped, as in a power failure. The log of `waldio` was written past the page \
         cache. Stock SQLite leaves the pages in its log until it closes, while Duralite's recovery writes \
         them home. Against `:memory:`: exclusive locking, no automatic checkpoints.",
        scale::rounds(effort),
        scale::crowd_rounds(effort),
        number(disk.raw_us),
        number(scale::crowd_time(effort).as_secs_f64()),
        crowds.busy,
        starts::STARTS,
        number(starts.nothing_ms),
    );
    Ok(table)
}
