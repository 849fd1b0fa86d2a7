//! Writing pages home.
//!
//! Invariant 35: a page is written home as it was at one moment, and everything in the log up to the page's LSN is
//! durable before that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::Pool;
use super::frame::{Frame, Pinned, sort_by_changing};
use crate::controls::Rule;
use crate::error::Error;
use crate::format::{DOUBLE_WRITE_PAGES, Lsn, lsn};
use crate::page_file::Batch;

/// How long a checkpoint waits for a page's latch. The wait is limited, because the thread with the latch may itself
/// wait for a frame, and so for the cleaning mutex.
const LATCH_PATIENCE: Duration = Duration::from_millis(2);

/// A copy of a page that is being written home.
struct Copied<'p> {
    pin: Pinned<'p>,
    lsn: Lsn,
}

impl Pool {
    /// Writes home every page that was changed before the object `upto`. Returns when all of them are home, or when
    /// `is_over` returns true. The caller must not hold latches.
    ///
    /// # Errors
    /// Errors of the log or the page file, which have poisoned the store.
    pub(crate) fn clean_before(&self, upto: Lsn, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
        loop {
            let is_old = |frame: &&Frame| (1..upto).contains(&frame.first_change());
            let mut old: Vec<&Frame> = self.frames.iter().filter(is_old).collect();
            if old.is_empty() || is_over() {
                return Ok(());
            }
            // In the order of the file.
            sort_by_changing(&mut old, |frame| frame.id.load(Ordering::Relaxed));
            let mut written = 0;
            for batch in old.chunks(DOUBLE_WRITE_PAGES) {
                written += self.write_home(batch.iter().copied(), LATCH_PATIENCE)?;
            }
            if written == 0 {
                // All of these pages are latched, but not for long, because a thread with a latch waits for no lock.
                std::thread::yield_now();
            }
        }
    }

    /// Writes home at most [`DOUBLE_WRITE_PAGES`] pages, those whose latch becomes free within `patience`. Returns how
    /// many it wrote.
    fn write_home<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame>,
        patience: Duration,
    ) -> Result<usize, Error> {
        let cleaning = self.cleaning.lock();
        self.write_home_alone(&cleaning, frames, patience)
    }

    /// As [`write_home`](Self::write_home), for a caller that holds the cleaning mutex.
    pub(super) fn write_home_alone<'a>(
        &self,
        _cleaning: &MutexGuard<'_, ()>,
        frames: impl Iterator<Item = &'a Frame>,
        patience: Duration,
    ) -> Result<usize, Error> {
        self.poison.check()?;
        let mut batch = self.file.batch();
        let copied: Vec<Copied<'_>> =
            frames.filter_map(|frame| self.copy(frame, patience, &mut batch)).collect();
        if copied.is_empty() {
            return Ok(0);
        }
        let newest = copied.iter().map(|page| page.lsn).max().unwrap_or(0);
        let write = || {
            if self.file.controls().keep(Rule::LogBeforePages) {
                self.log.force(newest)?;
            }
            self.file.write(batch)
        };
        write().map_err(|error| self.poison.set(&error))?;
        let keeps = self.file.controls().keep(Rule::ChangedMeanwhile);
        copied
            .iter()
            .for_each(|page| if keeps { settle(page) } else { page.pin.frame.is_home(page.pin.tallies) });
        Ok(copied.len())
    }

    /// Copies a page and pins it. Returns `None` if the page is clean, or is latched for writing for longer than
    /// `patience`.
    fn copy<'p>(&'p self, frame: &'p Frame, patience: Duration, batch: &mut Batch<'_>) -> Option<Copied<'p>> {
        let pin = {
            let id = frame.id.load(Ordering::SeqCst);
            let part = self.part(id).lock();
            let mapped = self.frame(*part.frames.get(&id)?);
            if !std::ptr::eq(mapped, frame) {
                return None;
            }
            self.pinned(mapped)
        };
        // The thread queues for the latch. Otherwise a page that some thread always has latched would never go home.
        let content = match frame.content.try_read() {
            Some(content) => content,
            None if patience.is_zero() => return None,
            None => frame.content.try_read_for(patience)?,
        };
        if !content.is_valid || !frame.is_dirty() {
            return None;
        }
        batch.add(content.id, &content.bytes);
        let lsn = lsn(&content.bytes);
        drop(content);
        Some(Copied { pin, lsn })
    }
}

/// The copy is home, so only later changes are missing there.
fn settle(copied: &Copied<'_>) {
    let Pinned { frame, tallies } = &copied.pin;
    // A thread that has the page latched may wait for the cleaning mutex, so this thread must not wait for the latch.
    match frame.content.try_read() {
        // Under the latch no other thread announces a change.
        Some(content) if lsn(&content.bytes) == copied.lsn => frame.is_home(tallies),
        _ => frame.first_change.store(copied.lsn + 1, Ordering::SeqCst),
    }
}
