//! Writes what was read from the shared memory at one moment as a JSON object. A key that is also a name in `PRAGMA
//! duralite` has the same meaning, but its value here is for all processes together.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use duralite_wal::metrics::Histogram;
use serde_json::{Value, json};

use super::reading::{Process, Reading, Recent};
use super::source::State;

/// Returns the object for one reading of the shared memory. If `before` is an earlier reading, the object also says
/// what has happened since that reading.
pub(crate) fn of(database: &Path, state: &State, before: Option<&Reading>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut object = match state {
        State::Idle { state, why } => json!({ "state": state, "reason": why }),
        State::InUse(reading) => in_use(reading),
    };
    object["database"] = json!(database.display().to_string());
    object["time_ms"] = json!(now.as_millis() as u64);
    if let (State::InUse(reading), Some(before)) = (state, before)
        && let Some(recent) = reading.since(before)
    {
        object["recent"] = recently(&recent);
    }
    object
}

fn in_use(reading: &Reading) -> Value {
    let (counts, archive) = (&reading.counts, &reading.archive);
    json!({
        "state": "in use",
        "engine": reading.engine,
        "log": reading.log.display().to_string(),
        "log_id": reading.log_id,
        "commits": reading.commits(),
        "commit_latency_ns": latency(&reading.latencies, Some(reading.latency_ns)),
        "groups": counts.groups,
        "group_size": counts.group_size(),
        "checkpoints": counts.checkpoints,
        "home_writes": counts.home_writes,
        "home_failures": reading.home_failures,
        "lock_busy": counts.refusals,
        "room_busy": counts.room_waits,
        "room_full": counts.room_failures,
        "commits_merged": counts.merged,
        "conflicts_page": counts.conflicts.page,
        "conflicts_schema": counts.conflicts.schema,
        "conflicts_shrunk": counts.conflicts.shrunk,
        "conflicts_unknown": counts.conflicts.unknown,
        "upgrades_waited": counts.upgrades_waited,
        "snapshots_moved": counts.snapshots_moved,
        "log_bytes": reading.fill.map(|fill| fill.used_bytes),
        "log_limit": reading.limit_bytes(),
        "log_frames": reading.index.map(|index| index.frames),
        "log_frames_home": reading.index.map(|index| index.backfilled),
        "archive": archive.map(|archive| archive.archived.sidecar.as_str()),
        "log_position": archive.map(|archive| archive.archived.newest),
        "archive_position": archive.map(|archive| archive.archived.position),
        "archive_lag_transactions": archive.map(|archive| archive.archived.behind.transactions),
        "archive_lag_bytes": archive.map(|archive| archive.archived.behind.bytes),
        "archive_lag_ms": archive.map(|archive| archive.lag.as_millis() as u64),
        "readers": reading.readers,
        "oldest_reader_ms": reading.oldest_reader.map(|age| age.as_millis() as u64),
        "processes": reading.processes.iter().map(process).collect::<Vec<_>>(),
    })
}

fn process(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "commits": process.commits,
        "open_ms": process.age.as_millis() as u64,
        "locks": process.locks,
        "write_is_reserved": process.is_reserved,
        "reads_ms": process.reads.map(|age| age.as_millis() as u64),
    })
}

fn latency(latencies: &Histogram, sum_ns: Option<u64>) -> Value {
    let at = |part| latencies.percentile(part);
    let mut object =
        json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) });
    if let Some(mean) = sum_ns.and_then(|sum| sum.checked_div(latencies.count())) {
        object["mean"] = json!(mean);
    }
    object
}

fn recently(recent: &Recent) -> Value {
    json!({
        "seconds": recent.seconds,
        "commits": recent.commits,
        "commits_per_second": recent.commits as f64 / recent.seconds,
        "commit_latency_ns": latency(&recent.latencies, None),
        "group_size": recent.counts.group_size(),
        "checkpoints": recent.counts.checkpoints,
        "home_writes": recent.counts.home_writes,
        "lock_busy": recent.counts.refusals,
        "room_busy": recent.counts.room_waits,
        "room_full": recent.counts.room_failures,
        "commits_merged": recent.counts.merged,
        "conflicts": recent.counts.conflicts.all(),
    })
}
