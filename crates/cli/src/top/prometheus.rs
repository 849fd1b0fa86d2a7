//! Writes what was read from the shared memory at one moment in the text format of Prometheus, version 0.0.4.
//!
//! Counters restart at zero after the last process has closed the database, or all processes have died. Prometheus
//! treats a counter that has decreased as such a restart.

use std::fmt::{Display, Write as _};
use std::path::Path;

use duralite_wal::shared::archived::{Archived, Sidecar};

use super::reading::{Archive, Counts, Reading};
use super::source::State;

/// The upper limits of the histogram's buckets in the text for Prometheus, as exponents of 2: from 2^10 ns (1 us) to
/// 2^35 ns (34 s). Duralite's own histogram has buckets that end at the same limits, so the cumulative counts are
/// exact.
const BUCKETS: std::ops::RangeInclusive<u32> = 10..=35;

struct Page {
    text: String,
    /// The labels that every sample has.
    labels: String,
}

/// Returns the page for one database.
pub(crate) fn page(database: &Path, state: &State) -> String {
    let labels = format!("database=\"{}\"", escaped(&database.display().to_string()));
    let mut page = Page { text: String::new(), labels };
    let is_up = matches!(state, State::InUse(_));
    page.gauge("up", "Whether processes use the database through Duralite.", u8::from(is_up));
    if let State::InUse(reading) = state {
        page.reading(reading);
    }
    page.text
}

impl Page {
    fn reading(&mut self, reading: &Reading) {
        self.header("info", "gauge", "Engine and identity of the log.");
        let of_log =
            format!("engine=\"{}\",log_id=\"{}\"", escaped(reading.engine), escaped(&reading.log_id));
        self.sample("info", &of_log, 1);
        self.latencies(reading);
        let counts = &reading.counts;
        self.counter(
            "groups_total",
            "Groups of commits that were written. Each took one write and at most one flush.",
            counts.groups,
        );
        self.counter("group_commits_total", "Commits in these groups.", counts.grouped);
        self.counter("checkpoints_total", "Checkpoints that wrote to the database file.", counts.checkpoints);
        self.counter(
            "home_writes_total",
            "Writes to the database file: checkpoints write pages, and set the file's size at their ends.",
            counts.home_writes,
        );
        self.counter(
            "lock_busy_total",
            "Requests for a lock of the wal-index that were refused.",
            counts.refusals,
        );
        self.counter(
            "room_busy_total",
            "Transactions that were refused as busy because the log, nearly full, was about to start over.",
            counts.room_waits,
        );
        self.counter(
            "room_full_total",
            "Writes to the log that failed because the log or its file system was full.",
            counts.room_failures,
        );
        self.concurrency(counts);
        if let Some(fill) = reading.fill {
            self.gauge("log_used_bytes", "Bytes of the log in use at the newest commit.", fill.used_bytes);
        }
        if let Some(limit) = reading.limit_bytes() {
            self.gauge("log_limit_bytes", "The most bytes that the log may use.", limit);
        }
        if let Some(index) = reading.index {
            self.gauge("log_frames", "Committed frames in the log.", index.frames);
            self.gauge(
                "log_frames_home",
                "Committed frames in the log that a checkpoint has written to the database file.",
                index.backfilled,
            );
        }
        self.gauge(
            "home_failures",
            "Failed syncs of the database file since all committed pages were last written to it again and \
             synced.",
            reading.home_failures,
        );
        if let Some(archive) = &reading.archive {
            self.archive(archive);
        }
        self.gauge("processes", "Processes that have the database open.", reading.processes.len());
        self.gauge("readers", "Read marks that readers hold.", reading.readers);
        let oldest = reading.oldest_reader.unwrap_or_default().as_secs_f64();
        self.gauge(
            "oldest_reader_seconds",
            "Seconds since the oldest reader began to read; 0 without a reader.",
            oldest,
        );
    }

