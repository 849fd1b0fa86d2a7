//! A snapshot: the state of the database that a connection reads, and the read mark by which the connection
//! holds that state.

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
    /// The read mark whose lock the connection holds shared.
    mark: usize,
    /// The number of the first frame that may be newer than the database file.
    first: u32,
}

/// How many times a connection tries to take a snapshot before it gives up, as in SQLite.
const TRIES: u32 = 100;
/// The number of attempts before the connection begins to sleep between attempts.
const AT_ONCE: u32 = 5;

impl Snapshot {
    /// Begins to read at the newest commit, as SQLite's `walTryBeginRead` does. The connection must not hold
    /// a snapshot yet. `header` reads the newest header.
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

    /// Makes one attempt to take the snapshot. Returns `None` if the connection has to begin again.
    fn of(index: SharedIndex<'_>, holder: &Holder, header: &IndexHeader) -> Result<Option<Self>, Failure> {
        let frames = header.frames();
        if index.backfilled()? == frames && lock(holder, 0)? {
            // Everything is in the database file, and no connection writes to that file while this mark is
            // held.
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
        let first = first_not_home(index, frames)?;
        if index.is_still(header)? && index.mark(mark)? == frame {
            return Ok(Some(Self { header: *header, mark, first }));
        }
        holder.unlock_shared(FIRST_READ + mark);
        Ok(None)
    }

    /// Takes this snapshot again, for another transaction. Returns `None` if it is no longer the newest
    /// commit, or if the connection must look for the newest commit first.
    pub fn again(&self, index: SharedIndex<'_>, holder: &Holder) -> Result<Option<Self>, Failure> {
        let frames = self.header.frames();
        let is_home = index.backfilled()? == frames;
        let is_chosen = || index.mark(self.mark).map(|mark| is_home || mark == frames);
        if is_home != self.is_in_file() || !is_chosen()? {
            // This snapshot now needs another mark.
            return if index.shows(&self.header)? { Self::of(index, holder, &self.header) } else { Ok(None) };
        }
        if !lock(holder, self.mark)? {
            return Ok(None);
        }
        let first = if is_home { frames.saturating_add(1) } else { first_not_home(index, frames)? };
        if index.is_still(&self.header)? && is_chosen()? {
            return Ok(Some(Self { first, ..*self }));
        }
        holder.unlock_shared(FIRST_READ + self.mark);
        Ok(None)
    }

    /// Returns whether the database may have a page with this number. The number may come from a damaged
    /// page. A log without commits does not know how large the database is, so any number but 0 passes.
    pub fn may_have(&self, page: u32) -> bool {
        let pages = self.header.db_pages();
        page != 0 && (pages == 0 || page <= pages)
    }

    /// Returns the frame that holds this page, or `None` if the snapshot finds the page in the database file.
    pub fn find(&self, index: SharedIndex<'_>, page: u32) -> Result<Option<u32>, Failure> {
        index.find(page, self.first, self.header.frames())
    }

    /// Gives the mark back.
    pub fn release(self, holder: &Holder) {
        holder.unlock_shared(FIRST_READ + self.mark);
    }

    /// Returns whether the connection reads only the database file, so that the log may start over during
    /// this snapshot.
    pub fn is_in_file(&self) -> bool {
        self.mark == 0
    }

    /// Returns whether a checkpoint that has WRITE waits for the end of this snapshot. It waits if the
    /// snapshot's mark keeps it from writing newer frames to the database file, or keeps the log from
    /// starting over. Returns `None` if this is not known. In that case the mark is at the newest frame, but
    /// the checkpoint may have read the mark earlier, when it was at an older frame.
    pub fn is_in_the_way(&self, index: SharedIndex<'_>) -> Result<Option<bool>, Failure> {
        let Some(newest) = index.header()? else { return Ok(Some(false)) };
        let is_home = index.backfilled()? == newest.frames();
        if self.mark == 0 {
            return Ok(Some(!is_home));
        }
        Ok((is_home || index.mark(self.mark)? < newest.frames()).then_some(true))
    }

    /// Returns the frames that were committed after this snapshot, up to `newest`. Returns `None` if these
    /// frames are no longer known.
    ///
    /// While the connection holds any mark but the first, the log does not start over. While it holds the
    /// first mark, the log can start over once, but not twice: a generation ends only after checkpoints have
    /// written its frames to the database file, and the first mark prevents that.
    pub fn frames_until(&self, newest: &IndexHeader) -> Option<std::ops::RangeInclusive<u32>> {
        if newest.salt() == self.header.salt() {
            return Some(self.header.frames().saturating_add(1)..=newest.frames());
        }
        self.is_in_file().then(|| 1..=newest.frames())
    }

    /// Returns this snapshot, moved to the newer commit `newest`. The caller holds WRITE. The connection
    /// keeps the mark of the old snapshot. So checkpoints write no frames that are newer than the old
    /// snapshot, and the log still does not start over.
    pub fn moved_to(&self, newest: &IndexHeader) -> Self {
        let first = if newest.salt() == self.header.salt() { self.first } else { 1 };
        Self { header: *newest, first, ..*self }
    }
}

/// Returns the number of the first frame that may not be in the database file yet. The log has `frames`
/// frames. The wal-index may say that more frames than that are in the database file, but only if a process
/// has died while it started the log over.
fn first_not_home(index: SharedIndex<'_>, frames: u32) -> Result<u32, Failure> {
    Ok(index.backfilled()?.min(frames).saturating_add(1))
}

/// Chooses the mark for a log with this many frames, as SQLite does. If no mark is at the last frame, sets a
/// free mark to that frame. If no mark is free, takes the highest mark that is not beyond the last frame.
/// Returns the mark and the frame that it is at.
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
