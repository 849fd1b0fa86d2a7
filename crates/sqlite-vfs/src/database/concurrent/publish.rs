//! Commits the transaction of a concurrent connection, from the connection's buffer to the real log and the
//! real wal-index.

use std::borrow::Cow;
use std::ffi::c_int;

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, FrameHeader, make_wal_header};
use duralite_format::wal_index::IndexHeader;
use duralite_locks::{FIRST_READ, SLOTS};
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::allocation::{Allocation, Settled};
use super::conflict::{Conflict, overtaken};
use super::images::Images;
use super::in_log::InLog;
use super::interior::is_interior;
use super::snapshot::{Snapshot, choose_mark};
use super::state::{ALONE, Concurrent, Write, random};
use super::validate::count_change;
use crate::database::Db;
use crate::errors::{During, Failure};
use crate::refusals;

/// A transaction with WRITE searches the frames of other connections for pages that it writes too. If there
/// are more frames than this, it does not search, and assumes that others have written none of these pages.
const MOST_LOOKED_AT: u32 = 512;

/// A function that writes bytes of the WAL at an offset, as SQLite would, and returns the code for SQLite.
pub type WriteWal<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<c_int, Failure>;

/// A transaction that SQLite commits.
struct Transaction<'a> {
    snapshot: Snapshot,
    images: Images<'a>,
    /// The size that SQLite gives the database, in pages.
    pages: u32,
}

impl Concurrent {
    /// Writes to the WAL (`xWrite`). When SQLite writes the page of a commit frame, this function commits the
    /// transaction through `write` to the real log. When it returns `SQLITE_OK` for that page, every
    /// connection sees the transaction, and the transaction is as durable as a sealed transaction is.
    ///
    /// # Errors
    /// `BUSY_SNAPSHOT` if the transaction was overtaken. SQLite then rolls it back. `BUSY` if WRITE was not
    /// free. The transaction then stays open, and the application can try `COMMIT` again. All errors leave
    /// the database as it was.
    pub fn write_wal(
        &self,
        db: &Db,
        offset: u64,
        data: &[u8],
        write: WriteWal<'_>,
    ) -> Result<c_int, Failure> {
        let mut state = self.state();
        let Some((frame, within)) = self.frame_at(offset) else {
            // SQLite starts its WAL over. No reader looks at the header of that WAL.
            state.forget_wal(0);
            return Ok(ffi::OK);
        };
        // SQLite rewrites checksums in headers once the commit frame is written. No reader looks at these
        // checksums.
        let Some(behind) = frame.checked_sub(state.base + 1) else { return Ok(ffi::OK) };
        if frame > state.committed {
            state.highest = state.highest.max(frame);
            let begins = within == 0 && state.large.is_none() && self.is_outgrown(&state);
            drop(state);
            if begins {
                self.enlarge(db, write)?;
            }
            state = self.state();
            if state.large.is_some() {
                drop(state);
                return self.write_large(db, (frame, within), data, write);
            }
        }
        let header = behind as usize * self.frame_bytes();
        let completes = !data.is_empty() && within + data.len() == self.frame_bytes();
        let commits = completes && frame > state.committed && frame_header(&state.wal, header).db_pages > 0;
        if !commits {
            put(&mut state.wal, header + within, data);
            return Ok(ffi::OK);
        }
        if within > FRAME_HEADER_BYTES {
            put(&mut state.wal, header + within, data);
        }
        // The buffer does not get the page of the commit frame. This VFS writes that page to the log from
        // SQLite's own memory.
        let page = if within == FRAME_HEADER_BYTES { Some(data) } else { None };
        let end = header + if page.is_some() { FRAME_HEADER_BYTES } else { self.frame_bytes() };
        let kept = self.committed_bytes(&state);
        let (how, since) = (state.write, state.own.filter(|_| state.luck.is_out()));
        let Some(snapshot) = state.snapshot else { return Ok(ffi::IOERR_WRITE) };
        let wal = std::mem::take(&mut state.wal);
        drop(state);
        let ended = match (how, wal.get(kept..end)) {
            (Write::Locked, Some(frames)) => {
                let transaction = self.transaction(snapshot, frames, page);
                self.commit_locked(db, transaction, since, write).map(|()| ffi::OK)
            }
            (Write::Validated, Some(frames)) => {
                let transaction = self.transaction(snapshot, frames, page);
                self.commit_validated(db, transaction, write)
            }
            _ => Ok(ffi::IOERR_WRITE),
        };
        let mut state = self.state();
        state.wal = wal;
        let code = ended?;
        if code == ffi::OK {
            state.committed = frame;
            if state.after == state.snapshot.map(|snapshot| snapshot.header) {
                // The snapshot now contains this commit, so it has everything that SQLite could read from the
                // WAL.
                state.forget_wal(frame);
            } else if let Some(page) = page {
                put(&mut state.wal, header + FRAME_HEADER_BYTES, page);
            }
        }
        Ok(code)
    }

