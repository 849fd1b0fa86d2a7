//! What was read from the shared memory at one moment (a *reading*), in words that a user knows, and the difference
//! between two readings.

use std::path::PathBuf;
use std::time::Duration;

use duralite_format::wal_index::WalIndex;
use duralite_locks::{Held, SLOTS, WRITE};
use duralite_wal::engine::{Fill, wall_clock};
use duralite_wal::metrics::{self, Counter, Histogram};
use duralite_wal::placement::{Glance, Watch};
use duralite_wal::shared::archived::{Archived, Sidecar};

/// The values that were read from shared memory at one moment.
pub(crate) struct Seen {
    pub(crate) glance: Glance,
    pub(crate) locks: Vec<Held>,
    pub(crate) index: Option<WalIndex>,
    /// The number of read marks that outside readers hold. An outside reader is a process of a user who may read the
    /// database and its log, but may write neither.
    pub(crate) outside: usize,
}

/// SQLite's names of the locks of the wal-index.
const LOCKS: [&str; SLOTS] = ["WRITE", "CHECKPOINT", "RECOVER", "READ0", "READ1", "READ2", "READ3", "READ4"];

/// A process that has the database open.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    /// The process's own commits since it opened the database.
    pub(crate) commits: u64,
    /// How long the process has had the database open.
    pub(crate) age: Duration,
    /// The names of the locks that the process holds. It may share a lock of a read mark (READ0 to READ4) with other
    /// processes.
    pub(crate) locks: Vec<&'static str>,
    /// Whether the process holds WRITE only in reserve, for one of its connections that is waiting for WRITE.
    pub(crate) is_reserved: bool,
    /// How long the oldest reader in the process has been reading, if there is one.
    pub(crate) reads: Option<Duration>,
}

/// The counts of events since the first process opened the database.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) groups: u64,
    pub(crate) grouped: u64,
    pub(crate) checkpoints: u64,
    pub(crate) home_writes: u64,
    pub(crate) refusals: u64,
    pub(crate) merged: u64,
    pub(crate) conflicts: Conflicts,
    pub(crate) upgrades_waited: u64,
    pub(crate) snapshots_moved: u64,
    pub(crate) room_waits: u64,
    pub(crate) room_failures: u64,
}

/// Counts of the transactions that could not commit because another transaction has changed a page that they have read
/// or written. Each reason has a count of its own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conflicts {
    pub(crate) page: u64,
    pub(crate) schema: u64,
    pub(crate) shrunk: u64,
    pub(crate) unknown: u64,
}

/// The result of one reading of the shared memory.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) engine: &'static str,
    pub(crate) log: PathBuf,
    pub(crate) log_id: String,
    beginning: u64,
    clock_ns: u64,
    pub(crate) processes: Vec<Process>,
    /// The latencies of the commits of all processes, including processes that are gone.
    pub(crate) latencies: Histogram,
    /// The sum of the latencies in nanoseconds.
    pub(crate) latency_ns: u64,
    pub(crate) counts: Counts,
    /// How full the log was at the newest commit.
    pub(crate) fill: Option<Fill>,
    pub(crate) index: Option<WalIndex>,
    pub(crate) readers: usize,
    pub(crate) oldest_reader: Option<Duration>,
    /// How often syncing or writing the database file has failed. The count is reset to 0 when a process has written
    /// all committed pages of the log to the file (including those written before a failure), and has synced the file.
    pub(crate) home_failures: u64,
    /// How far the archive has come; `None` if no sidecar (the process that copies the log into the archive) has
    /// reported it.
    pub(crate) archive: Option<Archive>,
}

/// How far the archive of a database has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Archive {
    pub(crate) archived: Archived,
    /// The age of the oldest transaction that the sidecar has not archived.
    pub(crate) lag: Duration,
}

impl Archive {
    fn of(archived: Archived, now_ms: u64) -> Option<Self> {
        let Archived { sidecar, position, behind, .. } = archived;
        let since = Some(behind.since_ms).filter(|since| *since > 0 && behind.transactions > 0);
        let lag = Duration::from_millis(since.map_or(0, |since| now_ms.saturating_sub(since)));
        ((sidecar, position) != (Sidecar::None, 0)).then_some(Self { archived, lag })
    }
}

/// What happened between two readings.
pub(crate) struct Recent {
    pub(crate) seconds: f64,
    pub(crate) commits: u64,
    pub(crate) latencies: Histogram,
    pub(crate) counts: Counts,
}

