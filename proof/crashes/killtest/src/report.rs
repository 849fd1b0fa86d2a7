//! The counts of a run so far.

use std::fmt;
use std::time::Duration;

use crate::Role;

/// Counts of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The number of processes killed, by [`Role::index`].
    pub kills: [u64; Role::ALL.len()],
    /// The number of transactions that were acknowledged.
    pub acknowledged: u64,
    /// The number of checks of the newest transactions.
    pub light_checks: u64,
    /// The number of checks of all transactions.
    pub full_checks: u64,
    /// The number of times that the run killed all processes at once.
    pub wipes: u64,
    /// The number of times that the run closed all connections and checked the file with stock SQLite.
    pub settled: u64,
    /// The number of processes that the run stopped for a while and then killed.
    pub stopped: u64,
    /// The number of processes that the run stopped for a while and then let continue.
    pub continued: u64,
    /// The number of processes that the run stopped, several at a time, and then let continue.
    pub paused: u64,
    /// The number of strikes during which the database had its second name only. In a strike, the run kills
    /// some processes.
    pub renamed: u64,
    /// The largest number of bytes that the logs took.
    pub log_bytes: u64,
    /// The number of processes started.
    pub started: u64,
    /// The time so far.
    pub elapsed: Duration,
}

impl Report {
    /// Returns the number of processes killed.
    #[must_use]
    pub fn total_kills(&self) -> u64 {
        self.kills.iter().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "{} kills (", self.total_kills())?;
        let mut separator = "";
        for role in Role::ALL {
            let count = self.kills[role.index()];
            if count > 0 {
                write!(f, "{separator}{} {count}", role.name())?;
                separator = ", ";
            }
        }
        write!(
            f,
            "), {} acknowledged, {} light and {} full checks, {} times all killed, {} settled, \
             {} stopped and killed, {} stopped and continued, {} paused, {} strikes while renamed, \
             logs of at most {:.1} MiB, {seconds:.1} s, {:.1} kills/s",
            self.acknowledged,
            self.light_checks,
            self.full_checks,
            self.wipes,
            self.settled,
            self.stopped,
            self.continued,
            self.paused,
            self.renamed,
            self.log_bytes as f64 / f64::from(1 << 20),
            self.total_kills() as f64 / seconds.max(0.001),
        )
    }
}
