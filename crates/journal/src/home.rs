//! Where the pages of a log go home to: the database file, and what an engine may put before it.
//!
//! Most engines put nothing there: SQLite and this library then read and write the file itself. An engine that
//! keeps something of its own beside the file (log sectors that it applies to pages as they are read, a mapping of
//! the file in persistent memory) gives a [`Home`], and everything that concerns the pages goes by way of it
//! ([`Homed`]):
//!
//! | who | calls | holding |
//! | --- | --- | --- |
//! | SQLite, in a read transaction | `read`, `size` | SHARED |
//! | SQLite's checkpoint | `write`, `checkpointed`, `size`, `truncate`, `sync` | CHECKPOINT, and SHARED |
//! | SQLite without WAL, or in exclusive locking mode | all but `drain` | EXCLUSIVE |
//! | the VFS, before the log starts over | `sync`; after a failed sync `write` of all pages | WRITE |
//! | the VFS, before it lifts the guard | `read`, `sync`, `drain` | EXCLUSIVE, the mutex of the log |
//! | [`crate::offline`] | all | the database and the log to itself |
//!
//! SQLite's locks are those of the wal-index (WRITE, CHECKPOINT, read marks) and of the database file (SHARED,
//! EXCLUSIVE). So writers exclude each other across processes, but a `read` may run beside a `write` of other
//! pages, and beside a `write` of the same page whose bytes SQLite does not use. A home is called on any thread,
//! with and without the process's mutex of its log, and never takes that.
//!
//! # The header
//!
//! The guard (invariant 1) is always in the file itself, where everybody looks for it who has not attached the log: its
//! own bytes, [`guard::VERSIONS`] and [`guard::LOG_ID`], are never a home's. Of the rest of the first [`HEADER_BYTES`]
//! each home says [where](Home::header) they are. In the file: [`Homed`] reads and writes them there,
//! past the home. Shared with the file, which the home has mapped: everything goes by the home, the guard as it is in the
//! file included, as for a database without a home. Held: the home is handed page 1 whole, as it is without a guard, and
//! [`Homed`] lays the guard from the file over what it reads of it. The header in the file is then
//!
//! | when | header in the file |
//! | --- | --- |
//! | the guard goes on | that of the database, written anew, and synced before anything is committed: SQLite has made page 1 without a log |
//! | under the guard | as the home wrote it last ([`write_past_guard`]), or as it was; with the guard |
//! | SQLite changes page size or mode | what it writes, with the guard for that mode |
//! | after `drain` | that of the database, with the guard |
//! | the guard is lifted | that of the database |
//!
//! However old it is, magic number, page size and kind of guard are right in it; of the rest
//! nobody makes use: SQLite reads what may be old (its size, the bytes reserved in pages) before it has opened the WAL,
//! and looks again in page 1 when it has. A home keeps it whole: the file always has its first page. Should a power loss
//! tear that while the home writes it, the log is found by its owner, and drained (`offline`) from what the home shows.
//!
//! What survives a crash of all this is the home's affair; a log is never recovered by its home's help. It keeps to
//! the invariants as the file does: what is written came from durable log records (5), and the log starts over
//! only after `sync` (6).

mod files;
pub mod memory;

use std::sync::Arc;

use duralite_logfmt::guard::{self, HEADER_BYTES};
use duralite_medium::{MediumError, Nvm};

use crate::JournalError;
pub use crate::media::MemoryKind as HomeKind;
pub use files::{DatabaseAt, NoDatabase, OpenDatabase};

/// The page size, the guard, and how much of each page is not SQLite's: what is looked at in the file.
const SHAPE: std::ops::Range<usize> = 16..21;

/// An open database file, as it is: no home is before it.
///
/// Inside SQLite it is the file that the VFS below has open for one connection, whose locks would go with any other
/// descriptor that is closed.
pub trait DatabaseFile {
    /// Fills `buf` from byte `offset` on, as far as the file reaches; returns how many bytes that were. What is
    /// left of `buf` holds anything.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, JournalError>;

    /// Writes all of `bytes` from byte `offset` on. Not durable.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`. Any part of it may have been written then.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError>;

    /// Makes everything durable that has been written, by any descriptor. After an error nothing is known of what
    /// was written before, whatever a second call answers.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn sync(&self) -> Result<(), JournalError>;

    /// Its size in bytes.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn size(&self) -> Result<u64, JournalError>;

