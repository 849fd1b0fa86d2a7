//! The commit of a concurrent connection: from the buffer into the real log and the real wal-index.

use std::ffi::c_int;

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, FrameHeader, WAL_HEADER_BYTES, make_wal_header};
use duralite_format::wal_index::IndexHeader;
use duralite_locks::{FIRST_READ, SLOTS};
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::allocation::{Allocation, Settled};
use super::conflict::{Conflict, overtaken};
use super::snapshot::choose_mark;
use super::state::{Concurrent, Images, Write, random};
use super::validate::count_change;
use crate::database::Db;
use crate::errors::Failure;
use crate::refusals;

/// Writes bytes of the WAL at an offset, as SQLite would, and returns the code for it.
pub type WriteWal<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<c_int, Failure>;

impl Concurrent {
    /// `xWrite` of the WAL. The page of a commit frame commits the transaction: through `write`, to the real
    /// log. When this returns `SQLITE_OK` for it, every connection sees the transaction, and it is as durable
    /// as a sealed transaction is.
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` where the transaction was overtaken: SQLite rolls it back. `BUSY` where WRITE was not to
    /// be had: the transaction stays open, and `COMMIT` can be tried again. Both, like all other errors, leave
    /// the database as it was.
    pub fn write_wal(
        &self,
        db: &Db,
        offset: u64,
        data: &[u8],
        write: WriteWal<'_>,
    ) -> Result<c_int, Failure> {
        let Ok(start) = usize::try_from(offset) else { return Ok(ffi::IOERR_WRITE) };
        let end = start + data.len();
        let mut state = self.state();
        if state.wal.len() < end {
            state.wal.resize(end, 0);
        }
        state.wal[start..end].copy_from_slice(data);
        // SQLite rewrites checksums in headers once the commit frame is written; those concern nobody.
        let Some(frame) = self.completed(start, end) else { return Ok(ffi::OK) };
        let pages = frame_header(&state.wal, self.offset_of(frame)).db_pages;
        if frame <= state.committed || pages == 0 {
            return Ok(ffi::OK);
        }
        let (first, how) = (state.committed + 1, state.write);
        let images = self.images(&state.wal, first, frame);
        drop(state);
        match how {
            Write::Not => return Ok(ffi::IOERR_WRITE),
            Write::Locked => {
                let newest = self.settled_header(db, true)?;
                self.commit(db, newest, images, pages, write)?;
                self.state().luck.won(false);
            }
            Write::Validated => {
                match self.lock_real_write(db, true)? {
                    ffi::OK => {}
                    // To try again later would not help: the checkpoint waits for the snapshot's end.
                    _ if self.keeps_a_checkpoint_waiting()? != Some(false) => {
                        return Err(lost(db, overtaken(db, &Conflict::Checkpoint)));
                    }
                    code => return Ok(code),
                }
                let leases = self.state().lease.is_wanted();
                let done = self.validate_and_commit(db, images, pages, write);
                self.unlock_real_write();
                match &done {
                    Ok(()) => self.state().luck.won(true),
                    // A connection that has just learned that it allocates has a lease next time.
                    Err(failure)
                        if failure.code == ffi::BUSY_SNAPSHOT && self.state().lease.is_wanted() == leases =>
                    {
                        self.state().luck.lost();
                    }
                    Err(_) => {}
                }
                done.map_err(|failure| lost(db, failure))?;
            }
        }
        self.state().committed = frame;
        Ok(ffi::OK)
    }

    /// The frame whose last byte this write brings.
    fn completed(&self, start: usize, end: usize) -> Option<u32> {
        let frame_bytes = FRAME_HEADER_BYTES + self.page_bytes;
        let behind = end.checked_sub(WAL_HEADER_BYTES)?;
        let is_end = behind > 0 && behind.is_multiple_of(frame_bytes) && start < end;
        is_end.then(|| u32::try_from(behind / frame_bytes).ok()).flatten()
    }

    /// The last image of each page in these frames.
    fn images(&self, wal: &[u8], first: u32, last: u32) -> Images {
        let frame = |number| {
            let header = self.offset_of(number);
            let page = wal.get(header + FRAME_HEADER_BYTES..header + FRAME_HEADER_BYTES + self.page_bytes)?;
            Some((frame_header(wal, header).page_number, page.to_vec()))
        };
        (first..=last).filter_map(frame).collect()
    }

    fn validate_and_commit(
        &self,
        db: &Db,
        images: Images,
        pages: u32,
        write: WriteWal<'_>,
    ) -> Result<(), Failure> {
        let newest = self.settled_header(db, true)?;
        let Some(snapshot) = self.state().snapshot else { return Ok(()) };
        self.note_allocation(db, &snapshot, &images)?;
        let is_merged = newest != snapshot.header;
        #[cfg(feature = "controls")]
        if super::controls::Control::Unvalidated.is_on() {
            let written: Vec<u32> = images.keys().copied().collect();
            self.commit(db, newest, images, pages, write)?;
            return self.validate(db, &snapshot, &newest, Some(&written));
        }
        if is_merged {
            let written: Vec<u32> = images.keys().copied().collect();
            self.validate(db, &snapshot, &newest, Some(&written))?;
            self.state().cache = None;
        }
        self.commit(db, newest, images, pages, write)?;
        if is_merged {
            self.attachment.count(Counter::Merged);
        }
        Ok(())
    }

    /// Commits on top of `newest`, the newest commit. The caller holds WRITE, and has found that nothing is in the
    /// way.
    fn commit(
        &self,
        db: &Db,
        newest: IndexHeader,
        mut images: Images,
        pages: u32,
        write: WriteWal<'_>,
    ) -> Result<(), Failure> {
        let index = self.index();
        let Some(snapshot) = self.state().snapshot else {
            return Err(Failure::new(ffi::IOERR_WRITE, "a commit without a snapshot"));
        };
        let Allocation { pages, is_larger, lease } =
            self.allocate(db, &snapshot, &snapshot.moved_to(&newest), &mut images, pages)?;
        // Stock SQLite, too, counts from what it has read. Here others may have counted since.
        let is_alone = newest == snapshot.header && self.state().cache == Some(newest);
        if let Some(first) = images.get_mut(&1).filter(|_| !is_alone) {
            count_change(first, &self.page_at(db, &snapshot.moved_to(&newest), 1)?);
        }
        let mut base = if snapshot.is_in_file() { self.start_over(db, newest)? } else { newest };
        if base.frames() == 0 && base.salt() == [0; 2] {
            // The log has never had a commit.
            base = base.started_over(random());
        }
        let before = base.frames();
        let last = before + u32::try_from(images.len()).unwrap_or(u32::MAX);
        index.make_room(last)?;
        if before == 0 {
            // SQLite has a mark for the log, too, before it writes to it: users who may only read need one.
            choose_mark(index, &self.holder, 0)?;
            self.write_header(&base, write)?;
        }
        let mut frame = before;
        for (page, image) in &images {
            frame += 1;
            let size = if frame == last { pages } else { 0 };
            let mut header = [0; FRAME_HEADER_BYTES];
            header[..4].copy_from_slice(&page.to_be_bytes());
            header[4..8].copy_from_slice(&size.to_be_bytes());
            let offset = self.offset_of(frame) as u64;
            written(|| write(offset, &header))?;
            written(|| write(offset + FRAME_HEADER_BYTES as u64, image))?;
        }
        // The transaction is sealed. Nothing from here on fails: all regions are mapped.
        for (frame, page) in (before + 1..).zip(images.keys()) {
            index.append(frame, *page, before)?;
        }
        let after = base.after_commit(u32::try_from(self.page_bytes).unwrap_or(0), last, pages);
        index.publish(&after)?;
        let mut state = self.state();
        images.keys().for_each(|page| state.read.insert(*page));
        if newest == snapshot.header {
            // Nobody has committed in between, so the snapshot with this commit is the newest state.
            state.snapshot = Some(snapshot.moved_to(&after));
            let is_cached = state.cache == Some(snapshot.header) && !is_larger;
            state.cache = is_cached.then_some(after);
        }
        if let Some(Settled { taken, given, view }) = lease {
            state.lease.committed(self.attachment.leases(), &taken, &given, view);
        }
        state.after = Some(after);
        Ok(())
    }

    /// Starts the log over if all of it is in the database and nobody reads it, as SQLite does before it writes.
    /// Returns the header after that.
    fn start_over(&self, db: &Db, newest: IndexHeader) -> Result<IndexHeader, Failure> {
        let index = self.index();
        if newest.frames() == 0 || index.backfilled()? != newest.frames() {
            return Ok(newest);
        }
        let (first, count) = (FIRST_READ + 1, SLOTS - FIRST_READ - 1);
        if self.holder.lock_exclusive(first, count).is_err() {
            return Ok(newest);
        }
        let header = newest.started_over(random());
        let started = match db.before_start_over(&self.attachment) {
            ffi::OK => index.start_over(&header).map(|()| header),
            _ => Ok(newest),
        };
        self.holder.unlock_exclusive(first, count);
        started
    }

    fn write_header(&self, base: &IndexHeader, write: WriteWal<'_>) -> Result<(), Failure> {
        let [sequence, random] = base.salt();
        let salt = [u32::from_be(sequence), u32::from_be(random)];
        let page_bytes = u32::try_from(self.page_bytes).unwrap_or(0);
        written(|| write(0, &make_wal_header(page_bytes, salt[0], salt)))
    }
}

/// What SQLite is told of a transaction that was overtaken. Of any failure but `SQLITE_BUSY` it says that the
/// transaction is over, to `COMMIT`. To `RELEASE` it says that too, and keeps the savepoint: a second `RELEASE`
/// would succeed, with nothing to commit. So that statement finds the database busy, until there is a
/// `ROLLBACK`.
#[cold]
fn lost(db: &Db, failure: Failure) -> Failure {
    if failure.code != ffi::BUSY_SNAPSHOT || !db.host.is_releasing(db.sqlite) {
        return failure;
    }
    Failure::new(ffi::BUSY, format!("RELEASE cannot commit; use ROLLBACK: {}", failure.message))
}

/// Calls `write`. Its failure carries the reason that was recorded where the code was made, if one was.
fn written(write: impl FnOnce() -> Result<c_int, Failure>) -> Result<(), Failure> {
    let before = refusals::last_refusal();
    match write()? {
        ffi::OK => Ok(()),
        code => {
            let reason = refusals::last_error().filter(|_| refusals::last_refusal() != before);
            let reason =
                reason.unwrap_or_else(|| format!("the log does not take the transaction (code {code})"));
            Err(Failure::new(code, reason))
        }
    }
}

/// The header of the frame that begins here. SQLite has written the whole frame.
fn frame_header(wal: &[u8], at: usize) -> FrameHeader {
    let bytes = wal.get(at..at + FRAME_HEADER_BYTES).and_then(|bytes| bytes.try_into().ok());
    FrameHeader::parse(bytes.unwrap_or(&[0; FRAME_HEADER_BYTES]))
}
