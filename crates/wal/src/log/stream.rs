//! Imitates the `-wal` file that SQLite believes it uses, from an engine's frames.
//!
//! SQLite writes the log as a byte stream: a 32-byte header, then for each frame 24 bytes and a page. This module recognises
//! the frames in those writes and decides when a transaction is sealed. On reads it rebuilds the bytes, checksums included,
//! so that SQLite's own recovery accepts them. The state of this module does not survive a crash, and need not.
//!
//! **SQLite's checksums.** They do not protect the log, because each engine has checksums of its own. SQLite before 3.41
//! may compute wrong checksums if it overwrites pages of spilled frames in place, and `ROLLBACK TO` then truncates those
//! frames. The commit frame then has zeros as its checksum, or a sum over bytes that were truncated. All later checksums
//! continue from that wrong one, until the wal-index is rebuilt. So a stored checksum may differ from the true one. When
//! SQLite's recovery reads the log, this module computes the checksums that SQLite reads, from the first frame on.
//!
//! **When a transaction is sealed.** A transaction is sealed when SQLite has written its commit frame (the frame whose size
//! field is not 0), at every setting of `PRAGMA synchronous` (invariant 4). There is one exception. If SQLite has
//! overwritten pages of frames that it spilled earlier, it rewrites the checksums in the headers of all frames from the
//! first such frame on. Sealing then waits for the rewritten header of the commit frame.

use duralite_format::sqlite_wal::{Checksum, FRAME_HEADER_BYTES, FrameHeader, WAL_HEADER_BYTES, WalHeader};

use crate::engine::checksums::{UNKNOWN, known};
use crate::engine::home::DatabaseFile;
use crate::engine::{Commit, Engine, Fill, LogReader, Ticket};
use crate::{ErrorKind, LogError};

/// Offset and length of the checksum in a frame's header.
const CHECKSUM: (usize, usize) = (16, 8);

/// A sealed transaction, which every process can see. The stream returns the transaction once. The caller keeps it until
/// the commit is acknowledged.
#[derive(Debug)]
#[must_use]
pub struct Sealed {
    /// The transaction's name: the low half of the generation, and the commit frame.
    pub commit: u64,
    /// The ticket with which the committer waits until the transaction is durable. `None` if there is nothing to wait for,
    /// because the transaction is durable already, or because Group Synch or [`crate::SyncMode::Async`] acknowledges it
    /// before it is durable.
    pub ticket: Option<Ticket>,
    /// How full the log is after the transaction.
    pub fill: Fill,
    /// The position after the transaction, as a [`Follower`](crate::Follower) counts.
    pub position: u64,
}

/// Returns the name of the newest commit in an engine, as of its last refresh.
pub(crate) fn newest_commit<E: LogReader + ?Sized>(engine: &E) -> u64 {
    (engine.version() >> 32) << 32 | u64::from(engine.committed())
}

/// A byte-addressed view of an engine.
pub struct WalStream<E: ?Sized> {
    engine: Box<E>,
    open: OpenTransaction,
    /// The header of a frame whose page SQLite has not written yet.
    pending: Option<(u32, FrameHeader)>,
    /// A frame that SQLite is writing in pieces.
    pieces: Pieces,
    /// The checksum that was computed last. The checksum of the next frame continues from it.
    cursor: Option<Cursor>,
    page: Vec<u8>,
    /// Whether a commit has failed because the log was busy. SQLite may try that commit again. When another transaction
    /// begins, the flag is cleared.
    has_dropped: bool,
    acknowledged: u64,
    /// The number of bytes to which the log's file may shrink when the log starts over.
    size_limit: Option<u64>,
}

/// A frame's cumulative checksum, as of one version of the engine's content.
#[derive(Clone, Copy)]
struct Cursor {
    version: u64,
    frame: u32,
    sum: Checksum,
}

/// The frames that SQLite has written so far for a transaction that is not sealed yet.
#[derive(Default)]
struct OpenTransaction {
    first_frame: u32,
    headers: Vec<FrameHeader>,
    /// The lowest frame whose page SQLite has overwritten in place. The headers of that frame and all later ones have
    /// old checksums.
    rewritten_from: Option<u32>,
    /// The commit frame, once its page has been written.
    commit_frame: Option<u32>,
    /// Whether SQLite has rewritten the headers of frames.
    was_rewritten: bool,
}

impl OpenTransaction {
    fn header(&self, frame: u32) -> Option<&FrameHeader> {
        self.headers.get(frame.checked_sub(self.first_frame)? as usize)
    }