    /// Cuts it to so many bytes. Whether a shorter one is extended is up to the file. Not durable.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn truncate(&self, bytes: u64) -> Result<(), JournalError>;

    /// The file as memory, which everybody in this process shares who maps it: what is stored there is in the file, and
    /// the other way round. It is for reading only where this user may not write. The locks that SQLite has of
    /// the file stay when it goes ([`memory`]).
    ///
    /// # Errors
    /// `Medium`: the file system has no direct access, or not enough space for what the file has of holes; `Io`.
    fn map(&self, _memory: HomeKind) -> Result<Arc<dyn Nvm>, JournalError> {
        let source = MediumError::Unsupported { what: "mapping this database file" };
        Err(JournalError::Medium { path: "the database".into(), source })
    }
}

/// Where the header is of a database that has a home: see [this module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// In the file, and never the home's.
    File,
    /// The home's, like the pages; the file has an older one.
    Held,
    /// In the file, which is what the home reads and writes.
    Shared,
}

/// What an engine puts before the database file. The same for all connections of a process, each of which passes
/// its own `file`; who calls what under which lock is said in [this module](self).
///
/// Errors of `file` are passed on as they are: SQLite then gets the very code of its VFS. For an error of the home's
/// own SQLite gets the code of the error's kind, or the I/O error of the operation. After a failed `sync` or `drain`
/// everything committed is written anew before the log starts over or the guard is lifted.
///
/// With a home, SQLite maps nothing of the file: `xFetch` answers that there is no mapping, and it reads instead. Hints
/// at how large the file will be are kept from it, and told the home.
pub trait Home: Send + Sync {
    /// Where the header is: see [this module](self). It never changes for a log.
    fn header(&self) -> Header;

    /// Fills `buf` from byte `offset` on with what was written last, as far as [`Home::size`] reaches; returns how
    /// many bytes that were. Mostly whole pages; SQLite may ask for parts of one.
    ///
    /// # Errors
    /// Any; the statement that reads fails.
    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, JournalError>;

    /// Takes a page, which `read` gives back from now on, in every process; of the first one only what follows a
    /// header that is in the file. Not durable.
    ///
    /// # Errors
    /// Any; the checkpoint fails, and the page stays in the log.
    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), JournalError>;

    /// Makes durable what was written, through this home in any process, and what is in `file`, where the header may
    /// have been written past the home. On return `read` finds all of it after a power loss, without the log's help.
    ///
    /// # Errors
    /// Any; the log keeps what it holds.
    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), JournalError>;

    /// A checkpoint has written all that it will, which need not be all that is in the log; by whoever holds CHECKPOINT. Not
    /// every checkpoint calls `sync` after it.
    ///
    /// # Errors
    /// Any; nobody is told: it will show again.
    fn checkpointed(&self, _file: &dyn DatabaseFile) -> Result<(), JournalError> {
        Ok(())
    }

    /// The size in bytes of the database as `read` shows it.
    ///
    /// # Errors
    /// Any.
    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, JournalError>;

    /// SQLite is about to make the database so large, or so it believes: it may end, or crash, before that.
    ///
    /// # Errors
    /// Any; nobody is told: writing will show it.
    fn hint(&self, _file: &dyn DatabaseFile, _bytes: u64) -> Result<(), JournalError> {
        Ok(())
    }

    /// Cuts the database to so many bytes, at least a page: what was beyond is gone. Not durable.
    ///
    /// # Errors
    /// Any; the checkpoint, or the statement, fails.
    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), JournalError>;

    /// Puts everything into `file` that is not there as `read` shows it, and makes it durable: on return the file by
    /// itself is the database, of the same size, as a program without this library reads it, and survives a power
    /// loss. The guard stays as it is in `file`: a header that is held is put there by [`write_past_guard`]. The caller
    /// has everybody else kept from the database. A crash on the way leaves what `read` shows as it was; a second call
    /// changes nothing. What is in `file` then need not be held any more: so a log that stays another database's is not
    /// drained into a copy of it ([`crate::offline`] refuses that).
    ///
    /// # Errors
    /// Any; guard and log stay.
    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), JournalError>;
}

/// The database as everybody sees it, under the guard as it is on disk: `file`, through the home of its log if that has one.
pub struct Homed<'a> {
    file: &'a dyn DatabaseFile,
    home: Option<Arc<dyn Home>>,
}

