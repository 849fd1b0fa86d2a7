//! What one thread has learned about the databases through all of its connections. The thread checks every snapshot
//! against this knowledge.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use crate::acks::{Acks, Place};
use crate::bank::{SCHEMAS, View};

/// The memory of a thread.
pub(crate) struct Mind {
    /// The number under which the thread commits.
    pub(crate) writer: i64,
    pub(crate) acks: Acks,
    /// For each writer, the number of the newest commit that the thread has seen, whether that was acknowledged or not.
    seen: HashMap<Place, i64>,
    counters: [i64; 2],
    /// For each database, the number of this thread's newest acknowledged commit. `tried` has the number of the newest
    /// commit that this thread has attempted.
    certain: [i64; 2],
    tried: [i64; 2],
}

impl Mind {
    pub(crate) fn new(writer: i64, acks: Acks) -> Self {
        Self { writer, acks, seen: HashMap::new(), counters: [0; 2], certain: [0; 2], tried: [0; 2] }
    }

    /// Returns, for each writer, its newest acknowledged commit. Every snapshot that begins after this call must show
    /// that commit.
    pub(crate) fn floors(&mut self) -> Result<HashMap<Place, i64>> {
        Ok(self.acks.refresh()?.clone())
    }

    /// Compares a snapshot with the commits that were acknowledged before it began, and with what this thread has seen
    /// before.
    pub(crate) fn compare(
        &mut self,
        database: usize,
        view: &View,
        floors: &HashMap<Place, i64>,
    ) -> Result<()> {
        let name = SCHEMAS[database];
        for ((_, writer), floor) in floors.iter().filter(|((of, _), _)| *of == database) {
            let found = view.newest.get(writer).copied().unwrap_or(0);
            ensure!(
                found >= *floor,
                "lost: commit {floor} of writer {writer} in {name} was acknowledged, and {found} is its newest"
            );
        }
        for ((_, writer), seen) in self.seen.iter().filter(|((of, _), _)| *of == database) {
            let found = view.newest.get(writer).copied().unwrap_or(0);
            ensure!(
                found >= *seen,
                "lost: commit {seen} of writer {writer} in {name} was seen here, and {found} is its newest"
            );
        }
        let counter = self.counters[database];
        ensure!(view.counter >= counter, "lost: {name} goes back from commit {counter} to {}", view.counter);
        if let Some(contradiction) = view.contradiction() {
            anyhow::bail!("{contradiction}, in {name}");
        }
        self.counters[database] = view.counter;
        for (writer, seq) in &view.newest {
            self.seen.insert((database, *writer), *seq);
        }
        Ok(())
    }

    /// Returns the number for this writer's next commit. `found` is the number of this writer's newest commit in the
    /// database. That commit counts, even if SQLite has reported an error for it.
    pub(crate) fn next(&mut self, database: usize, found: i64) -> Result<i64> {
        let (certain, tried) = (self.certain[database], self.tried[database]);
        ensure!(
            found >= certain,
            "lost: commit {certain} of this writer, {}, in {}, was acknowledged, and {found} is its newest",
            self.writer,
            SCHEMAS[database]
        );
        ensure!(found <= tried, "writer {} finds commit {found}, and has tried {tried}", self.writer);
        self.certain[database] = found;
        self.tried[database] = found + 1;
        Ok(found + 1)
    }

    /// Records that a commit of this writer was acknowledged.
    pub(crate) fn acknowledge(&mut self, database: usize, seq: i64) -> Result<()> {
        self.certain[database] = seq;
        self.acks.record((database, self.writer), seq)
    }
}
