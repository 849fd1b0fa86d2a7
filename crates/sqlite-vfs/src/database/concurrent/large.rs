//! Transactions that are too large for memory.
//!
//! When the buffer has outgrown [`IN_MEMORY`], the transaction takes the real WRITE lock and moves its
//! snapshot to the newest commit (invariant 60). It cannot do so if another transaction has overtaken it by
//! then, or has committed a page that this transaction has written. After the move SQLite's frames go to the
//! real log at once, and the transaction cannot be overtaken. If SQLite rolls the transaction back, or its
//! process dies, the log drops these frames. The log has the same frames as SQLite's WAL, under other
//! numbers, so `ROLLBACK TO` works as with stock SQLite. The commit adds the final images of those pages that
//! must differ from what SQLite has written.
//!
//! Before the commit SQLite writes to the WAL only when its page cache is full, that is, in the middle of a
//! statement. If the write fails, SQLite undoes the statement only after an I/O error
//! ([`Failure::amid_writes`]). So *busy* is no answer here: while another connection has WRITE, the
//! transaction continues in memory. It also continues in memory if it was overtaken and cannot move its
//! snapshot. The conditions for a commit are weaker, so it may still commit. It fails only at
//! [`MOST_IN_MEMORY`].

use std::borrow::Cow;
use std::ffi::c_int;

use duralite_format::sqlite_wal::FRAME_HEADER_BYTES;
use duralite_sqlite_ffi as ffi;

use super::allocation::{Allocation, Settled};
use super::conflict::overtaken;
use super::images::Images;
use super::in_log::InLog;
use super::publish::{WriteWal, done, frame_header, put};
use super::state::{Concurrent, State, Write};
use super::validate::count_change;
use crate::database::Db;
use crate::errors::{During, Failure};
use crate::refusals;

/// When a transaction has written this many bytes, this VFS moves it to the log, if that is possible at that
/// moment.
const IN_MEMORY: usize = 4 << 20;
/// A transaction that has written this many bytes before its commit can no longer stay in memory.
const MOST_IN_MEMORY: usize = 4 * IN_MEMORY;

impl Concurrent {
    /// Returns whether this VFS should make the transaction a large one before SQLite writes another frame.
    pub(super) fn is_outgrown(&self, state: &State) -> bool {
        let written = state.wal.len().saturating_sub(self.committed_bytes(state));
        written >= state.large_from.max(IN_MEMORY)
    }

    /// Makes the transaction a large one, if it has WRITE or can get it.
    ///
    /// # Errors
    /// An I/O error if the transaction has used up its memory, and either could not get WRITE or was
    /// overtaken. SQLite then rolls the transaction back. Errors of the log.
    #[cold]
    pub(super) fn enlarge(&self, db: &Db, write: WriteWal<'_>) -> Result<(), Failure> {
        let how = self.state().write;
        let has_lock = match how {
            Write::Not => false,
            Write::Locked => true,
            // While SQLite commits, keep the transaction in memory. The pages that SQLite writes during the
            // commit come from SQLite's own memory, so this VFS has room for them too.
            Write::Validated if db.host.is_in_transaction(db.sqlite) != Some(true) => false,
            Write::Validated => self.lock_for_large(db).map_err(Failure::amid_writes)?,
        };
        if !has_lock {
            return Ok(());
        }
        self.write_buffered(db, write).map_err(Failure::amid_writes)
    }

