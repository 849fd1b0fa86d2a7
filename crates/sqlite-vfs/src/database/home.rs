//! The I/O on the database file: reads and writes past the guard, and syncs (invariants 1, 5, 6).
//!
//! All that SQLite or this VFS does with pages is done here. It goes through the home of the attached log if
//! the log has one ([`duralite_wal::engine::home`]), else to the base's file, at the cost of one branch. The
//! guard alone is always in the file itself. Past the home the VFS looks there only for the guard, the page
//! size, and whether the file is a database.

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

/// The bytes of page 1 by which a guard is recognised.
const VERSIONS: std::ops::Range<u64> = guard::VERSIONS.start as u64..guard::VERSIONS.end as u64;
/// A header that another process is writing right now looks damaged for a moment.
const HEADER_TRIES: u32 = 5;
const HEADER_PAUSE_US: c_int = 1000;

impl Db {
    /// The bytes at the file's beginning as they are on disk, and how many there are. Where a home holds the
    /// header, these are old, except for the guard, until the home is drained.
    pub fn raw_header(&self) -> Result<([u8; HEADER_BYTES], usize), Failure> {
        let mut header = [0; HEADER_BYTES];
        let failed =
            |code: c_int| Failure::new(code, format!("cannot read the header of {}", self.path.display()));
        if self.has_home()
            && let Some(home) = self.attached_home().filter(|home| home.header() == Header::Shared)
        {
            // The mapped memory is the file, and reading it takes no system call.
            let read = home.read(&self.base, &mut header, 0);
            return read.map(|len| (header, len)).map_err(|error| self.home_failure(&error, During::Read));
        }
        match self.base.read(&mut header, 0) {
            ffi::OK => Ok((header, HEADER_BYTES)),
            ffi::IOERR_SHORT_READ => {
                let size = self.base.size().map_err(failed)?;
                // A file that grew meanwhile counts as what was read: not yet a database.
                Ok((header, usize::try_from(size).map_or(0, |size| size.min(HEADER_BYTES - 1))))
            }
            code => Err(failed(code)),
        }
    }

    /// What the file says about itself, with the guard as it is on disk.
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

    /// Whether pages end in bytes that are not SQLite's. A VFS above this one fills them, with checksums for
    /// example, as SQLite writes pages home. A page that a connection of this library's own writes home would
    /// go past that VFS.
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

