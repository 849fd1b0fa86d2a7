//! Measures one process for each transaction. The process starts, opens the database, runs one statement, and
//! closes the database.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::child;
use super::line::Line;
use super::scale::{self, NVWAL, WALDIO};
use super::tasks::{INSERT, NOTHING, SELECT};
use crate::concurrent;
use crate::workload::median;

/// The number of processes for each measured value, which is the median of their times.
pub(super) const STARTS: usize = 20;

/// The times of the processes.
pub(super) struct Starts {
    pub(super) lines: Vec<Line>,
    /// The duration in milliseconds of a process that does nothing.
    pub(super) nothing_ms: f64,
}

fn milliseconds(task: &str, uri: &str) -> Result<f64> {
    let start = Instant::now();
    child::ask(task, uri, &[])?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Runs each task on stock SQLite, on `waldio`, on `nvwal`, and on `waldio` with a log that stays when a
/// process closes the database. The four configurations take turns.
///
/// # Errors
/// An error of SQLite, or of starting a process.
pub(super) fn measure(dir: &Path) -> Result<Starts> {
    let mut dirs = Vec::new();
    let mut uris = Vec::new();
    let kept = format!("{WALDIO}&on_close=keep");
    for parameters in [None, Some(WALDIO), Some(NVWAL), Some(kept.as_str())] {
        let own = tempfile::tempdir_in(dir)?;
        let uri = concurrent::fresh(own.path(), parameters);
        drop(scale::prepare(&uri)?);
        uris.push(uri);
        dirs.push(own);
    }
    let mut lines = Vec::new();
    for (task, what) in [(INSERT, "one insert"), (SELECT, "one SELECT")] {
        let mut times: [Vec<f64>; 4] = Default::default();
        for _ in 0..STARTS {
            for (uri, times) in uris.iter().zip(&mut times) {
                times.push(milliseconds(task, uri)?);
            }
        }
        let [stock, waldio, nvwal, kept] = times.map(median);
        for (engine, own) in [("waldio", waldio), ("nvwal", nvwal), ("waldio, on_close=keep", kept)] {
            let what = format!("{engine}, {what} in a process of its own (ms)");
            lines.push(Line::beside(&what, own, "stock WAL, the same", stock, "at most 1.0x")?);
        }
    }
    let nothing = (0..STARTS).map(|_| milliseconds(NOTHING, "")).collect::<Result<Vec<_>>>()?;
    Ok(Starts { lines, nothing_ms: median(nothing) })
}