impl Reading {
    pub(crate) fn new(watch: &Watch, seen: Seen) -> Self {
        let Seen { glance, locks, index, outside } = seen;
        let (mut latencies, mut latency_ns) = (Histogram::default(), 0_u64);
        let mut counts = Counts { home_writes: glance.home_writes, ..Counts::default() };
        for process in &glance.processes {
            latencies.add(&process.latencies);
            latency_ns = latency_ns.wrapping_add(process.latency_ns);
            let add = |sum: &mut u64, counter| *sum = sum.wrapping_add(process.counted(counter));
            add(&mut counts.groups, Counter::Groups);
            add(&mut counts.grouped, Counter::Grouped);
            add(&mut counts.checkpoints, Counter::Checkpoints);
            add(&mut counts.refusals, Counter::Refusals);
            add(&mut counts.merged, Counter::Merged);
            add(&mut counts.conflicts.page, Counter::PageConflicts);
            add(&mut counts.conflicts.schema, Counter::SchemaConflicts);
            add(&mut counts.conflicts.shrunk, Counter::ShrinkConflicts);
            add(&mut counts.conflicts.unknown, Counter::UnknownConflicts);
            add(&mut counts.upgrades_waited, Counter::UpgradesWaited);
            add(&mut counts.snapshots_moved, Counter::SnapshotsMoved);
            add(&mut counts.room_waits, Counter::RoomWaits);
            add(&mut counts.room_failures, Counter::RoomFailures);
        }
        let processes = processes(&glance, &locks);
        let marks = locks.iter().filter(|held| is_alive(&glance, held.process));
        let marks = marks.map(|held| (held.shared >> duralite_locks::FIRST_READ).count_ones() as usize);
        Self {
            engine: watch.about().engine.name,
            log: watch.path().to_path_buf(),
            log_id: watch.about().id.to_string(),
            beginning: glance.beginning,
            clock_ns: glance.clock_ns,
            readers: marks.sum::<usize>() + outside,
            oldest_reader: processes.iter().filter_map(|process| process.reads).max(),
            fill: metrics::fill(&glance.processes, glance.clock_ns),
            home_failures: glance.home_failures,
            archive: Archive::of(glance.archived, wall_clock()),
            processes,
            latencies,
            latency_ns,
            counts,
            index,
        }
    }

    /// Returns the number of acknowledged commits since the first process opened the database.
    pub(crate) fn commits(&self) -> u64 {
        self.latencies.count()
    }

    /// Returns the limit of the log in bytes, if it has one.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.fill.map(|fill| fill.limit_bytes).filter(|limit| *limit < u64::MAX)
    }

    /// Returns what has happened since an earlier reading. Returns `None` if the two readings are of different segments
    /// of shared memory, or if no time has passed between them.
    pub(crate) fn since(&self, earlier: &Self) -> Option<Recent> {
        let same = (&self.log_id, self.beginning) == (&earlier.log_id, earlier.beginning);
        let elapsed = self.clock_ns.checked_sub(earlier.clock_ns).filter(|ns| same && *ns > 0)?;
        let latencies = self.latencies.since(&earlier.latencies);
        let (now, before) = (&self.counts, &earlier.counts);
        Some(Recent {
            seconds: elapsed as f64 / 1e9,
            commits: latencies.count(),
            latencies,
            counts: Counts {
                groups: now.groups.saturating_sub(before.groups),
                grouped: now.grouped.saturating_sub(before.grouped),
                checkpoints: now.checkpoints.saturating_sub(before.checkpoints),
                home_writes: now.home_writes.saturating_sub(before.home_writes),
                refusals: now.refusals.saturating_sub(before.refusals),
                merged: now.merged.saturating_sub(before.merged),
                conflicts: now.conflicts.since(&before.conflicts),
                upgrades_waited: now.upgrades_waited.saturating_sub(before.upgrades_waited),
                snapshots_moved: now.snapshots_moved.saturating_sub(before.snapshots_moved),
                room_waits: now.room_waits.saturating_sub(before.room_waits),
                room_failures: now.room_failures.saturating_sub(before.room_failures),
            },
        })
    }
}

impl Counts {
    /// Returns the average number of commits that one write made durable (a group). Returns `None` if no group was
    /// written, for example because the engine has no groups.
    pub(crate) fn group_size(&self) -> Option<f64> {
        (self.groups > 0).then(|| self.grouped as f64 / self.groups as f64)
    }
}

impl Conflicts {
    /// Returns the number of conflicts of each kind, with the kind's name.
    pub(crate) fn kinds(&self) -> [(&'static str, u64); 4] {
        [("page", self.page), ("schema", self.schema), ("shrunk", self.shrunk), ("unknown", self.unknown)]
    }

    /// Returns the number of all conflicts.
    pub(crate) fn all(&self) -> u64 {
        self.kinds().iter().fold(0, |sum: u64, (_, count)| sum.wrapping_add(*count))
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            page: self.page.saturating_sub(earlier.page),
            schema: self.schema.saturating_sub(earlier.schema),
            shrunk: self.shrunk.saturating_sub(earlier.shrunk),
            unknown: self.unknown.saturating_sub(earlier.unknown),
        }
    }
}

