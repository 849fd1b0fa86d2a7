//! Rollback journals: an engine may keep SQLite's `-journal`, as it keeps SQLite's `-wal`.
//!
//! In the journal modes DELETE, TRUNCATE and PERSIST, SQLite copies the pages that a transaction is about to change to
//! a journal, syncs the journal, and then changes the database. To commit, SQLite invalidates the journal: it deletes
//! the journal, truncates it to nothing, or overwrites its header with zeros. A journal that a crash leaves is *hot*:
//! the next connection that reads the database writes the pages back. An engine with a [`RollbackJournal`] stores the
//! journal's bytes, but does not interpret them. Only SQLite interprets them, and [`play_back`], which rolls a
//! transaction back without SQLite.
//!
//! A journal in a log is valid only while the guard names that log (invariant 21), so a database without a guard has no such
//! journal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_format::guard::JournalKind;
use duralite_format::{LogId, guard};

use crate::LogError;
use crate::engine::home::DatabaseFile;

/// The rollback journal of one database. SQLite believes that the journal is a file, but the log stores it. All processes
/// that have the log attached see the same journal. Callers may call the methods on any thread, and need not hold their
/// process's mutex of the log.
pub trait RollbackJournal: Send + Sync {
    /// Returns the size of the journal in bytes; `None` while there is no journal. The caller holds SHARED.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn size(&self) -> Result<Option<u64>, LogError>;

    /// Creates an empty journal. The caller holds RESERVED, and no journal exists yet. An empty journal is never hot.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` become `SQLITE_FULL`.
    fn create(&self) -> Result<(), LogError>;

    /// Reads the journal from byte `offset` on into `buf`, as far as the journal reaches. Returns the number of bytes
    /// read.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError>;

    /// Writes all of `bytes` into the journal, beginning at byte `offset`. The offset is within the journal or at its
    /// end, but SQLite may leave a gap up to the next sector. The content of the gap is undefined. The bytes are
    /// durable after [`RollbackJournal::sync`]. The first 8 bytes of the journal decide whether it is hot, so a write
    /// of these bytes reaches the medium as a whole or not at all.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` become `SQLITE_FULL`: earlier writes stay in the journal.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError>;

    /// Truncates the journal to `bytes` bytes. The truncation is durable on return, because SQLite commits a transaction by
    /// truncating the journal to nothing.
    ///
    /// # Errors
    /// Any; the journal may or may not have been truncated.
    fn truncate(&self, bytes: u64) -> Result<(), LogError>;

    /// Makes all writes to the journal durable.
    ///
    /// # Errors
    /// Any; SQLite then writes nothing to the database.
    fn sync(&self) -> Result<(), LogError>;

    /// Deletes the journal, if there is one. The deletion is durable on return, because SQLite commits a transaction by
    /// deleting the journal.
    ///
    /// # Errors
    /// Any; the journal may or may not still exist.
    fn delete(&self) -> Result<(), LogError>;
}

/// Returns whether a journal may be hot, by SQLite's own criterion: an empty journal, or one that begins with a zero
/// byte, is not hot.
///
/// # Errors
/// As [`RollbackJournal::read`].
pub fn counts(journal: &Arc<dyn RollbackJournal>) -> Result<bool, LogError> {
    if journal.size()?.is_none_or(|bytes| bytes == 0) {
        return Ok(false);
    }
    let mut first = [0];
    Ok(journal.read(&mut first, 0)? == 1 && first != [0])
}

// Rolls a transaction back from its journal as SQLite would, but without SQLite.
//
// A journal is a sequence of segments, each of which begins at a multiple of the sector size. A segment begins with a header
// (magic number, number of records, seed of the checksums, pages of the database before the transaction, sector size, page
// size). Its records (page number, page, checksum) begin at the next sector. The journal may end with the name of a
// *super-journal*: such a journal is hot only as long as a file of that name exists. Numbers are big-endian. The first header
// or record that is not valid ends the journal. SQLite has not synced any record from there on, so it has not yet changed the
// pages of these records in the database.