    /// The guard that is on while its log is attached. It changes only under EXCLUSIVE, so it stays as long
    /// as SQLite holds SHARED.
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
            // The guard could not be lifted, or not be put on. SQLite's next operation reports it.
            _ => Ok(JournalKind::Wal),
        }
    }

    /// Shows SQLite what it wrote, after a read of `buf` at `offset`.
    pub fn unmask(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        if !guard::touches(offset, buf.len()) || !self.is_capable() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let kind = if offset <= VERSIONS.start && VERSIONS.end <= end {
            let at = usize::try_from(VERSIONS.start - offset).unwrap_or(0);
            JournalKind::of_guard(buf.get(at..at + 2).unwrap_or_default())
        } else if offset >= VERSIONS.end && end <= guard::LOG_ID.start as u64 {
            // This is the change counter, with which a transaction begins. No read may be added to it.
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

    /// Shows SQLite, once after it has left WAL mode, a change counter that it has never seen. Commits to the
    /// WAL need not have moved the counter, and SQLite would trust what it has cached (invariant 46). SQLite
    /// reads the counter alone for nothing else.
    pub fn show_change(&self, offset: u64, buf: &mut [u8]) {
        if offset == guard::COUNTER.start as u64
            && buf.len() < HEADER_BYTES
            && self.end_doubting_cache()
            && let Some(counter) = buf.get_mut(..guard::COUNTER.len())
        {
            counter.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    /// Refuses to read a database that may have a hot rollback journal in a log that is not attached: the
    /// guard has come since the database was opened. The next transaction looks for it.
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

    /// The database behind the home of the attached log. `None` where nothing stands before the base's file.
    #[inline]
    fn homed(&self) -> Option<Homed<'_>> {
        if self.has_home() {
            self.attached_home().map(|home| Homed::new(&self.base, Some(home)))
        } else {
            None
        }
    }

    /// Fills `buf` as `xRead` does: bytes past the end are zeros, and the answer is then `IOERR_SHORT_READ`.
    /// The guard shows.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        match self.homed() {
            None => Ok(self.base.read(buf, offset)),
            Some(homed) => {
                read_as_sqlite(&homed, buf, offset).map_err(|error| self.home_failure(&error, During::Read))
            }
        }
    }

    /// As [`Self::read`], with what SQLite wrote where the guard is.
    pub fn read_unmasked(&self, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        let code = self.read(buf, offset)?;
        if offset < guard::MASKED_END && matches!(code, ffi::OK | ffi::IOERR_SHORT_READ) {
            self.unmask(offset, buf)?;
        }
        Ok(code)
    }

    /// Writes as `xWrite` does, with the guard as it is in `data`.
    fn put(&self, data: &[u8], offset: u64) -> Result<c_int, Failure> {
        match self.homed() {
            None => Ok(self.base.write(data, offset)),
            Some(homed) => self.done(homed.write(data, offset), During::Write),
        }
    }

    /// The size of the database in bytes.
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

    /// Whether SQLite may write over the place of the guard with no log attached. It may write over a
    /// provisional guard. A power loss has then brought back the rollback journal of a transaction from
    /// before the log, and the log has no commits. Such a log must not serve the WAL then, although it
    /// exists.
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

    /// Writes the first page, or a part of it, outside of WAL mode. SQLite may be about to change the mode.
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

    /// Makes durable what pages come from: the commits in the log. SQLite itself has synced a rollback
    /// journal.
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
            // A rollback journal from before the database existed removes the guard as well.
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

    /// The answer to SQLite for an operation of the home.
    fn done(&self, result: Result<(), LogError>, during: During) -> Result<c_int, Failure> {
        result.map(|()| ffi::OK).map_err(|error| self.home_failure(&error, during))
    }

    /// The answer to SQLite for a failure of the home. If the file was truncated under its mapping, nothing
    /// more is acknowledged until the log is attached anew (invariant 9).
    fn home_failure(&self, error: &LogError, during: During) -> Failure {
        if let LogError::Medium { source: MediumError::Cut { .. }, .. } = error
            && let Some(attachment) = self.attached()
        {
            attachment.home_cut(&error.to_string());
        }
        Failure::of(error, during)
    }

    /// Tells the home how large SQLite is about to make the database.
    pub fn hint(&self, bytes: u64) {
        if let Some(home) = self.attached_home() {
            // If there is no space, the write that finds none tells SQLite.
            let _ = home.hint(&self.base, bytes);
        }
    }

    /// A checkpoint has written all that it will. Counts it, and tells the home.
    pub fn checkpointed(&self) {
        if let Some(attachment) = self.active() {
            attachment.count(Counter::Checkpoints);
            attachment.look_for_log_now(|| self.has_no_name());
        }
        if let Some(home) = self.attached_home() {
            // A failure here comes again in a call that can report it.
            let _ = home.checkpointed(&self.base);
        }
    }

    /// SQLite's `xSync`. In WAL mode a checkpoint ends with it, and what the checkpoint has written is still
    /// in the log. The file is synced before the log forgets that, when it starts over or goes
    /// ([`Db::settle`]). Where writers wait for each other, checkpoints follow one another long before that.
    /// The last checkpoint of a database that is being closed is settled at once. The syncs of these two
    /// kinds are left out. The VFS's own connections do sync: they checkpoint beside the writers, which would
    /// wait for the sync later.
    pub fn sync_for_sqlite(&self, flags: c_int) -> c_int {
        if !self.is_helper()
            && !self.has_home()
            && self.active().is_some_and(|log| self.is_synced_later(&log))
        {
            return ffi::OK;
        }
        self.sync(flags)
    }

    /// Whether connections wait for WRITE, or the database is being closed. (With `locking_mode=EXCLUSIVE`
    /// SQLite maps no wal-index.) If a power loss takes the log's memory, only what was checkpointed is left,
    /// so that is synced.
    fn is_synced_later(&self, log: &Attachment) -> bool {
        let begun_later =
            log.locks().has_waiters() || self.lock.believed() >= Level::Exclusive && self.index.is_mapped();
        begun_later && log.log().guarantee() != Guarantee::ProcessCrash
    }

    /// Syncs the database file. A failure counts for every user of the log: the kernel reports it once, and a
    /// second sync that succeeds proves nothing (invariants 6 and 9).
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

    /// As [`Self::sync`], for the base's file alone, which holds the header.
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

    /// Makes the home put everything into the file, durable on return. Returns whether there is a home. No
    /// other connection may have the database: the guard is about to be lifted.
    pub fn drain(&self) -> Result<bool, Failure> {
        let Some(homed) = self.homed() else { return Ok(false) };
        homed.drain().map_err(|error| {
            self.note_sync(ffi::IOERR_FSYNC);
            self.home_failure(&error, During::Sync)
        })?;
        Ok(true)
    }

    /// The code for SQLite.
    pub fn answer(&self, result: Result<c_int, Failure>) -> c_int {
        result.unwrap_or_else(|failure| self.sqlite.fail(&failure))
    }

    /// Makes the database file durable, so that the log may forget what it holds. If a sync has failed
    /// before, in any process, writes everything committed anew first. `log` is the attachment's, where the
    /// caller has locked it.
    pub fn settle(
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
            match log {
                Some(log) => self.write_all_home(attachment, log)?,
                None => self.write_all_home(attachment, &mut attachment.log())?,
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

    /// Writes everything committed in the log to the database file, and cuts the file to the size of the
    /// database, as the last checkpoint does. The caller has EXCLUSIVE.
    pub(super) fn put_home_alone(&self, attachment: &Attachment) -> Result<(), Failure> {
        let pages = attachment.log().db_pages().map_err(|error| Failure::of(&error, During::Read))?;
        if pages == 0 {
            return Ok(());
        }
        attachment.before_home_write().map_err(|error| Failure::of(&error, During::Write))?;
        self.write_all_home(attachment, &mut attachment.log())?;
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

    /// Writes everything committed in a deleted log to the database file, and syncs the file, in exclusive
    /// locking mode. There no other connection can do it, and none reads an older state.
    pub fn save_alone(&self, attachment: &Attachment) -> Result<(), Failure> {
        attachment.before_home_write().map_err(|error| Failure::of(&error, During::Write))?;
        self.write_all_home(attachment, &mut attachment.log())?;
        match self.sync(ffi::SYNC_FULL) {
            ffi::OK => Ok(()),
            code => Err(Failure::new(code, format!("cannot sync {}", self.path.display()))),
        }
    }

    /// Writes every committed page to the database file. SQLite has done so before, and no connection reads
    /// an older state: SQLite is about to start the log over, or to delete it.
    fn write_all_home(&self, attachment: &Attachment, log: &mut Log) -> Result<(), Failure> {
        let failed = |error: LogError| Failure::of(&error, During::Read);
        let mut page = vec![0; log.page_bytes() as usize];
        for (page_number, frame) in log.committed_pages().map_err(failed)? {
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

    /// Refuses this rollback journal if the guard of its database is in doubt: after a power loss the guard
    /// might be there, and keep SQLite from rolling back.
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

    /// The size of the base VFS's `-wal` file; `None` when there is none.
    pub fn base_wal_bytes(&self) -> Result<Option<u64>, Failure> {
        let name = self.beside("-wal");
        // The base VFS is asked second: it says of an empty file that it does not exist.
        if let Ok(metadata) = std::fs::metadata(name) {
            return Ok(Some(metadata.len()));
        }
        match self.sqlite.parent.exists(self.names.wal.as_ptr()) {
            // The base VFS keeps the file elsewhere, and stock SQLite has to look into it.
            Ok(true) => Ok(Some(u64::MAX)),
            Ok(false) => Ok(None),
            Err(code) => {
                Err(Failure::new(code, format!("cannot examine the -wal of {}", self.path.display())))
            }
        }
    }
}

/// Notes a write to the database file when the write is over, however it ends.
struct Written<'a>(&'a Attachment);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.home_written();
    }
}

/// Reads as `xRead` does: bytes past the end are zeros, and the answer is then `IOERR_SHORT_READ`.
fn read_as_sqlite(file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<c_int, LogError> {
    let count = file.read(buf, offset)?;
    let Some(rest) = buf.get_mut(count..).filter(|rest| !rest.is_empty()) else { return Ok(ffi::OK) };
    rest.fill(0);
    Ok(ffi::IOERR_SHORT_READ)
}
