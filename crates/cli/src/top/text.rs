//! Writes what was read from the shared memory at one moment as lines of text.

use std::fmt::{Display, Write as _};
use std::path::Path;

use duralite_wal::metrics::Histogram;
use duralite_wal::shared::archived::Archived;

use super::reading::{Archive, Counts, Process, Reading};
use super::source::State;
use super::units;

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Returns everything that the reading of the shared memory found.
pub(crate) fn of(database: &Path, state: &State) -> String {
    let mut text = String::new();
    line(&mut text, "database", database.display());
    match state {
        State::Idle { state, why } => line(&mut text, "state", format!("{state}: {why}")),
        State::InUse(reading) => {
            line(&mut text, "engine", reading.engine);
            line(&mut text, "log", reading.log.display());
            line(&mut text, "commits", units::count(reading.commits()));
            line(&mut text, "commit latency", percentiles(&reading.latencies));
            for (name, value) in facts(reading) {
                line(&mut text, name, value);
            }
            for one in &reading.processes {
                line(&mut text, "process", process(one));
            }
        }
    }
    text
}

fn line(text: &mut String, name: &str, value: impl Display) {
    // A path may contain control characters that a terminal would obey.
    let value: String = value.to_string().chars().filter(|c| !c.is_control()).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:<17} {value}");
}

/// Writes the percentiles of the latencies in one line.
pub(crate) fn percentiles(latencies: &Histogram) -> String {
    let at = |(name, part)| Some(format!("{name} {}", units::time(latencies.percentile(part)?)));
    let all: Option<Vec<String>> = PERCENTILES.into_iter().map(at).collect();
    all.map_or_else(|| "no commit yet".to_owned(), |all| all.join("   "))
}

/// Returns everything in the reading except the commits, as pairs of a name and a text.
pub(crate) fn facts(reading: &Reading) -> Vec<(&'static str, String)> {
    let counts = &reading.counts;
    let mut facts = vec![];
    if let Some(size) = counts.group_size() {
        facts.push(("groups", format!("{}, of {size:.1} commits", units::count(counts.groups))));
    }
    if let Some(fill) = reading.fill {
        let limit =
            reading.limit_bytes().map_or_else(String::new, |limit| format!(" of {}", units::bytes(limit)));
        facts.push(("log", format!("{}{limit} in use", units::bytes(fill.used_bytes))));
    }
    if let Some(index) = reading.index {
        let (home, frames) = (units::count(index.backfilled.into()), units::count(index.frames.into()));
        facts.push(("checkpoint", format!("{home} of {frames} frames checkpointed")));
    }
    let (checkpoints, writes) = (units::count(counts.checkpoints), units::count(counts.home_writes));
    facts.push(("checkpoints", format!("{checkpoints}, {writes} writes to the database file")));
    facts.push(("locks refused", units::count(counts.refusals)));
    facts.extend(room(counts).map(|value| ("no room", value)));
    facts.extend(concurrency(counts).map(|value| ("concurrent", value)));
    let oldest = reading.oldest_reader.map(|age| format!(", the oldest for {}", units::age(age)));
    facts.push(("readers", format!("{}{}", reading.readers, oldest.unwrap_or_default())));
    facts.extend(reading.archive.map(|archive| ("archive", archived(&archive))));
    if reading.home_failures > 0 {
        let failed = format!("{} failed syncs of the database file, not repaired yet", reading.home_failures);
        facts.push(("database", failed));
    }
    facts
}

/// Says in one line how far the archive has come.
fn archived(archive: &Archive) -> String {
    let Archived { sidecar, position, behind, .. } = archive.archived;
    let (bytes, lag) = (units::bytes(behind.bytes), units::age(archive.lag));
    let state = match behind.transactions {
        0 => "everything".to_owned(),
        behind => format!("all but {} transactions ({bytes}, {lag})", units::count(behind)),
    };
    format!("{}; position {}: {state}", sidecar.as_str(), units::count(position))
}

/// Writes in one line how often the log had no room; returns `None` if it always had.
fn room(counts: &Counts) -> Option<String> {
    let (waits, failures) = (units::count(counts.room_waits), units::count(counts.room_failures));
    let any = counts.room_waits > 0 || counts.room_failures > 0;
    any.then(|| format!("{waits} transactions waited for the log to start over, {failures} writes failed"))
}

/// Writes the counts of concurrent transactions in one line; returns `None` if there were no such transactions.
fn concurrency(counts: &Counts) -> Option<String> {
    let conflicts = counts.conflicts.all();
    let of = [
        (counts.merged, "commits merged"),
        (conflicts, "conflicts"),
        (counts.upgrades_waited, "upgrades waited"),
        (counts.snapshots_moved, "snapshots moved"),
    ];
    let all: Vec<String> =
        of.iter().map(|(count, what)| format!("{} {what}", units::count(*count))).collect();
    of.iter().any(|(count, _)| *count > 0).then(|| all.join(", "))
}

/// Describes a process in one line.
pub(crate) fn process(process: &Process) -> String {
    let locks = locks(process);
    let locks = if locks.is_empty() { String::new() } else { format!(", holds {locks}") };
    let (commits, age) = (units::count(process.commits), units::age(process.age));
    format!("{}, for {age}, {commits} commits{locks}", process.pid)
}

/// Returns the names of the locks that a process holds.
pub(crate) fn locks(process: &Process) -> String {
    let reserved = if process.is_reserved { " (WRITE is reserved for this process)" } else { "" };
    format!("{}{reserved}", process.locks.join(" "))
}

#[cfg(test)]
mod tests {
    use duralite_wal::shared::archived::Sidecar;

    use super::super::reading::tests::{archive, reading};
    use super::*;

    #[test]
    fn the_archive_has_a_line_only_if_there_is_one() {
        let of = |reading: &Reading| facts(reading).into_iter().find(|(name, _)| *name == "archive");
        let mut with = reading(10, 1000);
        assert_eq!(of(&with), None);
        with.archive = archive(Sidecar::Runs);
        let line = "sidecar runs; position 40: all but 3 transactions (12.0 KiB, 2.5 s)";
        assert_eq!(of(&with).unwrap().1, line);
    }
}