    fn archive(&mut self, archive: &Archive) {
        let Archived { sidecar, position, newest, behind, .. } = archive.archived;
        let is = |state| u8::from(sidecar == state);
        self.gauge("archive_sidecar_up", "Whether a sidecar runs.", is(Sidecar::Runs));
        self.gauge(
            "archive_fenced",
            "Whether another primary has taken the archive over.",
            is(Sidecar::Fenced),
        );
        self.gauge("log_position", "Transactions since the log was made.", newest);
        self.gauge("archive_position", "The position up to which the archive has the log.", position);
        self.gauge(
            "archive_lag_transactions",
            "Transactions that are committed and not in the archive.",
            behind.transactions,
        );
        self.gauge("archive_lag_bytes", "Bytes of their pages, at the sidecar's last look.", behind.bytes);
        self.gauge("archive_lag_seconds", "The age of the oldest of them.", archive.lag.as_secs_f64());
    }

    fn concurrency(&mut self, counts: &Counts) {
        self.counter(
            "commits_merged_total",
            "Transactions that committed although others had committed since they began.",
            counts.merged,
        );
        self.header(
            "conflicts_total",
            "counter",
            "Transactions that were overtaken and had to run again, by what others had changed.",
        );
        for (kind, count) in counts.conflicts.kinds() {
            self.sample("conflicts_total", &format!("kind=\"{kind}\""), count);
        }
        self.counter(
            "upgrades_waited_total",
            "Transactions that had read, and waited for the write lock until they had it.",
            counts.upgrades_waited,
        );
        self.counter(
            "snapshots_moved_total",
            "Transactions that went on at the newest commit when they began to write.",
            counts.snapshots_moved,
        );
    }

    fn latencies(&mut self, reading: &Reading) {
        const NAME: &str = "commit_latency_seconds";
        self.header(
            NAME,
            "histogram",
            "Latencies of commits, each from its first page to its acknowledgement.",
        );
        let name = format!("{NAME}_bucket");
        for bits in BUCKETS {
            let limit = 1_u64 << bits;
            let le = format!("le=\"{}\"", limit as f64 / 1e9);
            self.sample(&name, &le, reading.latencies.up_to(limit));
        }
        let count = reading.commits();
        self.sample(&name, "le=\"+Inf\"", count);
        self.sample(&format!("{NAME}_sum"), "", reading.latency_ns as f64 / 1e9);
        self.sample(&format!("{NAME}_count"), "", count);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.header(name, "counter", help);
        self.sample(name, "", value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.header(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn header(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP duralite_{name} {help}\n# TYPE duralite_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "duralite_{name}{{{}{comma}{labels}}} {value}", self.labels);
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::{archive, reading};
    use super::*;

    #[test]
    fn the_archive_has_gauges_once_a_sidecar_has_come() {
        let mut now = reading(10, 1000);
        let of = |reading: &Reading| page(Path::new("a"), &State::InUse(Box::new(reading.clone())));
        assert!(!of(&now).contains("archive"));
        now.archive = archive(Sidecar::Died);
        let page = of(&now);
        for sample in
            ["sidecar_up", "fenced"].map(|name| format!("duralite_archive_{name}{{database=\"a\"}} 0"))
        {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
        for (name, value) in [("position", "40"), ("lag_transactions", "3"), ("lag_seconds", "2.5")] {
            let sample = format!("duralite_archive_{name}{{database=\"a\"}} {value}");
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
    }

    #[test]
    fn what_is_in_a_path_stays_in_its_label() {
        let idle = State::Idle { state: "not in use", why: String::new() };
        let page = page(Path::new("/a\"} 1\n\\b"), &idle);
        let sample = "duralite_up{database=\"/a\\\"} 1\\n\\\\b\"} 0";
        assert_eq!(page.lines().nth(2), Some(sample));
        assert_eq!(page.lines().count(), 3);
    }
}
