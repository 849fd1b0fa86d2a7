//! A bulk load as a transaction. The transaction allocates pages, and its caller writes them home. One log object
//! commits the load and adds the pages to the table.
//!
//! Invariant 53: the commit is logged only when the pages are durable in the page file. No earlier object makes them
//! reachable. If the load does not commit, the undo of its steps frees the pages. If there is an archive, or if a
//! backup may lack the pages, images of the pages are logged before the commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::change::OBJECT_OVERHEAD;
use super::{State, Transaction};
use crate::admission::Room;
use crate::engine::{Engine, now_ns};
use crate::error::Error;
use crate::format::{COMMIT_OF_PAGES_AT_HOME, Change, ObjectKind, PageId};
use crate::locks::{Mode, Target};
use crate::pager::{Author, Logged};
use crate::space::Run;
use crate::table::Table;
use crate::tree::Reaped;

/// The number of page images for which the load reserves room in the log at a time.
const IMAGES_AT_ONCE: usize = 16;

/// The number of backups that had begun when the load began, and whether one was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backups {
    begun: u64,
    is_one_open: bool,
}

/// The content that a load adds to the table when it commits.
#[derive(Debug)]
pub(crate) struct Loaded<'l> {
    pub(crate) table: &'l Table,
    /// The image of the root page.
    pub(crate) root: &'l [u8],
    /// The pages below the root. Apart from the spare ones, all of them are durable in the page file.
    pub(crate) runs: &'l [Run],
    /// The number of pages at the end of the last run that were not written.
    pub(crate) spare: u64,
    pub(crate) backups: Backups,
}

impl Loaded<'_> {
    fn pages(&self) -> impl Iterator<Item = PageId> {
        let last = self.runs.len().saturating_sub(1);
        let written = move |at| if at == last { self.spare } else { 0 };
        let pages = self.runs.iter().enumerate().map(move |(at, run)| (run.first, run.count - written(at)));
        pages.flat_map(|(first, count)| first..first + count)
    }
}

impl Transaction {
    /// Locks a table for a load. The table must have no rows, and no open snapshot may show rows of it.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; the errors of [`Transaction::put`].
    pub(crate) fn begin_load(&mut self, table: &Table) -> Result<Backups, Error> {
        self.check()?;
        self.check_table(table)?;
        self.take(&Target::Table(table.root()), Mode::Exclusive)?;
        table.check_there()?;
        let engine = &self.running.engine;
        let not_empty = || Error::NotEmpty { name: table.name().to_owned() };
        let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        engine.tree(table.root()).each_cell(everything, |_, _| Err(not_empty()))?;
        // The table's pages have no rows, but an older snapshot may still show some from noted versions. That snapshot
        // would see the loaded rows instead. So refuse the load.
        if engine.versions.open_snapshots() > 0 && engine.versions.has_rows_of(table.root()) {
            return Err(not_empty());
        }
        let backups = engine.backups.lock();
        let is_one_open = !engine.pinned.lock().is_empty();
        Ok(Backups { begun: *backups, is_one_open })
    }

    /// Allocates up to `want` adjacent pages.
    pub(crate) fn take_run(&mut self, want: u64) -> Result<Run, Error> {
        self.changing(|tx| {
            let room = tx.admit(0)?;
            let undoable = Arc::clone(tx.undoable.get_or_insert_default());
            let busy = undoable.busy.lock();
            let engine = tx.engine();
            let taken = engine.space.take_run(&engine.pager, tx.author(), want);
            tx.admitted(room);
            let (run, logged, undo) = taken?;
            tx.add_step(logged, undo);
            drop(busy);
            Ok(run)
        })
    }

    /// Commits the load, which is durable on return.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). After any error other than [`Error::Poisoned`] the table is unchanged.
    pub(crate) fn commit_load(mut self, loaded: &Loaded<'_>) -> Result<(), Error> {
        self.check()?;
        self.make_leaf_of_root(loaded.table)?;
        self.enter()?;
        let page = self.page_bytes() as u64;
        self.keep(Room { bytes: page + OBJECT_OVERHEAD, objects: 1 })?;
        let running = Arc::clone(&self.running);
        let engine = &running.engine;
        let begun = loaded.backups.begun;
        let mut is_in_log = loaded.runs.is_empty();
        let logged = loop {
            let backups = engine.backups.lock();
            let has_to_be = engine.archive.is_some() || loaded.backups.is_one_open || *backups != begun;
            if is_in_log || !has_to_be {
                // Commits while the mutex is held, so that no backup begins in between. A backup that begins later
                // copies these pages from the file.
                break self.say_load(engine, loaded, is_in_log)?;
            }
            drop(backups);
            self.log_images(engine, loaded)?;
            is_in_log = true;
        };
        let forced = engine.force(logged.lsn);
        self.finish(0);
        forced
    }

