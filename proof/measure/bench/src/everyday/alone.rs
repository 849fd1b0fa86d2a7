//! Measures one connection. Compares it with raw writes to the same disk, or, for engines in memory, with
//! `:memory:`.

use std::path::Path;

use anyhow::Result;

use super::line::Line;
use super::scale;
use crate::nvwal::{self, Effort};
use crate::waldio;
use crate::workload::{Operation, Session, Target, median};

/// The size in bytes of the durable overwrites. Their speed says how fast the disk is.
const BLOCK_BYTES: u32 = 4096;
/// Runs in memory have this many times as many transactions as runs on disk, because a transaction in memory
/// takes only microseconds.
const IN_MEMORY: u32 = 20;

/// The results of one connection on disk.
pub(super) struct OnDisk {
    pub(super) lines: Vec<Line>,
    /// The duration in microseconds of a durable overwrite of 4 KiB.
    pub(super) raw_us: f64,
}

/// Measures one thread on `waldio`, compared with raw overwrites of the same block size.
///
/// # Errors
/// An error of SQLite or of the file system.
pub(super) fn on_disk(dir: &Path, effort: Effort) -> Result<OnDisk> {
    let target = waldio::waldio(&[]);
    let block_bytes = Session::open(dir, &target, false, false)?.counter("block_bytes")? as u32;
    let transactions = effort.transactions;
    let mut figures: [Vec<f64>; 3] = Default::default();
    for _ in 0..scale::rounds(effort) {
        let measured = [
            waldio::run(dir, &target, Operation::Insert, transactions, false)?.per_second(),
            waldio::raw_overwrites(dir, block_bytes, transactions)?,
            waldio::raw_overwrites(dir, BLOCK_BYTES, transactions)?,
        ];
        figures.iter_mut().zip(measured).for_each(|(figures, figure)| figures.push(figure));
    }
    let [waldio, raw, raw_4k] = figures.map(median);
    let reference = format!("raw durable overwrites of {block_bytes} bytes");
    let line = Line::beside("waldio, 1 thread (commits/s)", waldio, &reference, raw, "at least 0.95x")?;
    Ok(OnDisk { lines: vec![line], raw_us: 1e6 / raw_4k })
}

/// Measures one thread on `nvwal` with exclusive locking, compared with `:memory:`.
///
/// # Errors
/// An error of SQLite.
pub(super) fn in_memory(dir: &Path, effort: Effort) -> Result<Vec<Line>> {
    let wanted = |operation| match operation {
        Operation::Insert | Operation::Update => "at least 0.45x",
        Operation::Delete => "at least 0.35x",
    };
    let nvwal = Target::Nvwal(Vec::new());
    let transactions = effort.transactions * IN_MEMORY;
    let mut lines = Vec::new();
    for operation in Operation::ALL {
        let (mut own, mut memory) = (Vec::new(), Vec::new());
        let run = |target| -> Result<f64> {
            Ok(nvwal::fresh_run(dir, target, operation, transactions, 1, true)?.per_second())
        };
        for _ in 0..scale::rounds(effort) {
            own.push(run(&nvwal)?);
            memory.push(run(&Target::Memory)?);
        }
        let what = format!("nvwal, {}, 1 thread, exclusive locking (commits/s)", operation.name());
        lines.push(Line::beside(&what, median(own), ":memory:", median(memory), wanted(operation))?);
    }
    Ok(lines)
}