    /// Returns whether SQLite has written the checksums of all frames up to `last`. Also returns `true` if SQLite has
    /// not rewritten any header.
    fn is_summed(&self, last: u32) -> bool {
        let count = (last - self.first_frame) as usize + 1;
        !self.was_rewritten || self.headers.iter().take(count).all(|header| header.checksum != UNKNOWN)
    }

    fn header_mut(&mut self, frame: u32) -> Option<&mut FrameHeader> {
        self.headers.get_mut(frame.checked_sub(self.first_frame)? as usize)
    }
}

/// A frame that SQLite writes in pieces, so that SQLite can sync at a sector boundary.
#[derive(Default)]
struct Pieces {
    start: u64,
    bytes: Vec<u8>,
}

impl<E: Engine> WalStream<E> {
    /// Makes a stream over an engine that has recovered its log.
    pub fn new(engine: E) -> Self {
        Self::over(Box::new(engine))
    }
}

impl<E: Engine + ?Sized> WalStream<E> {
    /// Makes a stream over an engine that has recovered its log.
    pub fn over(engine: Box<E>) -> Self {
        Self {
            engine,
            open: OpenTransaction::default(),
            pending: None,
            pieces: Pieces::default(),
            cursor: None,
            page: Vec::new(),
            has_dropped: false,
            acknowledged: 0,
            size_limit: None,
        }
    }

    /// Sets the last commit that was acknowledged: generation and frame, as in [`crate::Log::newest_commit`].
    pub fn set_acknowledged(&mut self, commit: u64) {
        self.acknowledged = commit;
    }

    /// Returns the engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Returns the engine, for changes.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Allows the log's file to shrink to this many bytes whenever the log starts over, as `PRAGMA journal_size_limit` asks.
    pub fn limit_size(&mut self, bytes: Option<u64>) {
        self.size_limit = bytes;
    }

    /// Returns the size of the stream in bytes: header and committed frames, or 0.
    ///
    /// # Errors
    /// As [`crate::engine::LogReader::refresh`].
    pub fn size(&mut self) -> Result<u64, LogError> {
        self.refresh()?;
        Ok(self.engine.wal_header().map_or(0, |header| {
            WAL_HEADER_BYTES as u64 + u64::from(self.engine.committed()) * header.frame_bytes()
        }))
    }