    /// Takes the real WRITE lock for a transaction that has already written pages. Returns whether the
    /// transaction now has the lock.
    fn lock_for_large(&self, db: &Db) -> Result<bool, Failure> {
        let mut state = self.state();
        let committed = self.committed_bytes(&state);
        let written = state.wal.len().saturating_sub(committed);
        let must = written >= MOST_IN_MEMORY;
        state.large_from = written + IN_MEMORY;
        drop(state);
        let has_lock =
            if must { self.lock_real_write(db, true)? == ffi::OK } else { self.try_real_write(db)? };
        if !has_lock {
            let why =
                "a transaction needs the write lock, because it has no room in memory, and others have it";
            return if must { Err(self.is_stuck(db, Failure::new(ffi::BUSY, why))) } else { Ok(false) };
        }
        match self.try_to_move(db, &self.buffered_pages()) {
            Ok(None) => Ok(true),
            Ok(Some(conflict)) => {
                self.unlock_real_write();
                if must { Err(self.is_stuck(db, overtaken(db, &conflict))) } else { Ok(false) }
            }
            Err(failure) => {
                self.unlock_real_write();
                Err(failure)
            }
        }
    }

    /// Returns the pages that the open transaction has in memory, in ascending order. They include pages that
    /// SQLite has taken from the free list and has never read.
    fn buffered_pages(&self) -> Vec<u32> {
        let state = self.state();
        let frames = state.wal.get(self.committed_bytes(&state)..).unwrap_or_default();
        let pages = frames.chunks(self.frame_bytes()).map(|frame| frame_header(frame, 0).page_number);
        let mut pages: Vec<u32> = pages.collect();
        pages.sort_unstable();
        pages
    }

    /// Returns the error for SQLite if a transaction can neither stay in memory nor go to the log.
    fn is_stuck(&self, db: &Db, failure: Failure) -> Failure {
        self.state().luck.lost(false);
        let message = format!(
            "{} is rolled back; run it again, best with BEGIN IMMEDIATE: {}",
            db.path.display(),
            failure.message
        );
        Failure::new(ffi::IOERR_BLOCKED, message)
    }

    /// Writes what is in memory to the log.
    fn write_buffered(&self, db: &Db, write: WriteWal<'_>) -> Result<(), Failure> {
        let Some(snapshot) = self.state().snapshot else { return Ok(()) };
        let newest = self.settled_header(db, true)?;
        let base = self.base_for(db, &snapshot, newest)?;
        self.begin_log(&base, write)?;
        let mut state = self.state();
        let committed = self.committed_bytes(&state);
        let mut large = InLog::behind(base);
        // Until all of these frames are in the log, SQLite's reads must not find any of them there.
        state.large = Some(InLog::behind(base));
        let frames = state.wal.split_off(committed);
        state.wal.shrink_to(0);
        drop(state);
        for (at, frame) in frames.chunks(self.frame_bytes()).enumerate() {
            let page = frame_header(frame, 0).page_number;
            self.write_frame(large.number(at), (page, 0), frame.get(FRAME_HEADER_BYTES..), write)?;
            large.pages.push(page);
        }
        self.state().large = Some(large);
        Ok(())
    }

    /// Returns where a frame of SQLite's WAL is in the real log, if it belongs to a large transaction.
    pub(super) fn place_in_log(&self, state: &State, frame: u32) -> Option<u64> {
        let at = frame.checked_sub(state.committed + 1)? as usize;
        let large = state.large.as_ref().filter(|large| at < large.pages.len())?;
        Some(self.offset_of(large.number(at)) as u64)
    }

    /// Reads frames of a large transaction from the log.
    pub(super) fn read_large(&self, db: &Db, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        let read = self.attachment.log().read(&db.base, offset, buf);
        match read {
            Ok(count) if count < buf.len() => Ok(ffi::IOERR_SHORT_READ),
            Ok(_) => Ok(ffi::OK),
            Err(error) => Err(Failure::of(&error, During::Read).amid_writes()),
        }
    }

