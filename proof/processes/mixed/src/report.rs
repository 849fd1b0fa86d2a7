//! The counts of a round.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use anyhow::Result;

use crate::Side;
use crate::acks::Acks;
use crate::site::Paths;
use crate::worker::side_of;

/// The counts of a round.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The number of commits that were acknowledged to processes of Duralite.
    pub ours: u64,
    /// The number of commits that were acknowledged to processes of stock SQLite.
    pub stock: u64,
    /// The number of started processes.
    pub started: u64,
    /// The number of killed processes.
    pub kills: u64,
    /// How many times a process was stopped for a while.
    pub stops: u64,
    /// How many times each operation had each outcome. A key is, for example, `ours commit ok` or `stock open
    /// rw 26`.
    pub events: BTreeMap<String, u64>,
}

impl Report {
    /// Counts the events and acknowledgements that the processes have recorded.
    pub(crate) fn count(&mut self, paths: &Paths) -> Result<()> {
        (self.ours, self.stock) = (0, 0);
        for ((_, writer), seq) in Acks::open(&paths.acks())?.refresh()? {
            match side_of(*writer) {
                Side::Ours => self.ours += seq.cast_unsigned(),
                Side::Stock => self.stock += seq.cast_unsigned(),
            }
        }
        for trace in fs::read_dir(paths.traces())? {
            for line in String::from_utf8_lossy(&fs::read(trace?.path())?).lines() {
                let mut fields = line.split('\t').skip(1);
                let (Some(side), Some(doing), Some(outcome)) = (fields.next(), fields.next(), fields.next())
                else {
                    continue;
                };
                let outcome = outcome.split(' ').next().unwrap_or_default();
                *self.events.entry(format!("{side} {doing} {outcome}")).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Returns the number of events whose keys start with `beginning`.
    #[must_use]
    pub fn events_like(&self, beginning: &str) -> u64 {
        self.events.iter().filter(|(name, _)| name.starts_with(beginning)).map(|(_, count)| count).sum()
    }

    /// Adds the counts of another round.
    pub fn add(&mut self, other: &Self) {
        self.ours += other.ours;
        self.stock += other.stock;
        self.started += other.started;
        self.kills += other.kills;
        self.stops += other.stops;
        for (name, count) in &other.events {
            *self.events.entry(name.clone()).or_default() += count;
        }
    }

    /// Returns how many times stock SQLite refused the database because of the guard.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        let not_a_database = format!(" {}", rusqlite::ffi::SQLITE_NOTADB);
        let is_one = |name: &str| name.starts_with("stock") && name.ends_with(&not_a_database);
        self.events.iter().filter(|(name, _)| is_one(name)).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} commits of Duralite, {} of stock SQLite, which the guard refused {} times; {} processes started, {} killed, \
             {} stopped; {} changes of mode, {} checkpoints, {} snapshots",
            self.ours,
            self.stock,
            self.refusals(),
            self.started,
            self.kills,
            self.stops,
            self.events_like("ours mode main")
                + self.events_like("stock mode main")
                + self.events_like("ours mode two")
                + self.events_like("stock mode two"),
            self.events_like("ours checkpoint ok") + self.events_like("stock checkpoint ok"),
            self.events_like("ours look ok")
                + self.events_like("stock look ok")
                + self.events_like("ours hold ok")
                + self.events_like("stock hold ok"),
        )
    }
}
