//! The I/O on the database file: reads and writes that hide the guard from SQLite, and syncs (invariants 1,
//! 5, 6).
//!
//! Every access to pages by SQLite or this VFS goes through this module. If the attached log has a home (the
//! engine's view of the database file, see [`duralite_wal::engine::home`]), the access goes to the home, else
//! to the base VFS's file. That decision costs one branch. The VFS bypasses the home for three things only:
//! the guard (which is always in the file itself), the page size, and whether the file is a database.

use std::ffi::c_int;
use std::path::Path;

use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES, JournalKind};
use duralite_locks::file::Level;
use duralite_medium::{Guarantee, MediumError};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::home::{DatabaseFile, Header, Homed};
use duralite_wal::metrics::Counter;
use duralite_wal::{Log, LogError};

use super::{Db, Serving};
use crate::attachment::Attachment;
use crate::errors::{During, Failure};

/// The bytes of page 1 that show whether a guard is on.
const VERSIONS: std::ops::Range<u64> = guard::VERSIONS.start as u64..guard::VERSIONS.end as u64;
/// How many times this VFS reads a header that looks damaged before it concludes that the header is damaged.
/// A header looks damaged for a moment while another process writes it.
const HEADER_TRIES: u32 = 5;
const HEADER_PAUSE_US: c_int = 1000;

impl Db {
    /// Returns the first bytes of the file, as they are on disk, and how many of these bytes the file has. If
    /// the engine's home holds the header, the bytes on disk, except for the guard, are out of date until the
    /// home has written everything to the file (`drain`).
    pub fn raw_header(&self) -> Result<([u8; HEADER_BYTES], usize), Failure> {
        let mut header = [0; HEADER_BYTES];
        let failed =
            |code: c_int| Failure::new(code, format!("cannot read the header of {}", self.path.display()));
        if self.has_home()
            && let Some(home) = self.attached_home().filter(|home| home.header() == Header::Shared)
        {
            // This home has mapped the file itself. So it reads the header from memory, without a system
            // call.
            let read = home.read(&self.base, &mut header, 0);
            return read.map(|len| (header, len)).map_err(|error| self.home_failure(&error, During::Read));
        }
        match self.base.read(&mut header, 0) {
            ffi::OK => Ok((header, HEADER_BYTES)),
            ffi::IOERR_SHORT_READ => {
                let size = self.base.size().map_err(failed)?;
                // The read found no whole header. Even if the file has grown since, the file does not yet
                // count as a database.
                Ok((header, usize::try_from(size).map_or(0, |size| size.min(HEADER_BYTES - 1))))
            }
            code => Err(failed(code)),
        }
    }

    /// Returns what the file's header says about the database, including the guard as it is on disk.
    pub fn header(&self) -> Result<DatabaseHeader, Failure> {
        for _ in 1..HEADER_TRIES {
            let (header, len) = self.raw_header()?;
            match guard::inspect(&header[..len]) {
                DatabaseHeader::Damaged => self.sqlite.parent.sleep(HEADER_PAUSE_US),
                found => return Ok(self.note_guard(found)),
            }
        }
        let (header, len) = self.raw_header()?;
        Ok(self.note_guard(guard::inspect(&header[..len])))
    }

    /// Returns whether pages end in reserved bytes. A VFS above this one fills them, with checksums for
    /// example, when SQLite writes pages to the database file. This library's own connections would bypass
    /// that VFS, so they must not write pages if the answer is `true`.
    pub fn reserves_bytes(&self) -> Result<bool, Failure> {
        let (header, len) = self.raw_header()?;
        Ok(header[..len].get(guard::RESERVED_BYTES).is_some_and(|bytes| *bytes > 0))
    }

