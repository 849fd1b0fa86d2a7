//! Pages go home.
//!
//! Invariant 35: what is written home is a page as it was at one moment, and everything in the log up to the page's LSN
//! is durable before.

use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_logfmt::store::{DOUBLE_WRITE_PAGES, Lsn, lsn};
use parking_lot::MutexGuard;

use super::Pool;
use super::frame::{Frame, Pinned};
use crate::controls::Rule;
use crate::error::Error;
use crate::page_file::Batch;

/// So long a checkpoint waits for a page's latch. Not for ever: who has it may wait for a frame, and so for the cleaning.
const LATCH_PATIENCE: Duration = Duration::from_millis(2);

/// A page's copy on its way home.
struct Copied<'p> {
    pin: Pinned<'p>,
    lsn: Lsn,
}

impl Pool {
    /// Writes home whatever was changed before an object; until it is all home, or `is_over` says stop. Not to be
    /// called with latches held.
    ///
    /// # Errors
    /// Of the log or the page file; the store is poisoned then.
    pub(crate) fn clean_before(&self, upto: Lsn, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
        loop {
            let is_old = |frame: &&Frame| (1..upto).contains(&frame.first_change());
            let mut old: Vec<&Frame> = self.frames.iter().filter(is_old).collect();
            if old.is_empty() || is_over() {
                return Ok(());
            }
            // In the order of the file.
            old.sort_unstable_by_key(|frame| frame.id.load(Ordering::Relaxed));
            let mut written = 0;
            for batch in old.chunks(DOUBLE_WRITE_PAGES) {
                written += self.write_home(batch.iter().copied(), LATCH_PATIENCE)?;
            }
            if written == 0 {
                // All of them are latched: not for long, since nobody waits for a lock with a latch.
                std::thread::yield_now();
            }
        }
    }

    /// At most [`DOUBLE_WRITE_PAGES`], each whose latch comes within `patience`; how many were written.
    fn write_home<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame>,
        patience: Duration,
    ) -> Result<usize, Error> {
        let cleaning = self.cleaning.lock();
        self.write_home_alone(&cleaning, frames, patience)
    }

    /// The same by whoever has the mutex of cleaning.
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

    /// A copy of a dirty page, unless it is latched for a change, and stays so.
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
        // In line, or a page that is always latched by somebody would never go home.
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

/// What was copied is home: only later changes are missing there.
fn settle(copied: &Copied<'_>) {
    let Pinned { frame, tallies } = &copied.pin;
    // Whoever has the page latched may wait for the cleaning: it is not waited for here.
    match frame.content.try_read() {
        // Under the latch nobody announces a change.
        Some(content) if lsn(&content.bytes) == copied.lsn => frame.is_home(tallies),
        _ => frame.first_change.store(copied.lsn + 1, Ordering::SeqCst),
    }
}