fn is_alive(glance: &Glance, slot: usize) -> bool {
    glance.processes.iter().any(|process| process.slot == slot && process.is_alive)
}

fn processes(glance: &Glance, locks: &[Held]) -> Vec<Process> {
    let since = |then: u64| Duration::from_nanos(glance.clock_ns.saturating_sub(then));
    let living = glance.processes.iter().filter(|process| process.is_alive);
    let process = |process: &metrics::ProcessMetrics| {
        let held = locks.iter().find(|held| held.process == process.slot);
        let all = held.map_or(0, |held| held.shared | held.exclusive);
        Process {
            pid: process.pid,
            commits: process.commits,
            age: since(process.joined_ns),
            locks: (WRITE..SLOTS).filter(|slot| all & 1 << slot != 0).map(|slot| LOCKS[slot]).collect(),
            is_reserved: held.is_some_and(|held| held.is_reserved),
            reads: held.and_then(|held| held.reads_since).map(since),
        }
    };
    living.map(process).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use duralite_wal::shared::archived::Behind;

    use super::*;

    /// Returns a reading of the memory of a half-full log. One process opened the log `seconds` ago, and has made
    /// `commits` commits of 2 ms each.
    pub(crate) fn reading(seconds: u64, commits: u64) -> Reading {
        let bucket = metrics::bucket_of(2_000_000);
        let process = Process {
            pid: 4711,
            commits,
            age: Duration::from_secs(seconds),
            locks: vec!["WRITE", "READ1"],
            is_reserved: false,
            reads: Some(Duration::from_secs(3)),
        };
        Reading {
            engine: "waldio",
            log: "/srv/app.db-duralite".into(),
            log_id: "0123".to_owned(),
            beginning: 1,
            clock_ns: seconds * 1_000_000_000,
            processes: vec![process],
            latencies: Histogram::new(|at| if at == bucket { commits } else { 0 }),
            latency_ns: commits * 2_000_000,
            counts: Counts {
                groups: commits / 4,
                grouped: commits,
                checkpoints: 3,
                home_writes: 40,
                refusals: 5,
                merged: commits / 2,
                conflicts: Conflicts { page: commits / 10, schema: 1, ..Conflicts::default() },
                ..Counts::default()
            },
            fill: Some(Fill { used_bytes: 1 << 20, limit_bytes: 2 << 20 }),
            index: Some(WalIndex { frames: 100, backfilled: 60, db_pages: 9 }),
            readers: 1,
            oldest_reader: Some(Duration::from_secs(3)),
            home_failures: 0,
            archive: None,
        }
    }

    /// Returns an archive whose sidecar is 3 transactions behind.
    pub(crate) fn archive(sidecar: Sidecar) -> Option<Archive> {
        let behind = Behind { transactions: 3, bytes: 12 << 10, since_ms: 1000 };
        Archive::of(Archived { sidecar, position: 40, time_ms: 900, newest: 43, behind }, 3500)
    }

    #[test]
    fn an_archive_is_shown_once_a_sidecar_has_come_and_has_no_lag_once_it_has_everything() {
        let nothing = Archived {
            sidecar: Sidecar::None,
            position: 0,
            time_ms: 0,
            newest: 0,
            behind: Behind::default(),
        };
        assert!(Archive::of(nothing, 3500).is_none());
        assert_eq!(archive(Sidecar::Died).unwrap().lag, Duration::from_millis(2500));
        // The number of transactions is up to date, but the other counts are older: they are from a moment when the
        // sidecar had not archived everything.
        let behind = Behind { transactions: 0, bytes: 1, since_ms: 1000 };
        let all = Archived { sidecar: Sidecar::Runs, position: 43, newest: 43, behind, ..nothing };
        assert_eq!(Archive::of(all, 3500).unwrap().lag, Duration::ZERO);
    }

    #[test]
    fn only_looks_at_the_same_memory_have_something_between_them() {
        let (before, now) = (reading(10, 1000), reading(12, 1800));
        let recent = now.since(&before).unwrap();
        assert_eq!((recent.seconds, recent.commits, recent.counts.groups), (2.0, 800, 200));
        assert_eq!(recent.counts.group_size(), Some(4.0));
        assert_eq!((recent.counts.merged, recent.counts.conflicts.all()), (400, 80));
        assert!(before.since(&now).is_none(), "time goes on");
        assert!(reading(12, 3).since(&Reading { beginning: 2, ..before.clone() }).is_none());
        assert!(now.since(&Reading { log_id: "4567".to_owned(), ..before }).is_none());
    }
}
