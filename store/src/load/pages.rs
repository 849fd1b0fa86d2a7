//! The pages of a load: their numbers, the transaction that allocates them, and the writer that writes them.

use std::sync::Arc;

use super::writer::Writer;
use crate::error::Error;
use crate::format::PageId;
use crate::running::Running;
use crate::space::Run;
use crate::table::Table;
use crate::transaction::{Backups, Loaded, Transaction};

/// The number of pages that a load allocates at first, and the most bytes that it allocates at a time.
const FIRST_RUN: u64 = 64;
const LONGEST_RUN_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Pages {
    // Fields are dropped in this order: the writer stops first, then dropping the transaction frees the pages.
    writer: Writer,
    tx: Transaction,
    table: Table,
    backups: Backups,
    runs: Vec<Run>,
    /// The number of pages of the last run that are not used yet.
    left: u64,
    page_bytes: u64,
}

impl Pages {
    pub(super) fn begin(running: &Arc<Running>, table: &Table) -> Result<Self, Error> {
        let pool = &running.engine.pager.pool;
        let mut tx = Transaction::begin(running);
        let backups = tx.begin_load(table)?;
        let writer = Writer::new(Arc::clone(pool));
        let page_bytes = pool.page_bytes() as u64;
        Ok(Self { writer, tx, table: table.clone(), backups, runs: Vec::new(), left: 0, page_bytes })
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.tx.check_open()
    }

    pub(super) fn fail(&self) {
        self.tx.fail();
    }

    /// Takes the next page. It is adjacent to the previous one if possible.
    pub(super) fn next_id(&mut self) -> Result<PageId, Error> {
        if self.left == 0 {
            // Each run is as long as all earlier runs together. So there are only a few runs, and not many pages stay
            // unused.
            let has: u64 = self.runs.iter().map(|run| run.count).sum();
            let run = self.tx.take_run(has.clamp(FIRST_RUN, LONGEST_RUN_BYTES / self.page_bytes))?;
            self.left = run.count;
            self.runs.push(run);
        }
        let id = self.runs.last().map_or(0, |run| run.first + run.count - self.left);
        self.left -= 1;
        Ok(id)
    }

    /// Writes a page now or later, but before [`commit`](Self::commit) returns.
    pub(super) fn write(&mut self, id: PageId, page: &[u8]) -> Result<(), Error> {
        let head = self.runs.last().map_or(0, |run| run.head);
        self.writer.write(id, head, page)
    }

    /// Makes all written pages durable, and then makes them the content of the table. The commit is durable on return.
    pub(super) fn commit(self, root: &[u8]) -> Result<(), Error> {
        let Self { writer, tx, table, backups, runs, left, .. } = self;
        let pool = writer.finish()?;
        for run in &runs {
            // Another thread may have read one of these pages into the cache before the load wrote it, because the
            // thread followed an outdated reference. So reload the pages that are in the cache.
            (run.first..run.first + run.count).try_for_each(|id| pool.read_anew(id))?;
        }
        tx.commit_load(&Loaded { table: &table, root, runs: &runs, spare: left, backups })
    }
}
