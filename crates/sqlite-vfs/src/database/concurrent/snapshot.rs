//! A moment of the database that a connection reads, and the read mark by which it holds that moment.

use std::time::Duration;

use duralite_format::wal_index::{IndexHeader, MARKS};
use duralite_locks::{FIRST_READ, Holder, LockError};
use duralite_sqlite_ffi as ffi;

use super::shared_index::SharedIndex;
use crate::errors::Failure;

/// A snapshot that a connection holds.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot {
    /// The state of the log.
    pub header: IndexHeader,
    /// The read mark that the connection has shared.
    mark: usize,
    /// The first frame that may be newer than the database file.
    first: u32,
}

/// Tries in vain before SQLite, too, gives up.
const TRIES: u32 = 100;
/// Tries in vain before the connection sleeps between them.
const AT_ONCE: u32 = 5;

impl Snapshot {
    /// Begins to read at the newest commit, as SQLite's `walTryBeginRead` does. The connection holds nothing.
    /// `header` reads the newest header.
    pub fn take(
        index: SharedIndex<'_>,
        holder: &Holder,
        header: impl Fn() -> Result<IndexHeader, Failure>,
    ) -> Result<Self, Failure> {
        for tries in 0..TRIES {
            if tries > AT_ONCE {
                std::thread::sleep(Duration::from_micros(u64::from(tries - AT_ONCE).pow(2) * 39));
            }
            let header = header()?;
            if let Some(snapshot) = Self::of(index, holder, &header)? {
                return Ok(snapshot);
            }
        }
        Err(Failure::new(ffi::PROTOCOL, "cannot begin to read: the wal-index changes all the time"))
    }

    /// One try. `None` where the connection has to begin again.
    fn of(index: SharedIndex<'_>, holder: &Holder, header: &IndexHeader) -> Result<Option<Self>, Failure> {
        let frames = header.frames();
        if index.backfilled()? == frames && lock(holder, 0)? {
            // Everything is in the database file, and nobody writes there while this mark is held.
            if index.is_still(header)? {
                return Ok(Some(Self { header: *header, mark: 0, first: frames.saturating_add(1) }));
            }
            holder.unlock_shared(FIRST_READ);
            return Ok(None);
        }
        let Some((mark, frame)) = choose_mark(index, holder, frames)? else { return Ok(None) };
        if !lock(holder, mark)? {
            return Ok(None);
        }
        // More than all of them are home only where a process has died in a start over.
        let first = index.backfilled()?.min(frames).saturating_add(1);
        if index.is_still(header)? && index.mark(mark)? == frame {
            return Ok(Some(Self { header: *header, mark, first }));
        }
        holder.unlock_shared(FIRST_READ + mark);
        Ok(None)
    }

    /// Begins to read at this moment once more. `None` where this is not the newest commit any more, or the
    /// connection has to look again.
    pub fn again(&self, index: SharedIndex<'_>, holder: &Holder) -> Result<Option<Self>, Failure> {
        let frames = self.header.frames();
        let is_home = index.backfilled()? == frames;
        let is_chosen = || index.mark(self.mark).map(|mark| is_home || mark == frames);
        if is_home != self.is_in_file() || !is_chosen()? {
            // There is another mark for it.
            return if index.shows(&self.header)? { Self::of(index, holder, &self.header) } else { Ok(None) };
        }
        if !lock(holder, self.mark)? {
            return Ok(None);
        }
        let first = if is_home { frames } else { index.backfilled()? }.saturating_add(1);
        if index.is_still(&self.header)? && is_chosen()? {
            return Ok(Some(Self { first, ..*self }));
        }
        holder.unlock_shared(FIRST_READ + self.mark);
        Ok(None)
    }

    /// The frame with this page; `None` where the page is in the database file.
    pub fn find(&self, index: SharedIndex<'_>, page: u32) -> Result<Option<u32>, Failure> {
        index.find(page, self.first, self.header.frames())
    }

    /// Gives the mark back.
    pub fn release(self, holder: &Holder) {
        holder.unlock_shared(FIRST_READ + self.mark);
    }

    /// Whether the log may start over under this snapshot: the connection reads the database file alone.
    pub fn is_in_file(&self) -> bool {
        self.mark == 0
    }

    /// Whether a checkpoint that has WRITE waits for this snapshot; `None` where that cannot be told. It may not
    /// write home what is newer than the mark, nor let the log start over. It may also have looked at the mark
    /// before that was set to the newest frame, and wait for it all the same.
    pub fn is_in_the_way(&self, index: SharedIndex<'_>) -> Result<Option<bool>, Failure> {
        let Some(newest) = index.header()? else { return Ok(Some(false)) };
        let is_home = index.backfilled()? == newest.frames();
        if self.mark == 0 {
            return Ok(Some(!is_home));
        }
        Ok((is_home || index.mark(self.mark)? < newest.frames()).then_some(true))
    }

    /// The frames that were committed after this snapshot and up to `newest`. `None` where that cannot be
    /// told any more.
    ///
    /// While the connection holds a mark of the log, the log does not start over. Under the first mark it may,
    /// but only once: nothing of the new generation gets into the database file, so that one stays.
    pub fn frames_until(&self, newest: &IndexHeader) -> Option<std::ops::RangeInclusive<u32>> {
        if newest.salt() == self.header.salt() {
            return Some(self.header.frames().saturating_add(1)..=newest.frames());
        }
        self.is_in_file().then(|| 1..=newest.frames())
    }

    /// The same hold at a newer moment. The caller holds WRITE, and the mark stays: it holds back checkpoints
    /// further than it has to, and keeps the log from starting over all the same.
    pub fn moved_to(&self, newest: &IndexHeader) -> Self {
        let first = if newest.salt() == self.header.salt() { self.first } else { 1 };
        Self { header: *newest, first, ..*self }
    }
}

/// Chooses the mark for a log with this many frames, as SQLite does: the highest one that is not behind them,
/// or one that is free, set to them. Returns the mark and its frame.
pub fn choose_mark(
    index: SharedIndex<'_>,
    holder: &Holder,
    frames: u32,
) -> Result<Option<(usize, u32)>, Failure> {
    let mut best: Option<(usize, u32)> = None;
    for mark in 1..MARKS {
        let frame = index.mark(mark)?;
        if frame <= frames && best.is_none_or(|(_, best)| best <= frame) {
            best = Some((mark, frame));
        }
    }
    if best.is_some_and(|(_, frame)| frame == frames) {
        return Ok(best);
    }
    for mark in 1..MARKS {
        match holder.lock_exclusive(FIRST_READ + mark, 1) {
            Ok(()) => {
                let set = index.set_mark(mark, frames);
                holder.unlock_exclusive(FIRST_READ + mark, 1);
                return set.map(|()| Some((mark, frames)));
            }
            Err(LockError::Busy) => {}
            Err(error) => return Err(cannot_lock(&error)),
        }
    }
    Ok(best)
}

fn lock(holder: &Holder, mark: usize) -> Result<bool, Failure> {
    match holder.lock_shared(FIRST_READ + mark) {
        Ok(()) => Ok(true),
        Err(LockError::Busy) => Ok(false),
        Err(error) => Err(cannot_lock(&error)),
    }
}

pub fn cannot_lock(error: &LockError) -> Failure {
    let message = format!("cannot lock the shared memory of the log: {error}");
    Failure::new(ffi::IOERR_SHMLOCK, message)
}