    /// Frees the pages below the root. A table may still have such pages after losing all of its rows.
    fn make_leaf_of_root(&self, table: &Table) -> Result<(), Error> {
        let engine = self.engine();
        let room = Room { bytes: 4 * self.page_bytes() as u64, objects: 4 };
        loop {
            engine.admission.keep(room, self.kept.room, engine.tuning.lock_timeout)?;
            let reaped = engine.tree(table.root()).reap();
            engine.admission.give_back(room);
            match reaped? {
                Reaped::Pages => {}
                Reaped::Root => return Ok(()),
                Reaped::LongRow { .. } => return Err(Error::corrupt("a table without rows")),
            }
        }
    }

    fn log_images(&self, engine: &Engine, loaded: &Loaded<'_>) -> Result<(), Error> {
        let page_bytes = self.page_bytes() as u64;
        let (count, bytes) = (IMAGES_AT_ONCE as u64, page_bytes + OBJECT_OVERHEAD);
        let room = Room { bytes: count * bytes, objects: count };
        let pages: Vec<PageId> = loaded.pages().collect();
        for some in pages.chunks(IMAGES_AT_ONCE) {
            engine.poison.check()?;
            engine.admission.keep(room, self.kept.room, engine.tuning.lock_timeout)?;
            let logged = some.iter().try_for_each(|id| {
                let mut page = engine.pager.pool.write(*id)?;
                let image = page.bytes().to_vec();
                let change = [(0, Change::image_of(&image))];
                engine.pager.step(Author::SYSTEM, &[], &mut [&mut page], &change).map(|_| ())
            });
            engine.admission.give_back(room);
            logged?;
        }
        Ok(())
    }

    /// Logs the commit, together with the new root page and the freeing of the spare pages.
    fn say_load(&mut self, engine: &Engine, loaded: &Loaded<'_>, is_in_log: bool) -> Result<Logged, Error> {
        let mut body = now_ns().to_le_bytes().to_vec();
        if !is_in_log {
            body.push(COMMIT_OF_PAGES_AT_HOME);
            // Invariant 76: the commit names the number of a new superblock. A copy of the page file that lacks the
            // pages has a superblock with a smaller number.
            let number =
                engine.pager.pool.file().write_head(|_| ()).map_err(|error| engine.poison.set(&error))?;
            body.extend(number.to_le_bytes());
        }
        self.close_steps();
        let author = Author { kind: ObjectKind::Commit, tx: self.id, previous: self.last };
        let mut root = engine.pager.pool.write(loaded.table.root())?;
        let mut changes = vec![(0, Change::image_of(loaded.root))];
        let mut map = None;
        if let Some(run) = loaded.runs.last().filter(|_| loaded.spare > 0) {
            let (id, bit) = engine.space.place_of(run.first + run.count - loaded.spare);
            map = Some(engine.pager.pool.write(id)?);
            changes.push((1, Change::MapClearRun { bit, count: loaded.spare as u32 }));
        }
        // Hides the new rows from snapshots before the new root shows them.
        engine.tables.begin_load(loaded.table);
        let mut pages = vec![&mut root];
        pages.extend(&mut map);
        let said = engine.pager.step(author, &body, &mut pages, &changes);
        let logged = said.inspect_err(|_| engine.tables.load_failed(loaded.table))?;
        engine.newest_commit.fetch_max(logged.lsn, Ordering::SeqCst);
        for (at, run) in loaded.runs.iter().enumerate() {
            let is_last = at + 1 == loaded.runs.len();
            engine.space.run_is_written(*run, if is_last { loaded.spare } else { 0 }, logged.lsn);
        }
        self.loaded = Some(loaded.table.clone());
        Ok(logged)
    }

    /// Checks that the transaction can continue. If it cannot, it can only be rolled back.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        self.check()
    }

    /// Makes the transaction fail, so that from now on it can only be rolled back.
    pub(crate) fn fail(&self) {
        self.state.set(State::Failed);
    }
}