    fn note_guard(&self, found: DatabaseHeader) -> DatabaseHeader {
        if matches!(found, DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. }) {
            self.set_saw_rollback_guard();
        }
        found
    }

    /// Returns the kind of the guard that is on while the log is attached. The guard changes only under
    /// EXCLUSIVE, so the answer holds as long as SQLite holds SHARED.
    pub fn guard_kind(&self, attachment: &Attachment) -> Result<JournalKind, Failure> {
        if let Some(kind) = attachment.guard_kind() {
            return Ok(kind);
        }
        match self.header()? {
            DatabaseHeader::Guarded { kind, log_id, .. } => {
                let is_its = log_id == attachment.id();
                if is_its && self.lock.believed() >= Level::Shared && !self.is_outside() {
                    attachment.set_guard_kind(Some(kind));
                }
                Ok(kind)
            }
            // No guard is on, because an attempt to put it on or to lift it has failed. SQLite's next
            // operation reports that failure, so any answer is good here.
            _ => Ok(JournalKind::Wal),
        }
    }

    /// Removes the guard from `buf`, which was read at `offset`, so that SQLite sees what it wrote.
    pub fn unmask(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        if !guard::touches(offset, buf.len()) || !self.is_capable() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let kind = if offset <= VERSIONS.start && VERSIONS.end <= end {
            let at = usize::try_from(VERSIONS.start - offset).unwrap_or(0);
            JournalKind::of_guard(buf.get(at..at + 2).unwrap_or_default())
        } else if offset >= VERSIONS.end && end <= guard::LOG_ID.start as u64 {
            // Every transaction begins with this read of the change counter. So the guard's kind must come
            // from memory, because a second read would slow every transaction down.
            match self.attached_for(Serving::Journal) {
                Some(attachment) => Some(self.guard_kind(&attachment)?),
                None => None,
            }
        } else {
            match self.header()? {
                DatabaseHeader::Guarded { kind, .. } => Some(kind),
                _ => None,
            }
        };
        let Some(kind) = kind else { return Ok(()) };
        self.check_rollback_guard(kind)?;
        guard::unmask_as(kind, offset, buf);
        Ok(())
    }

    /// Shows SQLite a change counter that it has never seen, so that SQLite drops its cache (invariant 46).
    /// Does so once after SQLite has left WAL mode. Commits to the WAL need not have changed the counter, so
    /// SQLite would trust a cache that is out of date. SQLite reads the counter without the rest of the
    /// header only to check its cache, so this function changes no other read.
    pub fn show_change(&self, offset: u64, buf: &mut [u8]) {
        if offset == guard::COUNTER.start as u64
            && buf.len() < HEADER_BYTES
            && self.end_doubting_cache()
            && let Some(counter) = buf.get_mut(..guard::COUNTER.len())
        {
            counter.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    /// Refuses to read a database whose guard names a rollback journal in a log, if that log is not attached.
    /// Another connection has put that guard on since this connection opened the database, and the journal
    /// may be hot. The next transaction looks for the journal.
    fn check_rollback_guard(&self, kind: JournalKind) -> Result<(), Failure> {
        if kind == JournalKind::Wal || self.lock.believed() < Level::Shared || self.attached().is_some() {
            return Ok(());
        }
        self.set_saw_rollback_guard();
        let message = format!(
            "{} got a log after this connection had opened it; begin the transaction again",
            self.path.display()
        );
        Err(Failure::new(ffi::BUSY, message))
    }

    /// Returns the home of the attached log. This VFS then reads and writes the database through that home.
    /// Returns `None` if SQLite's accesses go straight to the base VFS's file.
    #[inline]
    fn homed(&self) -> Option<Homed<'_>> {
        if self.has_home() {
            self.attached_home().map(|home| Homed::new(&self.base, Some(home)))
        } else {
            None
        }
    }

    /// Fills `buf` as `xRead` does. If the read goes past the end, the bytes there are zeros, and the answer
    /// is `IOERR_SHORT_READ`. The guard is visible in `buf`.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        match self.homed() {
            None => Ok(self.base.read(buf, offset)),
            Some(homed) => {
                read_as_sqlite(&homed, buf, offset).map_err(|error| self.home_failure(&error, During::Read))
            }
        }
    }

    /// Reads as [`Self::read`] does. Where the guard is, `buf` gets what SQLite wrote there.
    pub fn read_unmasked(&self, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        let code = self.read(buf, offset)?;
        if offset < guard::MASKED_END && matches!(code, ffi::OK | ffi::IOERR_SHORT_READ) {
            self.unmask(offset, buf)?;
        }
        Ok(code)
    }

    /// Writes `data` as `xWrite` does. The caller has put the guard into `data` if one belongs there.
    fn put(&self, data: &[u8], offset: u64) -> Result<c_int, Failure> {
        match self.homed() {
            None => Ok(self.base.write(data, offset)),
            Some(homed) => self.done(homed.write(data, offset), During::Write),
        }
    }

    /// Returns the size of the database in bytes.
    pub fn size(&self) -> Result<u64, Failure> {
        match self.homed() {
            None => self
                .base
                .size()
                .map_err(|code| Failure::new(code, format!("cannot examine {}", self.path.display()))),
            Some(homed) => homed.size().map_err(|error| self.home_failure(&error, During::Size)),
        }
    }

    /// Writes to the database file for SQLite (invariants 1 and 5).
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<c_int, Failure> {
        self.set_leaving_wal(false);
        let Some((attachment, serving)) = self.serving() else {
            if offset < guard::MASKED_END {
                self.check_overwrites_guard()?;
            }
            return self.put(data, offset);
        };
        self.before_home_write(&attachment, serving, During::Write)?;
        let _written = Written(&attachment);
        if !guard::touches(offset, data.len()) {
            return self.put(data, offset);
        }
        let mut masked = data.to_vec();
        if serving == Serving::Journal {
            return self.put_first_page(&attachment, offset, &mut masked);
        }
        guard::mask(offset, &mut masked, attachment.id());
        self.put(&masked, offset)
    }

    /// Refuses a write over the guard while no log is attached. SQLite may overwrite only a provisional
    /// guard, and only under EXCLUSIVE. It does so when a power loss has brought back the rollback journal of
    /// a transaction that is older than the log, and SQLite rolls that transaction back. The log of the
    /// overwritten guard has no commits, and must not serve the WAL any more. If `prepare` noted that this
    /// log will serve the WAL, this function forgets that note.
    fn check_overwrites_guard(&self) -> Result<(), Failure> {
        let has_all = self.lock.sqlites_exclusive().is_some();
        if let DatabaseHeader::Guarded { provisional, .. } = self.header()?
            && !(provisional && has_all)
        {
            let message = format!(
                "{} has commits in a log; Duralite refuses to overwrite its guard",
                self.path.display()
            );
            return Err(Failure::new(ffi::IOERR_WRITE, message));
        }
        self.forget_prepared(Level::None);
        Ok(())
    }

    /// Writes the first page, or a part of it, outside of WAL mode. If the page changes the journal mode,
    /// this write also puts on the guard for the new mode.
    fn put_first_page(
        &self,
        attachment: &Attachment,
        offset: u64,
        page: &mut [u8],
    ) -> Result<c_int, Failure> {
        let before = self.guard_kind(attachment)?;
        let kind = guard::kind_of_page(offset, page).unwrap_or(before);
        guard::mask_as(kind, offset, page, attachment.id());
        if kind == before {
            return self.put(page, offset);
        }
        attachment.set_guard_kind(None);
        let code = self.put(page, offset)?;
        if code == ffi::OK {
            attachment.set_guard_kind(Some(kind));
        }
        Ok(code)
    }

    /// Makes the commits in the log durable before their pages are written to the database file. With a
    /// rollback journal there is nothing to make durable here, because SQLite itself has synced the journal.
    fn before_home_write(&self, log: &Attachment, serving: Serving, during: During) -> Result<(), Failure> {
        let ready = if serving == Serving::Journal { log.log().check() } else { log.before_home_write() };
        ready.map_err(|error| Failure::of(&error, during))
    }

    /// Truncates the database file for SQLite (invariant 5).
    pub fn truncate(&self, size: i64) -> Result<c_int, Failure> {
        if let Some((attachment, serving)) = self.serving() {
            self.before_home_write(&attachment, serving, During::Truncate)?;
            let _written = Written(&attachment);
            return self.cut(size);
        }
        if size <= 0 {
            // To roll back the transaction that created the database, SQLite truncates the file to nothing.
            // That also removes the guard.
            self.check_overwrites_guard()?;
        }
        self.cut(size)
    }

    fn cut(&self, size: i64) -> Result<c_int, Failure> {
        match self.homed() {
            None => Ok(self.base.truncate(size)),
            Some(homed) => self.done(homed.truncate(u64::try_from(size).unwrap_or(0)), During::Truncate),
        }
    }

    /// Returns the answer to SQLite for an operation of the home.
    fn done(&self, result: Result<(), LogError>, during: During) -> Result<c_int, Failure> {
        result.map(|()| ffi::OK).map_err(|error| self.home_failure(&error, during))
    }

    /// Returns the answer to SQLite for a failure of the home. If some program has truncated the file while
    /// the home had it mapped, this process acknowledges nothing more until the log is attached again
    /// (invariant 9).
    fn home_failure(&self, error: &LogError, during: During) -> Failure {
        if let LogError::Medium { source: MediumError::Cut { .. }, .. } = error
            && let Some(attachment) = self.attached()
        {
            attachment.home_cut(&error.to_string());
        }
        Failure::of(error, during)
    }

    /// Returns the failure to report to SQLite when this VFS cannot read a page. If this thread holds WRITE,
    /// a statement may be in the middle of its writes, so the code is that of [`Failure::amid_writes`].
    #[cold]
    pub fn read_failure(&self, failure: Failure) -> Failure {
        let is_writing = self.attached().is_some_and(|attachment| attachment.writer_is_here());
        if is_writing { failure.amid_writes() } else { failure }
    }

    /// Tells the home how large SQLite is about to make the database.
    pub fn hint(&self, bytes: u64) {
        if let Some(home) = self.attached_home() {
            // If there is no space, the write that needs the space reports that to SQLite.
            let _ = home.hint(&self.base, bytes);
        }
    }

    /// Counts a checkpoint that has finished writing, and informs the home.
    pub fn checkpointed(&self) {
        if let Some(attachment) = self.active() {
            attachment.count(Counter::Checkpoints);
            attachment.look_for_log_now(|| self.has_no_name());
        }
        if let Some(home) = self.attached_home() {
            // This call cannot report a failure. A later call meets the same failure and reports it.
            let _ = home.checkpointed(&self.base);
        }
    }

    /// Syncs the database file for SQLite (`xSync`). In WAL mode SQLite calls this at the end of a
    /// checkpoint, when the log still holds all that the checkpoint has written. [`Db::sync_home`] syncs the
    /// file before the log starts over or is deleted, so this function does not sync in two cases. While
    /// connections queue for WRITE, many checkpoints follow one another before the log starts over, and one
    /// sync covers them all. At the last close, [`Db::sync_home`] syncs soon after this call. The VFS's own
    /// connections always sync. They checkpoint while other connections write, and if they did not sync, a
    /// writer would have to wait for a sync later.
    pub fn sync_for_sqlite(&self, flags: c_int) -> c_int {
        if !self.is_helper()
            && !self.has_home()
            && self.active().is_some_and(|log| self.is_synced_later(&log))
        {
            return ffi::OK;
        }
        self.sync(flags)
    }

    /// Returns whether a later sync covers what a checkpoint has just written. This is the case while
    /// connections queue for WRITE, and when the database is being closed. A connection that holds EXCLUSIVE
    /// and has the wal-index mapped is closing the database. (With `locking_mode=EXCLUSIVE` SQLite maps no
    /// wal-index.) The answer is `false` for a log that a power loss destroys (`process-crash`). Of such a
    /// log only what was checkpointed survives, so each checkpoint needs its sync.
    fn is_synced_later(&self, log: &Attachment) -> bool {
        let begun_later =
            log.locks().has_waiters() || self.lock.believed() >= Level::Exclusive && self.index.is_mapped();
        begun_later && log.log().guarantee() != Guarantee::ProcessCrash
    }

    /// Syncs the database file. A failure counts for every user of the log. The kernel reports a failure only
    /// once, so a later sync that succeeds proves nothing (invariants 6 and 9).
    pub fn sync(&self, flags: c_int) -> c_int {
        match self.homed() {
            None => {
                let attachment = self.attached();
                let writes = attachment.as_ref().map(|attachment| attachment.home_writes());
                let code = self.sync_file(flags);
                if let (ffi::OK, Some(attachment), Some(writes)) = (code, attachment, writes) {
                    attachment.home_synced(writes);
                }
                code
            }
            Some(homed) => self.note_sync(self.answer(self.done(homed.sync(), During::Sync))),
        }
    }

    /// Syncs as [`Self::sync`] does, but only the base VFS's file. The header is in that file.
    pub fn sync_file(&self, flags: c_int) -> c_int {
        self.note_sync(self.base.sync(flags))
    }

    fn note_sync(&self, code: c_int) -> c_int {
        if code != ffi::OK
            && let Some(attachment) = self.attached()
        {
            attachment.home_failed();
        }
        code
    }

    /// Makes the home write everything to the database file, and makes the file durable. Returns whether
    /// there is a home. The caller is about to lift the guard, so it must be the only user of the database.
    pub fn drain(&self) -> Result<bool, Failure> {
        let Some(homed) = self.homed() else { return Ok(false) };
        homed.drain().map_err(|error| {
            self.note_sync(ffi::IOERR_FSYNC);
            self.home_failure(&error, During::Sync)
        })?;
        Ok(true)
    }

    /// Returns the code for SQLite. Records a failure for `duralite_last_error()`.
    pub fn answer(&self, result: Result<c_int, Failure>) -> c_int {
        result.unwrap_or_else(|failure| self.sqlite.fail(&failure))
    }

    /// Makes the database file durable, so that the log may start over or be deleted. If a sync of the file
    /// has failed before, in any process, first writes every committed page again. A caller that has locked
    /// the attachment's log passes that log as `log`.
    pub fn sync_home(
        &self,
        attachment: &Attachment,
        log: Option<&mut Log>,
        flags: c_int,
    ) -> Result<(), Failure> {
        if !self.has_home() && attachment.home_is_synced() {
            return Ok(());
        }
        let failures = attachment.home_failures();
        if failures > 0 {
            // Leave out frames that a process has sealed but not published, because no reader may see them,
            // and another writer may replace them. A connection that holds EXCLUSIVE may have no wal-index.
            // But it is the only connection, so everything sealed is published.
            let published = attachment.indexed_frames();
            let last = (published > 0 && self.lock.sqlites_exclusive().is_none()).then_some(published);
            match log {
                Some(log) => self.write_all_home(attachment, log, last)?,
                None => self.write_all_home(attachment, &mut attachment.log(), last)?,
            }
        }
        match self.sync(flags) {
            ffi::OK => {}
            code => return Err(Failure::new(code, format!("cannot sync {}", self.path.display()))),
        }
        if failures > 0 {
            attachment.home_settled(failures);
        }
        Ok(())
    }

    /// Writes everything committed in the log to the database file, and truncates the file to the size of the
    /// database, as the last checkpoint does. Does not sync. The caller has EXCLUSIVE.
    pub fn put_home_alone(&self, attachment: &Attachment) -> Result<(), Failure> {
        let pages = attachment.log().db_pages().map_err(|error| Failure::of(&error, During::Read))?;
        if pages == 0 {
            return Ok(());
        }
        attachment.before_home_write().map_err(|error| Failure::of(&error, During::Write))?;
        self.write_all_home(attachment, &mut attachment.log(), None)?;
        let page_bytes = attachment.log().page_bytes();
        let bytes = i64::from(pages).saturating_mul(i64::from(page_bytes));
        let cut =
            if self.size()? > u64::try_from(bytes).unwrap_or(u64::MAX) { self.cut(bytes)? } else { ffi::OK };
        attachment.home_written();
        match cut {
            ffi::OK => Ok(()),
            code => Err(Failure::new(code, format!("cannot truncate {}", self.path.display()))),
        }
    }

    /// Writes everything committed in a deleted log to the database file, and syncs the file. This is for
    /// exclusive locking mode, in which no other connection could checkpoint the log, and no other connection
    /// reads an older state.
    pub fn save_alone(&self, attachment: &Attachment) -> Result<(), Failure> {
        attachment.before_home_write().map_err(|error| Failure::of(&error, During::Write))?;
        self.write_all_home(attachment, &mut attachment.log(), None)?;
        match self.sync(ffi::SYNC_FULL) {
            ffi::OK => Ok(()),
            code => Err(Failure::new(code, format!("cannot sync {}", self.path.display()))),
        }
    }

    /// Writes the pages of the frames up to `last` to the database file. Without `last`, writes the pages of
    /// all committed frames. No connection may be reading an older state.
    fn write_all_home(
        &self,
        attachment: &Attachment,
        log: &mut Log,
        last: Option<u32>,
    ) -> Result<(), Failure> {
        let failed = |error: LogError| Failure::of(&error, During::Read);
        let mut page = vec![0; log.page_bytes() as usize];
        for (page_number, frame) in log.committed_pages(last).map_err(failed)? {
            log.read_page(&self.base, frame, &mut page).map_err(failed)?;
            if page_number == 1 {
                guard::mask(0, &mut page, log.id());
            }
            let offset = u64::from(page_number.saturating_sub(1)) * page.len() as u64;
            let written = self.put(&page, offset)?;
            attachment.home_written();
            match written {
                ffi::OK => {}
                code => return Err(Failure::new(code, format!("cannot write {}", self.path.display()))),
            }
        }
        Ok(())
    }

    /// Refuses to open this rollback journal if it is not known whether the guard of the database is on disk.
    /// After a power loss the guard might be there, and would keep SQLite from rolling the transaction back.
    pub fn check_journal(&self, journal: &Path) -> Result<(), Failure> {
        if !self.header_is_in_doubt() || journal != self.beside("-journal") {
            return Ok(());
        }
        let message = format!(
            "syncing the first page of {} has failed; nothing is lost: close the database and open it again",
            self.path.display()
        );
        Err(Failure::new(ffi::IOERR_FSYNC, message))
    }

    /// Returns the size of the base VFS's `-wal` file, or `None` when there is none.
    pub fn base_wal_bytes(&self) -> Result<Option<u64>, Failure> {
        let name = self.beside("-wal");
        // Look at the file system first, because the base VFS reports an empty file as missing.
        if let Ok(metadata) = std::fs::metadata(name) {
            return Ok(Some(metadata.len()));
        }
        match self.sqlite.parent.exists(self.names.wal.as_ptr()) {
            // The base VFS keeps the file elsewhere, so its size is unknown. The file counts as not empty,
            // and stock SQLite has to look into it.
            Ok(true) => Ok(Some(u64::MAX)),
            Ok(false) => Ok(None),
            Err(code) => {
                Err(Failure::new(code, format!("cannot examine the -wal of {}", self.path.display())))
            }
        }
    }
}

/// Counts a write to the database file when this value is dropped, whether or not the write succeeded.
struct Written<'a>(&'a Attachment);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.home_written();
    }
}

/// Reads as `xRead` does. If the read goes past the end, the bytes there are zeros, and the answer is
/// `IOERR_SHORT_READ`.
fn read_as_sqlite(file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<c_int, LogError> {
    let count = file.read(buf, offset)?;
    let Some(rest) = buf.get_mut(count..).filter(|rest| !rest.is_empty()) else { return Ok(ffi::OK) };
    rest.fill(0);
    Ok(ffi::IOERR_SHORT_READ)
}
