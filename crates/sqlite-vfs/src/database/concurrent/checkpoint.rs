//! Checkpoints of a concurrent connection. SQLite asks for a checkpoint of its own WAL, and this VFS
//! checkpoints the real log instead.
//!
//! After a commit SQLite calls a hook, which decides whether to checkpoint. `PRAGMA wal_autocheckpoint`,
//! `sqlite3_wal_autocheckpoint` or the application sets the hook. SQLite tells the hook how many frames
//! SQLite's WAL has. That WAL begins with as many frames as the log has, and starts over when the log does.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_format::wal_index::{IndexHeader, MARK_NOT_USED, MARKS};
use duralite_locks::{CHECKPOINT, FIRST_READ, LockError, SLOTS, WRITE};
use duralite_sqlite_ffi as ffi;

use super::snapshot::cannot_lock;
use super::state::Concurrent;
use crate::database::{Db, restart, waiting};
use crate::errors::{During, Failure};
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{OwnConnection, uri_of};

/// The kinds of checkpoints that SQLite has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Checkpoint {
    Passive,
    Full,
    Restart,
    Truncate,
}

/// The time for which one attempt at a complete checkpoint waits for other connections.
const CHECKPOINT_TRY: Duration = Duration::from_millis(50);

impl Concurrent {
    /// Checkpoints the real log. Returns the code for SQLite, which is `BUSY` if the checkpoint could not do
    /// its work.
    pub(super) fn checkpoint(&self, db: &Db, how: Checkpoint) -> Result<c_int, Failure> {
        if db.reserves_bytes()? {
            // A VFS above this one has to see each checkpoint.
            return Ok(ffi::BUSY);
        }
        let how: &CStr = match how {
            Checkpoint::Passive => {
                self.attachment.bound().checkpoints();
                if restart::is_in_the_way(&self.attachment) {
                    return Ok(ffi::BUSY);
                }
                return Ok(if self.write_home(db)?.is_some() { ffi::OK } else { ffi::BUSY });
            }
            // The path leads to another file or to none, so this VFS cannot open a connection by the path.
            _ if db.base.has_moved() => return self.checkpoint_moved(db, how),
            Checkpoint::Full => c"PRAGMA wal_checkpoint(FULL)",
            Checkpoint::Restart => c"PRAGMA wal_checkpoint(RESTART)",
            Checkpoint::Truncate => c"PRAGMA wal_checkpoint(TRUNCATE)",
        };
        // SQLite calls this connection's busy handler between two attempts. If the handler agrees, the next
        // attempt polls for a while. The checkpoint holds WRITE during that time, so a reader that begins
        // meanwhile reads the newest commit, and does not prevent the checkpoint.
        let polling = if self.tries_again.load(Ordering::Relaxed) { CHECKPOINT_TRY } else { Duration::ZERO };
        let uri = uri_of(&db.path, &db.settings().parameters())?;
        let wait = waiting::in_queue(polling, Duration::ZERO);
        let own = OwnConnection::open(&db.sqlite.api, &uri, VFS_NAME, wait, "cannot checkpoint")?;
        let is_done = own.run(how)? == Some(0);
        self.tries_again.store(!is_done, Ordering::Relaxed);
        Ok(if is_done { ffi::OK } else { ffi::BUSY })
    }

    /// Makes a complete checkpoint of a database whose path leads to no file or to another file.
    fn checkpoint_moved(&self, db: &Db, how: Checkpoint) -> Result<c_int, Failure> {
        match self.holder.lock_exclusive(WRITE, 1) {
            Ok(()) => {}
            Err(LockError::Busy) => return Ok(ffi::BUSY),
            Err(error) => return Err(cannot_lock(&error)),
        }
        let is_done = self.write_home(db).map(|is_whole| {
            let (first, count) = (FIRST_READ + 1, SLOTS - FIRST_READ - 1);
            let has_readers = || self.holder.lock_exclusive(first, count).is_err();
            let is_done = is_whole == Some(true) && (how == Checkpoint::Full || !has_readers());
            self.holder.unlock_exclusive(first, count);
            is_done
        });
        self.holder.unlock_exclusive(WRITE, 1);
        is_done.map(|is_done| if is_done { ffi::OK } else { ffi::BUSY })
    }

    /// Checkpoints the real log when SQLite has begun to checkpoint its own WAL.
    pub(super) fn checkpoint_for_sqlite(&self, db: &Db, how: Checkpoint) -> Result<c_int, Failure> {
        let code = self.checkpoint(db, how)?;
        if code == ffi::OK {
            self.show_checkpoint(db)?;
        }
        Ok(code)
    }

    /// Shows SQLite how many frames the log has, and how many of them the database file has now. SQLite
    /// returns these numbers to the caller that asked for the checkpoint.
    fn show_checkpoint(&self, db: &Db) -> Result<(), Failure> {
        let header = self.settled_header(db, false)?;
        let backfilled = self.index().backfilled()?.min(header.frames());
        let mut state = self.state();
        if state.snapshot.is_some() {
            state.all_is_home();
            return Ok(());
        }
        if state.frames() != header.frames() {
            state.show(&header, header.frames(), false);
            state.cache = None;
        }
        state.says_home(backfilled, backfilled);
        self.is_partial.store(backfilled < header.frames(), Ordering::Relaxed);
        Ok(())
    }