    /// Commits a transaction that has WRITE. Because of WRITE, no other transaction has committed since the
    /// snapshot. Tells [`Luck`](super::luck) whether this transaction writes pages that others have committed
    /// after the state `since`.
    fn commit_locked(
        &self,
        db: &Db,
        transaction: Transaction<'_>,
        since: Option<IndexHeader>,
        write: WriteWal<'_>,
    ) -> Result<(), Failure> {
        // Do not use the snapshot's header, because an earlier attempt at this COMMIT may have started the
        // log over.
        let newest = self.settled_header(db, true)?;
        let since = since.filter(|_| newest.salt() == transaction.snapshot.header.salt());
        let has_met = since.map_or(Ok(false), |since| self.has_met_others(&since, &transaction))?;
        self.commit(db, transaction, newest, false, write)?;
        self.state().luck.passed(has_met);
        Ok(())
    }

    /// Validates a transaction and commits it. Returns the code for SQLite.
    fn commit_validated(
        &self,
        db: &Db,
        transaction: Transaction<'_>,
        write: WriteWal<'_>,
    ) -> Result<c_int, Failure> {
        if self.holder.table().is_write_taken() {
            let early = self.validate_early(db, &transaction);
            early.map_err(|failure| lost(db, failure))?;
        }
        match self.lock_real_write(db, true)? {
            ffi::OK => {}
            // Trying again later would not help, because the checkpoint waits for the end of this snapshot.
            _ if self.keeps_a_checkpoint_waiting()? != Some(false) => {
                return Err(lost(db, overtaken(db, &Conflict::Checkpoint)));
            }
            code => return Ok(code),
        }
        let done = self.validate_and_commit(db, transaction, write);
        self.unlock_real_write();
        done.map_err(|failure| lost(db, failure)).map(|()| ffi::OK)
    }

