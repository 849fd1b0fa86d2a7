//! Measures how much the metrics that `duralite top` shows add to the time of a commit.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use duralite_medium::{FileSegment, Segment as _};
use duralite_wal::engine::Fill;
use duralite_wal::metrics::{METRICS_BYTES, Recorder};

use crate::workload::median;

const ROUNDS: usize = 15;
const COMMITS: u32 = 20_000;

/// Returns the time in nanoseconds that the metrics add to a commit. Duralite reads the clock once when the
/// commit begins, and updates the metrics when the commit is acknowledged. The metrics are in a segment that
/// only this measurement uses. The result is the median of several rounds.
///
/// # Errors
/// An error of the file system.
pub fn cost_ns(dir: &Path) -> Result<f64> {
    let path = dir.join("counting");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let segment = Arc::new(FileSegment::join(file.into(), &path, METRICS_BYTES, Some(0))?);
    std::fs::remove_file(&path)?;
    Recorder::join(segment.clone(), 0, 1);
    let figures = Recorder::new(segment.clone(), 0);
    let fill = Fill { used_bytes: 1 << 20, limit_bytes: 1 << 30 };
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        (0..COMMITS).for_each(|_| figures.committed(segment.clock_ns(), fill));
        start.elapsed().as_secs_f64() * 1e9 / f64::from(COMMITS)
    });
    Ok(median(rounds.collect::<Vec<_>>()))
}
