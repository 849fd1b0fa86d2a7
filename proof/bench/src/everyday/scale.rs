//! How much is run: less where less was asked for. And on what.

use std::time::Duration;

use anyhow::{Result, ensure};
use rusqlite::Connection;

use crate::concurrent;
use crate::nvwal::Effort;
use crate::workload::status;

/// The settings of `waldio`.
pub(super) const WALDIO: &str = "journal=waldio";
/// Those of `nvwal`.
pub(super) const NVWAL: &str = "journal=nvwal&nvram=emulate";

/// From so many transactions on a run is a whole one.
const WHOLE: u32 = 1000;
/// How long a crowd works in a whole run.
const CROWD: Duration = Duration::from_secs(2);
/// The least that it does.
const LEAST_CROWD: Duration = Duration::from_millis(500);

/// Rounds that a median is taken of.
pub(super) fn rounds(effort: Effort) -> usize {
    effort.rounds.min(5)
}

/// The same for what takes long.
pub(super) fn crowd_rounds(effort: Effort) -> usize {
    effort.rounds.min(3)
}

/// The part of a whole run that was asked for.
pub(super) fn part(effort: Effort) -> f64 {
    f64::from(effort.transactions.min(WHOLE)) / f64::from(WHOLE)
}

/// How long a crowd works.
pub(super) fn crowd_time(effort: Effort) -> Duration {
    CROWD.mul_f64(part(effort)).max(LEAST_CROWD)
}

/// An empty table in a database whose log is warm, and whose engine is at work if it has one.
///
/// # Errors
/// SQLite's, or the engine is not at work.
pub(super) fn prepare(uri: &str) -> Result<Connection> {
    let conn = concurrent::prepare(uri)?;
    if uri.contains("vfs=duralite") {
        let status = status(&conn)?;
        let state = status.get("state").map(String::as_str);
        ensure!(state == Some("active"), "{uri}: the engine is {}", state.unwrap_or("not there"));
    }
    Ok(conn)
}
