//! Runs sixteen writers for two minutes, to measure how large the log grows, and whether the throughput
//! lasts.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::ErrorCode;

use super::line::Line;
use super::scale::{self, WALDIO};
use crate::concurrent;
use crate::nvwal::Effort;
use crate::workload::status;

/// The time for which the writers write in a full run. The next constant is the minimum for a shorter run.
const SOAK: Duration = Duration::from_secs(120);
const LEAST: Duration = Duration::from_secs(5);
const WRITERS: usize = 16;
/// The time between two samples of the log's size.
const LOOK: Duration = Duration::from_millis(20);
const MIB: f64 = (1 << 20) as f64;
/// The size in MiB that the log should not exceed. It is four times the size at which stock SQLite
/// checkpoints its log, which is 1,000 pages.
const ROOM_MIB: f64 = 16.0;

/// The results of the writers.
#[derive(Default)]
struct Tally {
    /// The number of commits in each quarter of the time.
    quarters: [u64; 4],
    full: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.quarters.iter_mut().zip(other.quarters).for_each(|(sum, commits)| *sum += commits);
        self.full += other.full;
    }
}

fn write_for(uri: &str, time: Duration, all_are_open: &Barrier) -> Result<Tally> {
    let conn = concurrent::open(uri);
    all_are_open.wait();
    let conn = conn?;
    let mut insert = conn.prepare(concurrent::INSERT)?;
    let payload = concurrent::payload();
    let mut tally = Tally::default();
    let start = Instant::now();
    loop {
        let at = start.elapsed();
        if at >= time {
            return Ok(tally);
        }
        match insert.execute([&payload]) {
            Ok(_) => tally.quarters[((at.as_secs_f64() / time.as_secs_f64() * 4.0) as usize).min(3)] += 1,
            Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::DiskFull => {
                tally.full += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Lets all writers run. Returns the sum of their results, and the largest size of the log.
fn soak(uri: &str, log: &Path, time: Duration) -> Result<(Tally, u64)> {
    let barrier = Barrier::new(WRITERS);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(|| write_for(uri, time, &barrier))).collect();
        let mut largest = 0;
        while !writers.iter().all(|writer| writer.is_finished()) {
            let metadata = log.metadata().with_context(|| log.display().to_string())?;
            largest = largest.max(metadata.len());
            std::thread::sleep(LOOK);
        }
        let mut sum = Tally::default();
        for writer in writers {
            sum.add(&writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked")))?);
        }
        Ok((sum, largest))
    })
}

/// Measures sixteen threads on `waldio`.
///
/// # Errors
/// An error of SQLite, except `SQLITE_FULL`, which the test counts.
pub(super) fn measure(dir: &Path, effort: Effort) -> Result<Vec<Line>> {
    let time = SOAK.mul_f64(scale::part(effort)).max(LEAST);
    let own = tempfile::tempdir_in(dir)?;
    let uri = concurrent::fresh(own.path(), Some(WALDIO));
    let keep = scale::prepare(&uri)?;
    let log = status(&keep)?.remove("log").context("PRAGMA duralite shows no log")?;
    let (sum, largest) = soak(&uri, Path::new(&log), time)?;
    drop(keep);
    let quarter = time.as_secs_f64() / 4.0;
    let what = |what: &str| format!("waldio, 16 threads for {} s: {what}", time.as_secs());
    Ok(vec![
        Line::beside(
            &what("largest log (MiB)"),
            largest as f64 / MIB,
            "4 x 1,000 pages, stock's auto-checkpoint",
            ROOM_MIB,
            "at most 1.0x",
        )?,
        Line::count(&what("SQLITE_FULL"), sum.full, "0"),
        Line::beside(
            &what("the last quarter (commits/s)"),
            sum.quarters[3] as f64 / quarter,
            "the first quarter",
            sum.quarters[0] as f64 / quarter,
            "at least 0.9x",
        )?,
    ])
}
