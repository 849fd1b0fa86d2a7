//! Decides how much a run measures: less than a full run if the user asks for few transactions. This module
//! also defines the engine settings with which all runs open their databases.

use std::time::Duration;

use anyhow::{Result, ensure};
use rusqlite::Connection;

use crate::concurrent;
use crate::nvwal::Effort;
use crate::workload::status;

/// The settings of `waldio`.
pub(crate) const WALDIO: &str = "journal=waldio";
/// The settings of `nvwal`.
pub(crate) const NVWAL: &str = "journal=nvwal&nvram=emulate";

/// A run with at least this many transactions is a full run.
const WHOLE: u32 = 1000;
/// The time for which a crowd works in a full run.
const CROWD: Duration = Duration::from_secs(2);
/// The minimum time that a crowd works.
const LEAST_CROWD: Duration = Duration::from_millis(500);

/// Returns the number of rounds. Each result is the median of the rounds.
pub(super) fn rounds(effort: Effort) -> usize {
    effort.rounds.min(5)
}

/// Returns the number of rounds for measurements that take long.
pub(super) fn crowd_rounds(effort: Effort) -> usize {
    effort.rounds.min(3)
}

/// Returns the fraction of a full run that the user asked for.
pub(super) fn part(effort: Effort) -> f64 {
    f64::from(effort.transactions.min(WHOLE)) / f64::from(WHOLE)
}

/// Returns how long a crowd works.
pub(super) fn crowd_time(effort: Effort) -> Duration {
    CROWD.mul_f64(part(effort)).max(LEAST_CROWD)
}

/// Creates an empty table in a database whose log was filled once and hardly grows any more. Checks that
/// Duralite's engine is active if the URI asks for it.
///
/// # Errors
/// An error of SQLite, or an engine that is not active.
pub(super) fn prepare(uri: &str) -> Result<Connection> {
    let conn = concurrent::prepare(uri)?;
    if uri.contains("vfs=duralite") {
        let status = status(&conn)?;
        let state = status.get("state").map(String::as_str);
        ensure!(state == Some("active"), "{uri}: the engine is {}", state.unwrap_or("not there"));
    }
    Ok(conn)
}