    /// Reads the stream from byte `offset` on into `buf`, and returns how many bytes it read.
    ///
    /// # Errors
    /// As [`crate::engine::LogReader::read_page`].
    pub fn read(&mut self, file: &dyn DatabaseFile, offset: u64, buf: &mut [u8]) -> Result<usize, LogError> {
        self.refresh()?;
        let Some(header) = self.engine.wal_header().copied() else { return Ok(0) };
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let count = if at < WAL_HEADER_BYTES as u64 {
                copy_from(&header.bytes, at as usize, &mut buf[done..])
            } else {
                let (frame, within) = locate(&header, at);
                if frame > self.last_frame() {
                    // SQLite asks for the checksum of a frame that it has itself truncated. In a real file SQLite would
                    // find arbitrary bytes there, so answer with zeros.
                    if (within, buf.len()) == CHECKSUM {
                        buf.fill(0);
                        return Ok(buf.len());
                    }
                    break;
                }
                self.read_frame(file, &header, frame, within, &mut buf[done..])?
            };
            done += count;
        }
        Ok(done)
    }

    /// Processes a write by SQLite. A write that completes a commit frame seals the transaction and returns it. A write
    /// at offset 0 starts the log over, so the caller must already have synced the database file (invariant 6).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: the write did not happen; other errors as the engine's.
    pub fn write(
        &mut self,
        file: &dyn DatabaseFile,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        if offset < WAL_HEADER_BYTES as u64 {
            return self.write_wal_header(file, offset, data);
        }
        if !self.completes_frame(offset) {
            // Skip the refresh between a frame's header and its page, because no other process can have written in between
            // (invariant 11).
            self.refresh()?;
        }
        let header =
            *self.engine.wal_header().ok_or(LogError::Unexpected("a frame before the WAL header"))?;
        let (frame, within) = locate(&header, offset);
        let page_bytes = header.page_bytes as usize;
        match (within, data.len()) {
            (0, FRAME_HEADER_BYTES) => self.write_frame_header(file, frame, data),
            (FRAME_HEADER_BYTES, length) if length == page_bytes => self.write_page(file, frame, data),
            _ => self.write_piece(file, &header, offset, data),
        }
    }

    /// Processes a truncation by SQLite. A truncation to nothing shrinks the log's file to the size of a new log, so
    /// the caller must already have synced the database file (invariant 6). A truncation after the last frame does
    /// nothing.
    ///
    /// # Errors
    /// `Unexpected` for a truncation into committed frames; other errors as [`crate::engine::LogFile::begin_generation`].
    pub fn truncate(&mut self, file: &dyn DatabaseFile, size: u64) -> Result<(), LogError> {
        let current = self.size()?;
        if size >= current && (current > 0 || !self.engine.has_surplus(0)) {
            return Ok(());
        }
        if size > 0 {
            return Err(LogError::Unexpected("a cut into committed frames"));
        }
        self.reset_transaction()?;
        self.engine.clear(file, 0)
    }

    /// Drops the frames that SQLite has written and not committed, so that others may use the space. The log calls this
    /// method when SQLite releases the WRITE lock.
    ///
    /// # Errors
    /// As [`crate::engine::LogWriter::discard_staged`].
    pub fn end_write(&mut self) -> Result<(), LogError> {
        if self.engine.has_staged() { self.reset_transaction() } else { Ok(()) }
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        self.engine.refresh()?;
        // A call that did not come through this stream may have made the engine drop the staged frames. If so, forget
        // the open transaction here too.
        if !self.open.headers.is_empty() && !self.engine.has_staged() {
            self.open = OpenTransaction::default();
        }
        Ok(())
    }

    /// Returns whether a write at `offset` is the page of the frame whose header SQLite has just written.
    fn completes_frame(&self, offset: u64) -> bool {
        let expected = self.engine.wal_header().zip(self.pending);
        expected.is_some_and(|(header, (frame, _))| locate(header, offset) == (frame, FRAME_HEADER_BYTES))
    }

    fn last_frame(&self) -> u32 {
        let open = self.open.first_frame + self.open.headers.len() as u32;
        self.engine.committed().max(open.saturating_sub(1))
    }

    fn write_wal_header(
        &mut self,
        file: &dyn DatabaseFile,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        let bytes: &[u8; WAL_HEADER_BYTES] = match (offset, data.try_into()) {
            (0, Ok(bytes)) => bytes,
            _ => return Err(LogError::Unexpected("a part of the WAL header")),
        };
        let header =
            WalHeader::parse(bytes).map_err(|_| LogError::Unexpected("a WAL header that does not check"))?;
        self.reset_transaction()?;
        if let Some(limit) = self.size_limit.filter(|limit| self.engine.has_surplus(*limit)) {
            self.engine.clear(file, limit)?;
        }
        self.engine.begin_generation(file, Some(&header))?;
        Ok(None)
    }

    fn write_frame_header(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        data: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        let bytes: &[u8; FRAME_HEADER_BYTES] =
            data.try_into().map_err(|_| LogError::Unexpected("a frame header's length"))?;
        let header = FrameHeader::parse(bytes);
        if self.open.commit_frame.is_some()
            && let Some(stale) = self.open.header_mut(frame)
            && (stale.page_number, stale.db_pages) == (header.page_number, header.db_pages)
        {
            // After SQLite has changed pages in place, it rewrites the checksums, in ascending order of frames.
            *stale = header;
            self.open.was_rewritten = true;
            self.pending = Some((frame, header));
            if self.open.commit_frame == Some(frame) {
                self.open.rewritten_from = None;
                return self.seal_if_complete(file);
            }
            return Ok(None);
        }
        self.pending = Some((frame, header));
        Ok(None)
    }

    fn write_page(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        match self.pending.take() {
            Some((pending, header)) if pending == frame => self.write_new_frame(file, frame, header, page),
            _ => self.overwrite_page(file, frame, page),
        }
    }

    /// Stages a frame that SQLite appends, or writes again after a rollback (to a savepoint, or to the beginning of the
    /// transaction).
    fn write_new_frame(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        header: FrameHeader,
        page: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        let staged = self.open.headers.len() as u32;
        let continues = staged > 0
            && self.open.commit_frame.is_none()
            && (self.open.first_frame + 1..=self.open.first_frame + staged).contains(&frame);
        if continues {
            self.open.headers.truncate((frame - self.open.first_frame) as usize);
            if self.open.rewritten_from.is_some_and(|from| from >= frame) {
                self.open.rewritten_from = None;
            }
        } else {
            if frame > self.engine.committed() + 1 {
                return Err(self.out_of_order("a frame behind the end of the log"));
            }
            // The new transaction may replace another one only if the other's process died before it acknowledged the
            // commit (invariant 15).
            let (generation, last) = (self.acknowledged >> 32, self.acknowledged & 0xffff_ffff);
            if self.engine.version() >> 32 == generation && u64::from(frame) <= last {
                return Err(LogError::Unexpected("a frame that would replace an acknowledged one"));
            }
            self.reset_transaction()?;
            self.has_dropped = false;
            self.open.first_frame = frame;
        }
        self.engine.stage(file, frame, header.page_number, page)?;
        self.open.headers.push(header);
        if header.db_pages != 0 {
            self.open.commit_frame = Some(frame);
            if self.open.rewritten_from.is_none() {
                return self.seal_if_complete(file);
            }
        }
        Ok(None)
    }

    /// Stages a page that SQLite writes in place: the page of a spilled frame of the open transaction.
    fn overwrite_page(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        let Some(header) = self.open.header(frame).copied() else {
            return Err(self.out_of_order("a page of a frame that is not being written"));
        };
        self.engine.stage(file, frame, header.page_number, page)?;
        let from = self.open.rewritten_from.map_or(frame, |from| from.min(frame));
        self.open.rewritten_from = Some(from);
        Ok(None)
    }

    fn seal_if_complete(&mut self, file: &dyn DatabaseFile) -> Result<Option<Sealed>, LogError> {
        let Some(last_frame) = self.open.commit_frame else { return Ok(None) };
        let Some(header) = self.open.header(last_frame).copied() else { return Ok(None) };
        let commit = Commit {
            first_frame: self.open.first_frame,
            last_frame,
            db_pages: header.db_pages,
            checksum: if self.open.is_summed(last_frame) { header.checksum } else { UNKNOWN },
        };
        let ticket = match self.engine.seal(file, &commit) {
            Ok(ticket) => ticket,
            Err(error) => {
                // SQLite rolls this transaction back. The stream must not take SQLite's next writes for a part of this
                // transaction.
                self.reset_transaction()?;
                self.has_dropped = error.kind() == ErrorKind::Busy;
                return Err(error);
            }
        };
        self.open.headers.clear();
        self.open = OpenTransaction { headers: std::mem::take(&mut self.open.headers), ..Default::default() };
        let engine = &*self.engine;
        let (commit, position) = (newest_commit(engine), engine.position());
        Ok(Some(Sealed { commit, ticket, fill: engine.fill(), position }))
    }

    /// Returns the error for a frame that does not come directly after the frames in the log.
    fn out_of_order(&self, what: &'static str) -> LogError {
        if self.has_dropped { LogError::Dropped } else { LogError::Unexpected(what) }
    }

    fn reset_transaction(&mut self) -> Result<(), LogError> {
        self.open = OpenTransaction::default();
        self.pending = None;
        self.pieces = Pieces::default();
        if self.engine.has_staged() {
            self.engine.discard_staged()?;
        }
        Ok(())
    }

    fn write_piece(
        &mut self,
        file: &dyn DatabaseFile,
        header: &WalHeader,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Sealed>, LogError> {
        let (_, within) = locate(header, offset);
        if offset != self.pieces.start + self.pieces.bytes.len() as u64 || self.pieces.bytes.is_empty() {
            // SQLite may have written the frame's header in one piece, and only the page in several pieces.
            let starts = within == 0 || within == FRAME_HEADER_BYTES;
            if !starts {
                return Err(LogError::Unexpected("a part of a frame"));
            }
            self.pieces.start = offset;
            self.pieces.bytes.clear();
        }
        self.pieces.bytes.extend_from_slice(data);
        let (frame, start) = locate(header, self.pieces.start);
        let mut sealed = None;
        if start == 0 && self.pieces.bytes.len() >= FRAME_HEADER_BYTES {
            let rest = self.pieces.bytes.split_off(FRAME_HEADER_BYTES);
            let head = std::mem::replace(&mut self.pieces.bytes, rest);
            self.pieces.start += FRAME_HEADER_BYTES as u64;
            sealed = self.write_frame_header(file, frame, &head)?;
        }
        let (_, start) = locate(header, self.pieces.start);
        let page_bytes = header.page_bytes as usize;
        if start < FRAME_HEADER_BYTES || self.pieces.bytes.len() < page_bytes {
            return Ok(sealed);
        }
        if self.pieces.bytes.len() > page_bytes {
            return Err(LogError::Unexpected("a write across frames"));
        }
        let page = std::mem::take(&mut self.pieces.bytes);
        Ok(self.write_page(file, frame, &page)?.or(sealed))
    }

    /// Fills `buf` with bytes of frame `number`, from byte `within` on. Returns how many bytes it copied.
    fn read_frame(
        &mut self,
        file: &dyn DatabaseFile,
        header: &WalHeader,
        number: u32,
        within: usize,
        buf: &mut [u8],
    ) -> Result<usize, LogError> {
        let page_bytes = header.page_bytes as usize;
        if within == 0
            && let Some((head, page)) = buf.split_at_mut_checked(FRAME_HEADER_BYTES)
            && let Some(page) = page.get_mut(..page_bytes)
        {
            self.engine.read_page(file, number, page)?;
            head.copy_from_slice(&self.frame_header(file, header, number, Some(page))?);
            return Ok(FRAME_HEADER_BYTES + page_bytes);
        }
        if within < FRAME_HEADER_BYTES {
            let bytes = self.frame_header(file, header, number, None)?;
            return Ok(copy_from(&bytes, within, buf));
        }
        if within == FRAME_HEADER_BYTES && buf.len() >= page_bytes {
            self.engine.read_page(file, number, &mut buf[..page_bytes])?;
            return Ok(page_bytes);
        }
        let mut page = std::mem::take(&mut self.page);
        page.resize(page_bytes, 0);
        let result = self.engine.read_page(file, number, &mut page);
        let count = copy_from(&page, within - FRAME_HEADER_BYTES, buf);
        self.page = page;
        result.map(|()| count)
    }

    /// Returns the header of a frame. `page` is the frame's page, if the caller has read it.
    fn frame_header(
        &mut self,
        file: &dyn DatabaseFile,
        header: &WalHeader,
        number: u32,
        page: Option<&[u8]>,
    ) -> Result<[u8; FRAME_HEADER_BYTES], LogError> {
        if let Some(open) = self.open.header(number) {
            return Ok(header.frame_header(open.page_number, open.db_pages, open.checksum));
        }
        let frame = self.engine.frame(number).ok_or(LogError::Unexpected("a frame number"))?;
        let sum = match (self.sum_before(header, number), page) {
            (Some(before), Some(page)) => header.extend(before, frame.page_number, frame.db_pages, page),
            (Some(before), None) => self.compute_checksum(file, header, number - 1, before, number)?,
            (None, _) => match known(&frame) {
                Some(sum) => sum,
                None => {
                    let (from, sum) = self.known_before(header, number);
                    self.compute_checksum(file, header, from, sum, number)?
                }
            },
        };
        self.cursor = Some(Cursor { version: self.engine.version(), frame: number, sum });
        Ok(header.frame_header(frame.page_number, frame.db_pages, sum))
    }

    /// Returns the checksum of the frame before `number`, if that checksum was the last one computed. For frame 1,
    /// returns the checksum of the WAL header.
    fn sum_before(&self, header: &WalHeader, number: u32) -> Option<Checksum> {
        if number == 1 {
            return Some(header.checksum);
        }
        let version = self.engine.version();
        self.cursor
            .filter(|cursor| (cursor.version, cursor.frame) == (version, number - 1))
            .map(|cursor| cursor.sum)
    }

    /// Returns the nearest frame before `number` whose checksum is stored, with that checksum. If there is no such frame,
    /// returns 0 and the checksum of the WAL header.
    fn known_before(&self, header: &WalHeader, number: u32) -> (u32, Checksum) {
        let stored = |at: u32| self.engine.frame(at).as_ref().and_then(known).map(|sum| (at, sum));
        (1..number).rev().find_map(stored).unwrap_or((0, header.checksum))
    }

    /// Computes the cumulative checksum after frame `number` from the checksum after frame `from`.
    fn compute_checksum(
        &mut self,
        file: &dyn DatabaseFile,
        header: &WalHeader,
        from: u32,
        mut sum: Checksum,
        number: u32,
    ) -> Result<Checksum, LogError> {
        let mut page = std::mem::take(&mut self.page);
        page.resize(header.page_bytes as usize, 0);
        for at in from + 1..=number {
            let frame = self.engine.frame(at).ok_or(LogError::Unexpected("a frame number"))?;
            self.engine.read_page(file, at, &mut page)?;
            sum = header.extend(sum, frame.page_number, frame.db_pages, &page);
        }
        self.page = page;
        Ok(sum)
    }
}

/// Converts a stream offset after the WAL header to a frame number (from 1) and an offset within the frame.
fn locate(header: &WalHeader, offset: u64) -> (u32, usize) {
    let offset = offset - WAL_HEADER_BYTES as u64;
    let number = u32::try_from(offset / header.frame_bytes() + 1).unwrap_or(u32::MAX);
    (number, (offset % header.frame_bytes()) as usize)
}

fn copy_from(source: &[u8], at: usize, buf: &mut [u8]) -> usize {
    let count = buf.len().min(source.len() - at);
    buf[..count].copy_from_slice(&source[at..at + count]);
    count
}
