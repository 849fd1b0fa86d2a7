//! Measures many connections, compared with few. The connections belong to threads of one process, or to
//! processes.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::line::Line;
use super::scale::{self, NVWAL, WALDIO};
use super::turns;
use crate::concurrent::{self, Crowd};
use crate::nvwal::Effort;
use crate::workload::median;

type Gather = fn(&str, usize, Duration) -> Result<Crowd>;

/// The results of all crowds.
pub(super) struct Crowds {
    pub(super) lines: Vec<Line>,
    /// The number of times that SQLite returned `SQLITE_BUSY` in all crowds together.
    pub(super) busy: u64,
}

/// The medians of one crowd over all rounds.
struct Middle {
    per_second: f64,
    slowest_to_mean: f64,
    worst_ms: f64,
}

impl Middle {
    fn of(crowds: &[Crowd]) -> Self {
        let middle = |figure: fn(&Crowd) -> f64| median(crowds.iter().map(figure).collect::<Vec<_>>());
        Self {
            per_second: middle(Crowd::per_second),
            slowest_to_mean: middle(Crowd::slowest_to_mean),
            worst_ms: middle(Crowd::worst_ms),
        }
    }
}

/// Measures all crowds, one after the other in each round.
///
/// # Errors
/// An error of SQLite, or of starting a process.
pub(super) fn measure(dir: &Path, effort: Effort) -> Result<Crowds> {
    let contenders: [(Option<&str>, usize, Gather); 7] = [
        (Some(NVWAL), 1, concurrent::threads),
        (Some(NVWAL), 16, concurrent::threads),
        (Some(NVWAL), 16, concurrent::processes),
        (None, 16, concurrent::threads),
        (Some(WALDIO), 16, concurrent::threads),
        (Some(WALDIO), 16, concurrent::processes),
        (Some(WALDIO), 64, concurrent::threads),
    ];
    let own = tempfile::tempdir_in(dir)?;
    let mut crowds: [Vec<Crowd>; 7] = Default::default();
    let mut waits = Vec::new();
    for _ in 0..scale::crowd_rounds(effort) {
        for ((parameters, count, gather), crowds) in contenders.iter().zip(&mut crowds) {
            let uri = concurrent::fresh(own.path(), *parameters);
            crowds.push(gather(&uri, *count, scale::crowd_time(effort))?);
        }
        waits.push(turns::longest_wait(16, scale::crowd_time(effort)).as_secs_f64() * 1e3);
    }
    let busy = crowds.iter().flatten().map(Crowd::busy).sum();
    let middles = crowds.map(|crowds| Middle::of(&crowds));
    Ok(Crowds { lines: lines(middles, median(waits))?, busy })
}

fn lines(middles: [Middle; 7], wait_ms: f64) -> Result<Vec<Line>> {
    let [one, threads, processes, stock, waldio, waldio_processes, many] = middles;
    let rate = |what: &str, of: &Middle, reference: &str, its: &Middle, wanted: &str| {
        Line::beside(what, of.per_second, reference, its.per_second, wanted)
    };
    let worst = |what: &str, of: &Middle| {
        let us = turns::TURN.as_micros();
        let reference = format!("16 threads that only hand over turns of {us} us: longest wait");
        Line::beside(what, of.worst_ms, &reference, wait_ms, "at most 10 ms")
    };
    Ok(vec![
        rate("nvwal, 16 threads (commits/s)", &threads, "nvwal, 1 thread", &one, "at least 0.6x")?,
        worst("nvwal, 16 threads: worst commit (ms)", &threads)?,
        rate("nvwal, 16 processes (commits/s)", &processes, "nvwal, 1 thread", &one, "at least 0.4x")?,
        worst("nvwal, 16 processes: worst commit (ms)", &processes)?,
        rate(
            "waldio, 16 threads (commits/s)",
            &waldio,
            "stock WAL, 16 threads",
            &stock,
            "at least 3x where a durable 4 KiB write takes 45 us, 8x at 170 us",
        )?,
        rate(
            "waldio, 16 processes (commits/s)",
            &waldio_processes,
            "waldio, 16 threads",
            &waldio,
            "at least 0.7x",
        )?,
        rate("waldio, 64 threads (commits/s)", &many, "waldio, 16 threads", &waldio, "at least 0.9x")?,
        Line::alone("waldio, 64 threads: slowest / mean", many.slowest_to_mean, "at least 0.5")?,
    ])
}
