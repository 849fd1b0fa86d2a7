//! Times runs. A run inserts rows as fast as possible. After each run the demonstration checks the closed
//! database row by row.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::check::expect_rows;
use crate::child::insert;
use crate::modes::{Mode, counters};
use crate::scene::{Scene, shown};
use crate::screen::Progress;

/// The longest time for which a run inserts rows.
pub(crate) const LONGEST: Duration = Duration::from_millis(1500);
const ROWS_BETWEEN_LOOKS: u32 = 64;

/// The results of a timed run. All values except `rows` and `rate` are per commit. A value is `None` if stock
/// SQLite has no such quantity, or if it was not counted.
pub(crate) struct Run {
    pub(crate) mode: &'static Mode,
    pub(crate) rows: usize,
    /// The number of commits per second.
    pub(crate) rate: f64,
    pub(crate) logged_bytes: Option<f64>,
    pub(crate) lines: Option<f64>,
    pub(crate) fences: Option<f64>,
    pub(crate) system_calls: Option<f64>,
}

/// Times one mode.
///
/// # Errors
/// An error of SQLite, a row that differs from what was committed, or an interrupt.
pub(crate) fn run(scene: &Scene, mode: &'static Mode) -> Result<Run> {
    let path = scene.database(mode.key);
    let conn = mode.open(&path, scene.pool(), true)?;
    let progress = Progress::new(mode.label, scene.rows.len(), 0);
    let (before, log_before) = (counters(&conn)?, log_bytes(&path));
    let began = Instant::now();
    let done = insert(&conn, &scene.rows, |row| {
        if row.line % ROWS_BETWEEN_LOOKS != 0 {
            return Ok(true);
        }
        progress.update(row.line as usize);
        scene.processes.check()?;
        Ok(began.elapsed() < LONGEST)
    })?;
    let rate = done as f64 / began.elapsed().as_secs_f64();
    progress.finish(done)?;
    let after = counters(&conn)?;
    let grown = |name: &str| Some((after.get(name)? - before.get(name).unwrap_or(&0.0)) / done as f64);
    let logged_bytes = match mode.settings {
        Some("") => grown("device_bytes"),
        Some(_) => grown("stored_bytes"),
        None if !mode.checkpoints => Some((log_bytes(&path) - log_before) / done as f64),
        None => None,
    };
    let in_memory = !mode.is_on_disk();
    let (lines, fences) =
        (grown("flushed_lines").filter(|_| in_memory), grown("fences").filter(|_| in_memory));
    drop(conn);
    expect_rows(&path, &scene.rows[..done]).with_context(|| shown(&path))?;
    std::fs::remove_file(&path)?;
    Ok(Run { mode, rows: done, rate, logged_bytes, lines, fences, system_calls: None })
}

/// Returns the size of stock SQLite's WAL in bytes.
fn log_bytes(database: &Path) -> f64 {
    let log = database.with_extension("db-wal");
    std::fs::metadata(log).map_or(0.0, |log| log.len() as f64)
}
