//! Writes changed pages home, that is, into the page file.
//!
//! Invariant 35: the page file gets a page as it was at one moment, never a mix of two versions. Before the page is
//! written, the log is durable up to the page's LSN.

use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::Pool;
use super::frame::{Frame, Pinned, sort_by_changing};
use crate::controls::Rule;
use crate::error::Error;
use crate::format::{DOUBLE_WRITE_PAGES, Lsn, lsn};
use crate::page_file::Batch;

/// The time for which a checkpoint waits for a page's latch. The thread that holds the latch may be waiting for a
/// frame, and so for the cleaning mutex that the checkpoint holds. Without a limit, both threads would wait forever.
const LATCH_PATIENCE: Duration = Duration::from_millis(2);

/// A page in the batch that is being written home, with the LSN that the page had when it was copied.
struct Copied<'p> {
    pin: Pinned<'p>,
    lsn: Lsn,
}

impl Pool {
    /// Writes home every page with changes before `upto` that the page file lacks. Returns when all of these pages are
    /// home, or when `is_over` returns true. The caller must not hold latches.
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
            // Writing in the order of the file is faster.
            sort_by_changing(&mut old, |frame| frame.id.load(Ordering::Relaxed));
            let mut written = 0;
            for batch in old.chunks(DOUBLE_WRITE_PAGES) {
                written += self.write_home(batch.iter().copied(), LATCH_PATIENCE)?;
            }
            if written == 0 {
                // Other threads have all of these pages latched. They release the latches soon, because a thread with a
                // latch waits for no lock. So yield to them, and try again.
                std::thread::yield_now();
            }
        }
    }

    /// Writes home at most [`DOUBLE_WRITE_PAGES`] pages. Skips pages whose latch does not become free within
    /// `patience`. Returns how many it wrote.
    fn write_home<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame>,
        patience: Duration,
    ) -> Result<usize, Error> {
        let cleaning = self.cleaning.lock();
        self.write_home_alone(&cleaning, frames, patience)
    }

    /// Does the work of [`write_home`](Self::write_home), for a caller that holds the cleaning mutex.
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

    /// Copies a page into the batch, and pins it. Returns `None` if the page is clean, or if another thread has it
    /// latched for writing for longer than `patience`.
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
        // `try_read_for` queues for the latch. Without queueing, a page that is nearly always latched would never be
        // written home.
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

/// Marks a page as clean, now that its copy is in the page file. If the page has changed since it was copied, it stays
/// dirty.
fn settle(copied: &Copied<'_>) {
    let Pinned { frame, tallies } = &copied.pin;
    // Does not wait for the latch. The thread that holds it may be waiting for the cleaning mutex, which this thread
    // holds.
    match frame.content.try_read() {
        // While this thread holds the latch, no other thread can mark the page as dirty for a new change.
        Some(content) if lsn(&content.bytes) == copied.lsn => frame.is_home(tallies),
        _ => frame.first_change.store(copied.lsn + 1, Ordering::SeqCst),
    }
}