/// The magic number with which each header in a journal begins.
pub(crate) const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
const HEADER_BYTES: usize = 28;
/// The first of the bytes on which SQLite takes its locks. SQLite never uses the page that contains them.
const PENDING_BYTE: u64 = 0x4000_0000;
/// Stands in a header for the number of records, until SQLite completes the header. The records then extend to the
/// journal's end.
const UNKNOWN: u32 = u32::MAX;
/// A page's checksum is a sum of single bytes of the page, this many bytes apart. The last of these bytes is this far
/// before the page's end.
const CHECKSUM_STRIDE: usize = 200;
/// The size in bytes of what follows the name of a super-journal: the length and the checksum of the name, and the magic
/// number.
pub(crate) const SUPER_TAIL: u64 = 16;
/// The most bytes in the name of a super-journal.
const MAX_SUPER_NAME: u64 = 4096;

/// The result of [`play_back`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlayedBack {
    /// The number of pages written to the database.
    pub pages: usize,
    /// Size of the database in pages. `None` if nothing was rolled back, because the transaction is committed or the journal is
    /// not valid.
    pub db_pages: Option<u32>,
    /// The super-journal that the journal named. The super-journal stays, because another database may need it.
    pub super_journal: Option<PathBuf>,
}

/// Rolls the database back if the journal is hot. Then deletes the journal, whether it was hot or not. The pages go
/// through the home, if there is one, to `file`, which is the database file itself. Page 1 gets the guard of the log
/// `id`. The database is durable before the journal is deleted, and the deletion is durable on return. If a crash comes
/// in between, the caller can play the journal back again. The caller must be the only user of the database.
///
/// # Errors
/// Those of `journal` and `file`.
pub fn play_back(
    journal: &dyn RollbackJournal,
    file: &dyn DatabaseFile,
    id: LogId,
) -> Result<PlayedBack, LogError> {
    let mut done = PlayedBack { pages: 0, db_pages: None, super_journal: None };
    let Some(bytes) = journal.size()? else { return Ok(done) };
    let reader = Reader { journal, bytes };
    done.super_journal = reader.super_journal()?;
    let counts = done.super_journal.as_deref().is_none_or(is_there);
    if counts && let Some(first) = reader.first_header()? {
        let mut playing = Playing { reader: &reader, file, id, first, done: &mut done };
        playing.run()?;
        file.sync()?;
    }
    journal.delete()?;
    Ok(done)
}

/// Returns whether a file exists, as SQLite's unix VFS defines it: an empty file does not exist.
fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
}

#[derive(Debug, Clone, Copy)]
struct Header {
    records: u32,
    seed: u32,
    db_pages: u32,
    sector_bytes: u64,
    page_bytes: usize,
}

struct Reader<'a> {
    journal: &'a dyn RollbackJournal,
    bytes: u64,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

impl Reader<'_> {
    /// Fills `buf` with the journal's bytes from `offset` on. Returns whether the journal has all of these bytes.
    fn fill(&self, buf: &mut [u8], offset: u64) -> Result<bool, LogError> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.bytes) {
            return Ok(false);
        }
        Ok(self.journal.read(buf, offset)? == buf.len())
    }

    /// Reads the header at `offset`; returns `None` if there is none. The caller uses the sizes in the journal's first
    /// header, and ignores those in later headers.
    fn header(&self, offset: u64) -> Result<Option<Header>, LogError> {
        let mut bytes = [0; HEADER_BYTES];
        if !self.fill(&mut bytes, offset)? || !bytes.starts_with(&MAGIC) {
            return Ok(None);
        }
        Ok(Some(Header {
            records: word(&bytes, 8),
            seed: word(&bytes, 12),
            db_pages: word(&bytes, 16),
            sector_bytes: u64::from(word(&bytes, 20)),
            page_bytes: word(&bytes, 24) as usize,
        }))
    }

    fn first_header(&self) -> Result<Option<Header>, LogError> {
        Ok(self.header(0)?.filter(|header| {
            let page_bytes = u32::try_from(header.page_bytes).unwrap_or(0);
            guard::page_size_is_valid(page_bytes)
                && header.sector_bytes.is_power_of_two()
                && (32..=65536).contains(&header.sector_bytes)
                && header.sector_bytes <= self.bytes
        }))
    }

    /// Reads the name of the super-journal from the journal's last bytes.
    fn super_journal(&self) -> Result<Option<PathBuf>, LogError> {
        let mut tail = [0; SUPER_TAIL as usize];
        let Some(at) = self.bytes.checked_sub(SUPER_TAIL) else { return Ok(None) };
        if !self.fill(&mut tail, at)? || tail[8..] != MAGIC {
            return Ok(None);
        }
        let len = u64::from(word(&tail, 0));
        if len == 0 || len > MAX_SUPER_NAME || len > at {
            return Ok(None);
        }
        let mut name = vec![0; usize::try_from(len).unwrap_or(0)];
        if !self.fill(&mut name, at - len)? {
            return Ok(None);
        }
        // SQLite adds up the characters as signed numbers.
        let sum = name.iter().fold(0_u32, |sum, byte| sum.wrapping_add_signed(i32::from(*byte as i8)));
        // If the checksum is wrong, SQLite did not finish writing the name. So the transaction has to be rolled back.
        if sum != word(&tail, 4) || name.contains(&0) {
            return Ok(None);
        }
        Ok(Some(PathBuf::from(OsStr::from_bytes(&name))))
    }
}