impl<'a> Homed<'a> {
    /// The database in `file`; with no home the file itself.
    #[must_use]
    pub fn new(file: &'a dyn DatabaseFile, home: Option<Arc<dyn Home>>) -> Self {
        Self { file, home }
    }

    /// Where a home holds the header: puts that of a first page into the file if those who have not attached the log
    /// would see a wrong one there. Outside of WAL mode SQLite changes the page size, and the mode.
    fn renew_header(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
        let Some(new) = bytes.get(..HEADER_BYTES).filter(|_| offset == 0) else { return Ok(()) };
        let mut old = [0; HEADER_BYTES];
        let length = self.file.read(&mut old, 0)?;
        if length < HEADER_BYTES || old[SHAPE] != new[SHAPE] {
            return self.file.write(new, 0);
        }
        Ok(())
    }

    /// Has the home put everything into the file; see [`Home::drain`]. Without a home nothing is done: then the caller
    /// has synced the file.
    ///
    /// # Errors
    /// As [`Home::drain`].
    pub fn drain(&self) -> Result<(), JournalError> {
        self.home.as_ref().map_or(Ok(()), |home| home.drain(self.file))
    }
}

/// Writes what a home holds into the file from byte `offset` on, but for the guard's own bytes: those stay as they are
/// there, on disk as well, whatever part of this a power loss leaves. For a caller who keeps the guard from being put
/// on or lifted meanwhile, as whoever has SHARED. Not durable.
///
/// # Errors
/// As [`DatabaseFile::read`] and [`DatabaseFile::write`].
pub fn write_past_guard(file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
    if !guard::touches(offset, bytes.len()) {
        return file.write(bytes, offset);
    }
    let mut bytes = bytes.to_vec();
    show_guard(file, &mut bytes, offset)?;
    file.write(&bytes, offset)
}

/// Lays the guard, as it is in the file, over what belongs at `offset`.
fn show_guard(file: &dyn DatabaseFile, bytes: &mut [u8], offset: u64) -> Result<(), JournalError> {
    let mut header = [0; HEADER_BYTES];
    let length = file.read(&mut header, 0)?;
    guard::show(&header[..length], offset, bytes);
    Ok(())
}

/// How many of `len` bytes from `offset` on are the header's.
fn of_header(len: usize, offset: u64) -> usize {
    let left = (HEADER_BYTES as u64).saturating_sub(offset);
    usize::try_from(left).map_or(len, |left| left.min(len))
}

impl DatabaseFile for Homed<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, JournalError> {
        let Some(home) = &self.home else { return self.file.read(buf, offset) };
        if home.header() != Header::File {
            let count = home.read(self.file, buf, offset)?;
            if home.header() == Header::Held && guard::touches(offset, count) {
                show_guard(self.file, &mut buf[..count], offset)?;
            }
            return Ok(count);
        }
        let (header, rest) = buf.split_at_mut(of_header(buf.len(), offset));
        let count = if header.is_empty() { 0 } else { self.file.read(header, offset)? };
        if count < header.len() || rest.is_empty() {
            return Ok(count);
        }
        Ok(count + home.read(self.file, rest, offset + count as u64)?)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
        let Some(home) = &self.home else { return self.file.write(bytes, offset) };
        if home.header() != Header::File {
            if home.header() == Header::Shared || !guard::touches(offset, bytes.len()) {
                return home.write(self.file, bytes, offset);
            }
            let mut bare = bytes.to_vec();
            guard::unmask(offset, &mut bare);
            self.renew_header(bytes, offset)?;
            return home.write(self.file, &bare, offset);
        }
        let (header, rest) = bytes.split_at(of_header(bytes.len(), offset));
        if !header.is_empty() {
            self.file.write(header, offset)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        home.write(self.file, rest, offset + header.len() as u64)
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.home.as_ref().map_or_else(|| self.file.sync(), |home| home.sync(self.file))
    }

    fn size(&self) -> Result<u64, JournalError> {
        self.home.as_ref().map_or_else(|| self.file.size(), |home| home.size(self.file))
    }

    fn truncate(&self, bytes: u64) -> Result<(), JournalError> {
        self.home.as_ref().map_or_else(|| self.file.truncate(bytes), |home| home.truncate(self.file, bytes))
    }
}

#[cfg(test)]
mod tests;