    /// Returns the transaction that these frames make. It has the last image of each page, and the size that
    /// the last frame gives the database. `last` is the page of the last frame, if the buffer lacks that
    /// page.
    fn transaction<'a>(
        &self,
        snapshot: Snapshot,
        frames: &'a [u8],
        last: Option<&'a [u8]>,
    ) -> Transaction<'a> {
        let mut pages = 0;
        let frame = |frame: &'a [u8]| {
            let header = frame_header(frame, 0);
            pages = header.db_pages;
            let page =
                frame.get(FRAME_HEADER_BYTES..).filter(|page| page.len() == self.page_bytes).or(last)?;
            Some((header.page_number, Cow::Borrowed(page)))
        };
        let images = Images::last_of(frames.chunks(self.frame_bytes()).filter_map(frame));
        Transaction { snapshot, images, pages }
    }

    /// Validates a transaction before it waits for WRITE, because that wait would be in vain if the
    /// transaction is overtaken already.
    fn validate_early(&self, db: &Db, transaction: &Transaction<'_>) -> Result<(), Failure> {
        let Transaction { snapshot, images, .. } = transaction;
        // If the connection reads only the database file, its read mark does not keep the log from starting
        // over. The log could do so while this function reads it, so check nothing here.
        if snapshot.is_in_file() {
            return Ok(());
        }
        match self.index().header()? {
            Some(newest) if newest != snapshot.header => {
                self.validate(db, snapshot, &newest, images).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether this transaction writes pages that others have committed after the state `since` and
    /// before the transaction's snapshot.
    fn has_met_others(&self, since: &IndexHeader, transaction: &Transaction<'_>) -> Result<bool, Failure> {
        let Transaction { snapshot, images, .. } = transaction;
        let (first, last) = (since.frames().saturating_add(1), snapshot.header.frames());
        if since.salt() != snapshot.header.salt() || last.saturating_sub(first) >= MOST_LOOKED_AT {
            return Ok(false);
        }
        let others = self.attachment.log().frames_in(first..=last);
        let others = others.map_err(|error| Failure::of(&error, During::Read))?;
        // Changes of interior pages can be merged, so they do not count.
        let counts = |page| page != 1 && images.get(page).is_some_and(|image| !is_interior(image));
        Ok(others.iter().any(|(page, _)| counts(*page)))
    }

    fn validate_and_commit(
        &self,
        db: &Db,
        mut transaction: Transaction<'_>,
        write: WriteWal<'_>,
    ) -> Result<(), Failure> {
        let newest = self.settled_header(db, true)?;
        let Transaction { snapshot, images, .. } = &mut transaction;
        let is_merged = newest != snapshot.header;
        #[cfg(feature = "controls")]
        if super::controls::Control::Unvalidated.is_on() {
            let verdict = self.validate(db, snapshot, &newest, images).map(drop);
            self.commit(db, transaction, newest, true, write)?;
            return verdict;
        }
        if is_merged {
            self.state().others = ALONE;
        }
        self.note_allocation(db, snapshot, images)?;
        let mut is_first_written = false;
        if is_merged {
            let valid = self.validate(db, snapshot, &newest, images)?;
            is_first_written = valid.is_first_written;
            if !valid.merged.is_empty() {
                images.extend(valid.merged);
            }
            // SQLite's cache lacks what others have committed, and what was merged.
            self.state().cache = None;
        }
        let done = self.commit(db, transaction, newest, is_first_written, write);
        done.inspect_err(|failure| {
            if failure.code == ffi::BUSY_SNAPSHOT {
                self.state().luck.lost(true);
            }
        })?;
        self.state().luck.won();
        if is_merged {
            self.attachment.count(Counter::Merged);
        }
        Ok(())
    }

    /// Commits on top of `newest`, the newest commit. The caller holds WRITE, and has found no conflict.
    /// `is_first_written` says whether others have written page 1 since the snapshot.
    fn commit(
        &self,
        db: &Db,
        transaction: Transaction<'_>,
        newest: IndexHeader,
        is_first_written: bool,
        write: WriteWal<'_>,
    ) -> Result<(), Failure> {
        let Transaction { snapshot, mut images, pages: known_pages } = transaction;
        if images.contains(0) {
            return Err(Failure::new(ffi::IOERR_WRITE, "SQLite commits a frame that it has not written"));
        }
        let now = snapshot.moved_to(&newest);
        let Allocation { pages, is_larger, lease } =
            if is_first_written || self.may_allocate(&now, &images, known_pages) {
                self.allocate(db, &snapshot, &now, &mut images, known_pages)?
            } else {
                Allocation { pages: known_pages, is_larger: false, lease: None }
            };
        // SQLite has incremented the change counter that it read with page 1. Others may have incremented the
        // counter since.
        let is_alone = || newest == snapshot.header && self.state().cache == Some(newest);
        if images.contains(1)
            && !is_alone()
            && let Some(first) = images.get_mut(1)
        {
            count_change(first, &self.page_at(db, &now, 1)?);
        }
        let base = self.base_for(db, &snapshot, newest)?;
        let after = self.append(&base, None, &images, pages, write)?;
        let mut state = self.state();
        // Add only SQLite's own images to the read set (invariant 58). SQLite's cache does not have the pages
        // that this VFS has made: trunks of the real free list, and new pages at the end of the database.
        images.written().for_each(|page| state.read.insert(page));
        if newest == snapshot.header {
            state.has_committed(&snapshot, after, is_larger);
            state.has_grown |= pages != known_pages;
        } else {
            (state.own, state.after) = (Some(after), Some(after));
        }
        if let Some(Settled { taken, given, view }) = lease {
            state.lease.committed(self.attachment.leases(), &taken, &given, view);
        }
        Ok(())
    }

    /// Starts the log over if that is possible. Returns the state of the log to which the transaction adds
    /// its frames. The caller has WRITE, and `newest` is the newest commit.
    pub(super) fn base_for(
        &self,
        db: &Db,
        snapshot: &Snapshot,
        newest: IndexHeader,
    ) -> Result<IndexHeader, Failure> {
        let base = if snapshot.is_in_file() { self.start_over(db, newest)? } else { newest };
        let is_new = base.frames() == 0 && base.salt() == [0; 2];
        // A new log has never had a commit, so it has no salt yet.
        Ok(if is_new { base.started_over(random()) } else { base })
    }

    /// Begins the log if it has no frames.
    pub(super) fn begin_log(&self, base: &IndexHeader, write: WriteWal<'_>) -> Result<(), Failure> {
        if base.frames() > 0 {
            return Ok(());
        }
        // Choose a mark for the log first, as SQLite does before it writes to its WAL, because users who may
        // only read need a mark.
        choose_mark(self.index(), &self.holder, 0)?;
        self.write_header(base, write)
    }

    /// Writes the last frames of a transaction, which seals the transaction, and publishes it. If the
    /// transaction is large, its first frames are in the log already (`large`). Returns the state of the log
    /// with this transaction.
    pub(super) fn append(
        &self,
        base: &IndexHeader,
        large: Option<&InLog>,
        images: &Images<'_>,
        pages: u32,
        write: WriteWal<'_>,
    ) -> Result<IndexHeader, Failure> {
        let index = self.index();
        let before = base.frames();
        let in_log = large.map_or(&[][..], |large| &large.pages);
        let last = before + u32::try_from(in_log.len() + images.len()).unwrap_or(u32::MAX);
        index.make_room(before, last)?;
        index.forget_left(before, last)?;
        if large.is_none() {
            self.begin_log(base, write)?;
        }
        let first = last - u32::try_from(images.len()).unwrap_or(0);
        for (frame, (page, image)) in (first + 1..).zip(images.iter()) {
            self.write_frame(frame, (page, if frame == last { pages } else { 0 }), Some(image), write)?;
        }
        if large.is_some_and(|large| large.overwritten.is_some())
            && let Some(page) = images.pages().last()
        {
            // Write the header of the last frame a second time. The log treats the transaction as complete
            // only after that.
            self.write_frame(last, (page, pages), None, write)?;
        }
        // The transaction is sealed. Nothing from here on fails, because all regions are mapped.
        for (frame, page) in (before + 1..).zip(in_log.iter().copied().chain(images.pages())) {
            index.append(frame, page)?;
        }
        let after = base.after_commit(u32::try_from(self.page_bytes).unwrap_or(0), last, pages);
        index.publish(&after)?;
        Ok(after)
    }

    /// Writes the header of a frame, and the page's image if there is one. `page` is the page's number, and
    /// `pages` is the size of the database, which is 0 except in a commit frame.
    pub(super) fn write_frame(
        &self,
        frame: u32,
        (page, pages): (u32, u32),
        image: Option<&[u8]>,
        write: WriteWal<'_>,
    ) -> Result<(), Failure> {
        let recorded = refusals::last_refusal();
        let mut header = [0; FRAME_HEADER_BYTES];
        header[..4].copy_from_slice(&page.to_be_bytes());
        header[4..8].copy_from_slice(&pages.to_be_bytes());
        let offset = self.offset_of(frame) as u64;
        done(recorded, write(offset, &header)?)?;
        let Some(image) = image else { return Ok(()) };
        done(recorded, write(offset + FRAME_HEADER_BYTES as u64, image)?)
    }

    /// Starts the log over, as SQLite does before it writes, if the whole log is in the database and no
    /// connection reads the log. Returns the resulting header of the wal-index.
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
        let recorded = refusals::last_refusal();
        done(recorded, write(0, &make_wal_header(page_bytes, salt[0], salt))?)
    }
}

/// Returns the failure to report for a transaction that was overtaken. After any failure but `SQLITE_BUSY`,
/// SQLite considers the transaction over. That is right for `COMMIT`. But after a failed `RELEASE`, SQLite
/// keeps the savepoint, and a second `RELEASE` would succeed without committing anything. So this function
/// makes a `RELEASE` fail with `SQLITE_BUSY`, until the application sends a `ROLLBACK`.
#[cold]
fn lost(db: &Db, failure: Failure) -> Failure {
    if failure.code != ffi::BUSY_SNAPSHOT || !db.host.is_releasing(db.sqlite) {
        return failure;
    }
    Failure::new(ffi::BUSY, format!("RELEASE cannot commit; use ROLLBACK: {}", failure.message))
}

/// Turns the code that a write has returned into a result. `recorded` is the number of this thread's last
/// refusal before the write. If the write has recorded another refusal, the failure has the reason of that
/// refusal.
pub(super) fn done(recorded: u64, code: c_int) -> Result<(), Failure> {
    match code {
        ffi::OK => Ok(()),
        code => {
            let reason = refusals::last_error().filter(|_| refusals::last_refusal() != recorded);
            let reason =
                reason.unwrap_or_else(|| format!("the log does not take the transaction (code {code})"));
            Err(Failure::new(code, reason))
        }
    }
}

/// Stores `data` at the offset `at` of the buffer. If there is a gap before the data, fills the gap with
/// zeros.
pub(super) fn put(wal: &mut Vec<u8>, at: usize, data: &[u8]) {
    if wal.len() < at {
        wal.resize(at, 0);
    }
    let (over, behind) = data.split_at(data.len().min(wal.len() - at));
    wal[at..at + over.len()].copy_from_slice(over);
    wal.extend_from_slice(behind);
}

/// Returns the header of the frame that begins at the offset `at`, or zeros if SQLite has not written it.
pub(super) fn frame_header(wal: &[u8], at: usize) -> FrameHeader {
    let bytes = wal.get(at..at + FRAME_HEADER_BYTES).and_then(|bytes| bytes.try_into().ok());
    FrameHeader::parse(bytes.unwrap_or(&[0; FRAME_HEADER_BYTES]))
}