    /// Writes to the WAL in a large transaction (`xWrite`). `to` is the number of the frame, and the offset
    /// in that frame. Keeps the commit frame in memory until SQLite has written all of it.
    pub(super) fn write_large(
        &self,
        db: &Db,
        to: (u32, usize),
        data: &[u8],
        write: WriteWal<'_>,
    ) -> Result<c_int, Failure> {
        let ((frame, within), mut guard) = (to, self.state());
        let state = &mut *guard;
        let committed = self.committed_bytes(state);
        let Some(large) = &mut state.large else { return Ok(ffi::IOERR_WRITE) };
        let at = (frame - state.committed - 1) as usize;
        let number = large.number(at);
        let has_begun_commit = state.wal.len() > committed && at == large.pages.len();
        if within == 0 && at <= large.pages.len() {
            state.wal.truncate(committed);
            let header = frame_header(data, 0);
            large.begin_frame(at, header.page_number);
            if header.db_pages > 0 {
                large.pages.truncate(at);
                put(&mut state.wal, committed, data);
                return Ok(ffi::OK);
            }
            drop(guard);
            self.write_frame(number, (header.page_number, 0), None, write).map_err(Failure::amid_writes)?;
            return Ok(ffi::OK);
        }
        if has_begun_commit {
            put(&mut state.wal, committed + within, data);
            let is_whole = state.wal.len() == committed + self.frame_bytes();
            drop(guard);
            if !is_whole {
                return Ok(ffi::OK);
            }
            // Do not return SQLITE_BUSY. The application may then try COMMIT again, although the log has
            // dropped the frames of the transaction.
            return self.commit_large(db, frame, write).map_err(Failure::amid_writes);
        }
        if at >= large.pages.len() {
            return Ok(ffi::IOERR_WRITE);
        }
        large.write_page(at, within + data.len() == self.frame_bytes());
        drop(guard);
        let recorded = refusals::last_refusal();
        let written = write(self.offset_of(number) as u64 + within as u64, data);
        written.and_then(|code| done(recorded, code)).map_err(Failure::amid_writes)?;
        Ok(ffi::OK)
    }

    /// Commits a large transaction, whose commit frame SQLite has written.
    fn commit_large(&self, db: &Db, frame: u32, write: WriteWal<'_>) -> Result<c_int, Failure> {
        let mut state = self.state();
        let committed = self.committed_bytes(&state);
        let (Some(snapshot), Some(large)) = (state.snapshot, state.large.take()) else {
            return Ok(ffi::IOERR_WRITE);
        };
        let held = state.wal.split_off(committed);
        // SQLite has incremented the change counter that it read with page 1. With stock SQLite that is
        // right. But here other connections may have incremented the counter since.
        let is_alone = state.cache == Some(snapshot.header);
        drop(state);
        let header = frame_header(&held, 0);
        let page = held.get(FRAME_HEADER_BYTES..).unwrap_or_default();
        let mut images = Images::last_of([(header.page_number, Cow::Borrowed(page))]);
        let written = |number: u32| {
            if number == header.page_number {
                return Ok(Some(page.to_vec()));
            }
            let Some(at) = large.pages.iter().rposition(|page| *page == number) else { return Ok(None) };
            let mut image = vec![0; self.page_bytes];
            let offset = self.offset_of(large.number(at)) + FRAME_HEADER_BYTES;
            match self.read_large(db, &mut image, offset as u64)? {
                ffi::OK => Ok(Some(image)),
                code => Err(Failure::new(code, format!("cannot read page {number} again"))),
            }
        };
        let Allocation { pages, is_larger, lease } =
            self.allocate_as_written(db, &mut images, header.db_pages, written)?;
        if !is_alone && let Some(first) = written(1)? {
            if !images.contains(1) {
                images.insert(1, first);
            }
            if let Some(first) = images.get_mut(1) {
                count_change(first, &self.page_at(db, &snapshot, 1)?);
            }
        }
        let after = self.append(&large.base, Some(&large), &images, pages, write)?;
        let mut state = self.state();
        large.pages.iter().copied().chain(images.pages()).for_each(|page| state.read.insert(page));
        state.has_committed(&snapshot, after, is_larger);
        if let Some(Settled { taken, given, view }) = lease {
            state.lease.committed(self.attachment.leases(), &taken, &given, view);
        }
        state.luck.passed(false);
        state.forget_wal(frame);
        Ok(ffi::OK)
    }
}