struct Playing<'a> {
    reader: &'a Reader<'a>,
    file: &'a dyn DatabaseFile,
    id: LogId,
    first: Header,
    done: &'a mut PlayedBack,
}

impl Playing<'_> {
    fn run(&mut self) -> Result<(), LogError> {
        let Header { db_pages, sector_bytes, page_bytes, .. } = self.first;
        self.resize(db_pages, page_bytes)?;
        self.done.db_pages = Some(db_pages);
        let mut offset = 0;
        while let Some(header) = self.reader.header(offset)? {
            let records = offset + sector_bytes;
            if records > self.reader.bytes {
                break;
            }
            let Some(end) = self.segment(&header, records)? else { break };
            offset = end.next_multiple_of(sector_bytes);
        }
        Ok(())
    }

    /// Gives the database the size that it had before the transaction.
    fn resize(&self, db_pages: u32, page_bytes: usize) -> Result<(), LogError> {
        let (size, wanted) = (self.file.size()?, u64::from(db_pages) * page_bytes as u64);
        if size > wanted {
            return self.file.truncate(wanted);
        }
        match wanted.checked_sub(page_bytes as u64) {
            Some(last) if size <= last => self.file.write(&vec![0; page_bytes], last),
            _ => Ok(()),
        }
    }

    /// Plays back one segment, whose records begin at `offset`. Returns where the records end, or `None` if the journal ends in
    /// this segment.
    fn segment(&mut self, header: &Header, offset: u64) -> Result<Option<u64>, LogError> {
        let page_bytes = self.first.page_bytes;
        let record_bytes = page_bytes as u64 + 8;
        let room = self.reader.bytes.saturating_sub(offset) / record_bytes;
        let records = if header.records == UNKNOWN { room } else { u64::from(header.records) };
        let mut record = vec![0; page_bytes + 8];
        for number in 0..records {
            let at = offset + number * record_bytes;
            if !self.reader.fill(&mut record, at)? || !self.record(header.seed, &mut record)? {
                return Ok(None);
            }
        }
        Ok(Some(offset + records * record_bytes))
    }

    /// Writes the page of a record back. Returns `false` if the record is not valid.
    fn record(&mut self, seed: u32, record: &mut [u8]) -> Result<bool, LogError> {
        let page_bytes = self.first.page_bytes;
        let page_number = word(record, 0);
        let sum = word(record, page_bytes + 4);
        let page = &mut record[4..page_bytes + 4];
        let pending = PENDING_BYTE / page_bytes as u64 + 1;
        if page_number == 0 || u64::from(page_number) == pending {
            return Ok(false);
        }
        // The transaction had appended this page. `resize` has already truncated the database, so the page is gone.
        if page_number > self.first.db_pages {
            return Ok(true);
        }
        if checksum(seed, page) != sum {
            return Ok(false);
        }
        if page_number == 1 {
            let kind = guard::kind_of_page(0, page).unwrap_or(JournalKind::Rollback);
            guard::mask_as(kind, 0, page, self.id);
        }
        self.file.write(page, u64::from(page_number - 1) * page_bytes as u64)?;
        self.done.pages += 1;
        Ok(true)
    }
}

fn checksum(seed: u32, page: &[u8]) -> u32 {
    let last = page.len().saturating_sub(CHECKSUM_STRIDE);
    (1..=last)
        .rev()
        .step_by(CHECKSUM_STRIDE)
        .filter_map(|at| page.get(at))
        .fold(seed, |sum, byte| sum.wrapping_add(u32::from(*byte)))
}