    /// Checkpoints after a commit, because SQLite's hook asks for it. If many connections commit, each of
    /// them would attempt a checkpoint after each commit as long as a reader keeps the log from starting
    /// over. So this function leaves out most of these attempts.
    pub(super) fn checkpoint_after_commit(&self, db: &Db) -> Result<c_int, Failure> {
        let mut state = self.state();
        let frames = state.frames();
        let from = state.checkpoints_from.map_or(frames, |from| from.min(frames));
        state.checkpoints_from = Some(from);
        drop(state);
        // A background thread checkpoints by itself.
        let is_due = self.attachment.maintenance().is_none() && self.attachment.bound().is_due(from);
        let is_whole = is_due && self.checkpoint(db, Checkpoint::Passive)? == ffi::OK && self.is_home(db)?;
        if is_whole {
            self.state().all_is_home();
        }
        self.is_partial.store(!is_whole, Ordering::Relaxed);
        Ok(ffi::OK)
    }

    /// Returns whether all frames of the log are in the database.
    fn is_home(&self, db: &Db) -> Result<bool, Failure> {
        Ok(self.index().backfilled()? == self.settled_header(db, false)?.frames())
    }

    /// Checkpoints the log, as SQLite's `walCheckpoint` does: writes the log's frames to the database, but no
    /// frames that are newer than a reader's snapshot. Returns whether all frames of the log are in the
    /// database afterwards, or `None` if another connection checkpoints.
    fn write_home(&self, db: &Db) -> Result<Option<bool>, Failure> {
        // If the wal-index is broken, recover it before this connection takes CHECKPOINT, because recovery
        // takes that lock itself.
        self.settled_header(db, false)?;
        match self.holder.lock_exclusive(CHECKPOINT, 1) {
            Ok(()) => {}
            Err(LockError::Busy) => return Ok(None),
            Err(error) => return Err(cannot_lock(&error)),
        }
        let header = self.index().header();
        let is_whole = header.and_then(|header| {
            // If a connection is just writing the header, this checkpoint writes nothing, and returns `None`
            // as if another connection were checkpointing.
            header.map(|header| self.write_what_is_safe(db, &header)).transpose()
        });
        self.holder.unlock_exclusive(CHECKPOINT, 1);
        is_whole
    }

    /// Writes the frames up to the last one of `header` to the database, but no frames that are newer than a
    /// reader's snapshot. Returns whether all frames up to that one are in the database afterwards.
    fn write_what_is_safe(&self, db: &Db, header: &IndexHeader) -> Result<bool, Failure> {
        let index = self.index();
        let mut safe = header.frames();
        for mark in 1..MARKS {
            let frame = index.mark(mark)?;
            if frame >= safe {
                continue;
            }
            match self.holder.lock_exclusive(FIRST_READ + mark, 1) {
                Ok(()) => {
                    let set = index.set_mark(mark, if mark == 1 { safe } else { MARK_NOT_USED });
                    self.holder.unlock_exclusive(FIRST_READ + mark, 1);
                    set?;
                }
                Err(LockError::Busy) => safe = frame,
                Err(error) => return Err(cannot_lock(&error)),
            }
        }
        if index.backfilled()? < safe {
            match self.holder.lock_exclusive(FIRST_READ, 1) {
                Ok(()) => {}
                Err(LockError::Busy) => return Ok(false),
                Err(error) => return Err(cannot_lock(&error)),
            }
            let written = self.write_frames(db, header, safe);
            self.holder.unlock_exclusive(FIRST_READ, 1);
            written?;
        }
        db.checkpointed();
        Ok(safe == header.frames())
    }

    /// Writes the frames up to `last` to the database, and syncs the database. The caller has CHECKPOINT and
    /// the first mark.
    fn write_frames(&self, db: &Db, header: &IndexHeader, last: u32) -> Result<(), Failure> {
        let index = self.index();
        let frames = index.backfilled()? + 1..=last;
        index.set_attempted(last)?;
        let pages = self.attachment.log().frames_in(frames.clone());
        let pages = pages.map_err(|error| Failure::of(&error, During::Read))?;
        let pages: BTreeMap<u32, u32> = pages.iter().map(|(page, _)| *page).zip(frames).collect();
        let mut image = vec![0; self.page_bytes];
        let succeeded = |code| match code {
            ffi::OK => Ok(()),
            code => Err(Failure::new(code, format!("cannot checkpoint {}", db.path.display()))),
        };
        db.hint(u64::from(header.db_pages()) * self.page_bytes as u64);
        for (page, frame) in pages.range(1..=header.db_pages()) {
            let read = self.attachment.log().read_frame(&db.base, *frame, &mut image);
            read.map_err(|error| Failure::of(&error, During::Read))?;
            succeeded(db.write(u64::from(page - 1) * self.page_bytes as u64, &image)?)?;
        }
        let bytes = u64::from(header.db_pages()) * self.page_bytes as u64;
        if last == header.frames() && db.size()? > bytes {
            succeeded(db.truncate(i64::try_from(bytes).unwrap_or(i64::MAX))?)?;
        }
        succeeded(db.sync(ffi::SYNC_NORMAL))?;
        index.set_backfilled(last)
    }
}
