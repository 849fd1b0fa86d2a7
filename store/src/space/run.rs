//! Runs of adjacent pages, for a bulk load that writes them home without the cache.
//!
//! Recovery redoes all changes of a page that are in the log, even if the page has since been freed and used again. If
//! a load's write had torn such a page, recovery could not redo these changes. So a run contains only pages to which no
//! object in the log refers: pages that were freed before the log's head.

use std::sync::atomic::Ordering;

use super::Space;
use super::runs::{GROUP, Run};
use crate::error::Error;
use crate::format::{Change, Lsn, PageId, Undo, first_clear, is_set};
use crate::pager::{Author, Logged, Pager};

/// The length of the shortest run of pages that the store gives to a load, unless the load wants even fewer pages.
/// Shorter runs stay free for other uses.
const SHORTEST: u64 = 64;

impl Space {
    /// Takes up to `want` adjacent pages, for a caller that writes them home itself. Returns the run, the log object
    /// that took it, and the undo of that object.
    ///
    /// # Errors
    /// [`Error::Full`] if the file cannot grow; the errors of [`Pager::step`].
    pub(crate) fn take_run(
        &self,
        pager: &Pager,
        author: Author,
        want: u64,
    ) -> Result<(Run, Logged, Vec<u8>), Error> {
        let head = pager.log.head();
        let mut group = self.hint.load(Ordering::SeqCst) / self.bits;
        loop {
            let first_of_map = self.first_map + group * self.bits;
            let mut map = pager.pool.write(first_of_map)?;
            let Some((bit, count)) = self.find_run(map.bytes(), first_of_map, want, head) else {
                group += 1;
                continue;
            };
            let first = first_of_map + u64::from(bit);
            self.used.fetch_add(u64::from(count), Ordering::SeqCst);
            let mut undo = Vec::new();
            Undo::Pages { first, count }.encode(&mut undo);
            // The file must have room for the run and for the reserved pages.
            let pages = self.pages_wanted().max(first + u64::from(count));
            let set = [(0, Change::MapSetRun { bit, count })];
            let taken = pager
                .pool
                .file()
                .reserve(pages)
                .and_then(|()| pager.step(author, &undo, &mut [&mut map], &set));
            let logged = taken.inspect_err(|_| {
                self.used.fetch_sub(u64::from(count), Ordering::SeqCst);
            })?;
            let run = Run { first, count: count.into(), head };
            self.runs.lock().being_written.push((run.first, run.count));
            return Ok((run, logged, undo));
        }
    }

    /// Finds the first run of adjacent free pages in a map to which no log object from `head` on refers. Returns the
    /// run's first bit and its length.
    fn find_run(&self, map: &[u8], first_of_map: PageId, want: u64, head: Lsn) -> Option<(u32, u32)> {
        let runs = self.runs.lock();
        let mut from = 1;
        while let Some(bit) = first_clear(map, from).filter(|bit| u64::from(*bit) < self.bits) {
            let is_fit = |at: u64| {
                at < self.bits
                    && at < u64::from(bit) + want
                    && !is_set(map, at as u32)
                    && runs.is_forgotten(first_of_map + at, head)
            };
            let end = (u64::from(bit)..).find(|at| !is_fit(*at))?;
            let count = end - u64::from(bit);
            if count >= want.min(SHORTEST) {
                return Some((bit, count as u32));
            }
            from = end as u32 + 1;
        }
        None
    }

    /// Frees adjacent pages.
    ///
    /// # Errors
    /// The errors of [`give_back`](Self::give_back).
    pub(crate) fn give_run_back(
        &self,
        pager: &Pager,
        author: Author,
        first: PageId,
        count: u32,
    ) -> Result<Logged, Error> {
        let (map, bit) = self.place_of(first);
        let mut map = pager.pool.write(map)?;
        if (bit..bit.saturating_add(count)).any(|bit| !is_set(map.bytes(), bit)) {
            return Err(Error::corrupt("the space map, where a page is free twice,"));
        }
        let clear = [(0, Change::MapClearRun { bit, count })];
        let logged = pager.step(author, &[], &mut [&mut map], &clear)?;
        self.runs.lock().being_written.retain(|(other, _)| *other != first);
        self.freed_run(first, count.into(), logged.lsn);
        Ok(logged)
    }

    /// Notes that a load has committed. The run now belongs to the table, except for its last `spare` pages, which the
    /// object `lsn` has freed.
    pub(crate) fn run_is_written(&self, run: Run, spare: u64, lsn: Lsn) {
        self.runs.lock().being_written.retain(|(first, _)| *first != run.first);
        if spare > 0 {
            self.freed_run(run.first + run.count - spare, spare, lsn);
        }
    }

    /// Notes that the object `lsn` has freed adjacent pages. Another part of the store has logged that object. The
    /// caller still has their map latched.
    pub(crate) fn freed_run(&self, first: PageId, count: u64, lsn: Lsn) {
        {
            let mut runs = self.runs.lock();
            for group in first / GROUP..=(first + count - 1) / GROUP {
                let newest = runs.freed.entry(group).or_default();
                *newest = lsn.max(*newest);
            }
        }
        // In a damaged store, more pages may be freed than were counted as in use.
        let less = |used: u64| Some(used.saturating_sub(count));
        let _ = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        self.hint.fetch_min(first - self.first_map, Ordering::SeqCst);
    }

    /// Returns whether no log object from `head` on refers to the free page `page`.
    pub(super) fn is_forgotten(&self, page: PageId, head: Lsn) -> bool {
        self.runs.lock().is_forgotten(page, head)
    }

    /// Returns whether the page is in use, and no load is writing it. If so, its version in the page file is valid,
    /// unless a newer version is only in the cache.
    ///
    /// # Errors
    /// Errors of reading the map.
    pub(crate) fn is_whole(&self, pager: &Pager, page: PageId) -> Result<bool, Error> {
        let (map, bit) = self.place_of(page);
        // A map is always in use, and has no bit for itself.
        if bit != 0 && !is_set(pager.pool.read(map)?.bytes(), bit) {
            return Ok(false);
        }
        let runs = self.runs.lock();
        Ok(!runs.being_written.iter().any(|(first, count)| (*first..first + count).contains(&page)))
    }
}
