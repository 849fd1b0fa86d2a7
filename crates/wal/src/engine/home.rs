//! The home: the layer through which this library and SQLite read and write the pages of a database. The home is the
//! database file, or what an engine puts in front of that file.
//!
//! Most engines put nothing in front of the file, so SQLite and this library read and write the file itself. Some engines
//! store pages, or parts of pages, outside the file: in log sectors that are applied to pages as they are read, or in a
//! mapping of the file in persistent memory. Such an engine supplies a [`Home`], and every access to pages goes through that
//! home ([`Homed`]):
//!
//! | who | calls | locks that the caller holds |
//! | --- | --- | --- |
//! | SQLite, in a read transaction | `read`, `size` | SHARED |
//! | SQLite's checkpoint | `write`, `checkpointed`, `size`, `truncate`, `sync` | CHECKPOINT, and SHARED |
//! | SQLite without WAL, or in exclusive locking mode | all but `drain` | EXCLUSIVE |
//! | the VFS, before the log starts over | `sync`; if that fails, `write` of all pages | WRITE |
//! | the VFS, before it lifts the guard | `read`, `sync`, `drain` | EXCLUSIVE, the mutex of the log |
//! | [`crate::log::offline`] | all | the database and the log to itself |
//!
//! SQLite's locks are those of the wal-index (WRITE, CHECKPOINT, read marks) and of the database file (SHARED,
//! EXCLUSIVE). So writers exclude each other across processes. But a `read` may run while another process runs `write`
//! for other pages, or even for the same page. In the second case SQLite does not use the bytes that `read` returns. A
//! caller may call a home from any thread, with or without its process's mutex of the log. A home never takes that
//! mutex itself.
//!
//! # The header
//!
//! The guard (invariant 1) is always in the file itself, because every process that has not attached the log looks for it
//! there. The guard's own bytes, [`guard::VERSIONS`] and [`guard::LOG_ID`], never belong to a home. For the rest of the
//! first [`HEADER_BYTES`], each home says [where](Home::header) the newest version is:
//!
//! - In the file: [`Homed`] reads and writes the header there, and bypasses the home.
//! - Shared with the file, because the home has mapped the file. Every access goes through the home, and the guard is
//!   visible in the header, as for a database without a home.
//! - Held: [`Homed`] gives the home the whole of page 1, without a guard. When [`Homed`] reads page 1 from the home, it
//!   copies the guard of the file into that page.
//!
//! If the home holds the header, the file has an older header:
//!
//! | when | the header in the file |
//! | --- | --- |
//! | the guard is put on | that of the database, because SQLite has written page 1 without a log; it is written again, and synced, before the first commit |
//! | under the guard | what the home last wrote ([`write_past_guard`]), or what the file had before; in both cases with the guard |
//! | SQLite changes the page size or mode | what SQLite writes, with the guard for that mode |
//! | after `drain` | that of the database, with the guard |
//! | the guard is lifted | that of the database |
//!
//! Even an old header in the file has the correct magic number, page size and kind of guard. Nothing relies on its
//! other fields. SQLite reads fields that may be old (the size of the database, the bytes reserved in pages) only
//! before it has opened the WAL. Once it has opened the WAL, it reads these fields again from page 1. A home makes sure
//! that the file always has its whole first page, and so a complete header. If a power loss tears the header while the
//! home writes it, the file may no longer name the log. But the log names its database, so Duralite still finds the
//! log, and `offline` drains it with the header that the home holds.
//!
//! This library recovers a log without its home, so recovery of the log cannot repair the home, and the home must survive a
//! crash by its own means. A home obeys the same invariants as the file: callers write to it only pages whose log records
//! are durable (5), and the log starts over only after `sync` (6).

mod files;
pub mod memory;

use std::sync::Arc;

use duralite_format::guard::{self, HEADER_BYTES};
use duralite_medium::{MediumError, Nvm};

use crate::LogError;
pub use crate::engine::media::MemoryKind as HomeKind;
pub use files::{DatabaseAt, NoDatabase, OpenDatabase};

/// The fields that readers look at in the file: the page size, the guard, and the reserved bytes of each page.
const SHAPE: std::ops::Range<usize> = 16..21;

/// An open database file itself, without a home in front of it.
///
/// Inside SQLite, this is the file that the base VFS has opened for one connection. No code opens that file a second time,
/// because closing another descriptor of the file would release that connection's locks.
pub trait DatabaseFile {
    /// Reads the file from byte `offset` on into `buf`, as far as the file reaches, and returns how many bytes it read.
    /// The rest of `buf` has no defined contents.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError>;

    /// Writes all of `bytes` into the file, beginning at byte `offset`. The bytes are not durable on return.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`. Any part of `bytes` may then have been written.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError>;

    /// Makes durable everything that was written through any descriptor. After an error it is not known which earlier
    /// writes are durable, even if a second call succeeds.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn sync(&self) -> Result<(), LogError>;

    /// Returns the file's size in bytes.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn size(&self) -> Result<u64, LogError>;

    /// Truncates the file to `bytes`. If the file is shorter, the call may or may not extend it. The new size is not
    /// durable on return.
    ///
    /// # Errors
    /// `Io`, `BaseVfs`.
    fn truncate(&self, bytes: u64) -> Result<(), LogError>;

    /// Maps the file as memory. All threads of this process that map the file share one mapping. A store to the mapping
    /// changes the file, and a write to the file changes the mapping. The mapping is read-only if this user may not write
    /// the file. Dropping the mapping does not release the locks that SQLite holds on the file ([`memory`]).
    ///
    /// # Errors
    /// `Medium`: the file system has no direct access, or too little space to fill the file's holes; `Io`.
    fn map(&self, _memory: HomeKind) -> Result<Arc<dyn Nvm>, LogError> {
        let source = MediumError::Unsupported { what: "mapping this database file" };
        Err(LogError::Medium { path: "the database".into(), source })
    }
}

/// Where the header of a database with a home is: see [this module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// In the file. The header never belongs to the home.
    File,
    /// In the home, like the pages. The file has an older header.
    Held,
    /// In the file. The home reads and writes it there.
    Shared,
}

/// The layer that an engine puts in front of the database file. All connections of a process share one home, and each
/// connection passes its own `file`. [This module](self) says which caller uses which method under which lock.
///
/// A home passes errors of `file` on unchanged, so SQLite gets the result code of its own VFS. For an error of the home
/// itself, SQLite gets the result code for the error's kind, or the I/O error of the operation if the kind has no code.
/// After a failed `sync` or `drain`, the caller rewrites everything committed before it starts the log over or lifts
/// the guard.
///
/// With a home, SQLite does not map the file into memory: `xFetch` returns no mapping, so SQLite reads instead. The VFS
/// passes SQLite's hints about the size of the file to the home, not to the file.
pub trait Home: Send + Sync {
    /// Returns where the header is: see [this module](self). The answer never changes for a log.
    fn header(&self) -> Header;

    /// Reads the newest bytes of the database from byte `offset` on into `buf`, as far as [`Home::size`] reaches.
    /// Returns how many bytes it read. Callers mostly read whole pages; SQLite may ask for part of a page.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, LogError>;

    /// Writes a page. From then on `read` returns the new page in every process. If the header is in the file, `bytes`
    /// for page 1 begin after the header. The page is not durable on return.
    ///
    /// # Errors
    /// Any; the checkpoint fails, and the page stays in the log.
    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), LogError>;

    /// Makes durable what any process has written through this home. Makes `file` durable too, because [`Homed`] may
    /// have written the header directly to `file`. After this call, `read` finds all of these pages even after a power
    /// loss, even without the log.
    ///
    /// # Errors
    /// Any; the log keeps what it holds.
    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), LogError>;

    /// Tells the home that a checkpoint has written its last page. The checkpoint need not have written all pages in the
    /// log. The caller holds CHECKPOINT. Not every checkpoint calls `sync` afterwards.
    ///
    /// # Errors
    /// Any; the caller ignores the error, because a lasting problem causes another error later.
    fn checkpointed(&self, _file: &dyn DatabaseFile) -> Result<(), LogError> {
        Ok(())
    }

    /// Returns the size in bytes of the database that `read` reads.
    ///
    /// # Errors
    /// Any.
    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, LogError>;

    /// Tells the home that SQLite expects to make the database this large. SQLite may stop or crash before the database
    /// has that size.
    ///
    /// # Errors
    /// Any; the caller ignores the error, because the write will then fail too.
    fn hint(&self, _file: &dyn DatabaseFile, _bytes: u64) -> Result<(), LogError> {
        Ok(())
    }

    /// Truncates the database to `bytes` (at least one page), and discards the rest. The new size is not durable on
    /// return.
    ///
    /// # Errors
    /// Any; the checkpoint, or the statement, fails.
    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), LogError>;

    /// Writes to `file` everything that `read` returns and `file` does not have yet, and makes `file` durable. After
    /// that, a program without this library finds the whole database in `file`, even after a power loss. The guard in
    /// `file` stays, because a home that holds the header writes it with [`write_past_guard`]. The caller excludes all
    /// other users of the database. If the process crashes during the call, `read` still returns the same pages. A
    /// repeated call changes nothing. After the call the home may discard its own copies of the pages, because `file`
    /// has them. So a caller must not drain the home into a copy of the database while the original still needs the log
    /// ([`crate::log::offline`] refuses to).
    ///
    /// # Errors
    /// Any; the guard and the log stay.
    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), LogError>;
}

/// The database as its users see it. All access to `file` goes through the log's home, if there is one. The view
/// includes the guard as it is on disk.
pub struct Homed<'a> {
    file: &'a dyn DatabaseFile,
    home: Option<Arc<dyn Home>>,
}

impl<'a> Homed<'a> {
    /// Makes the view of the database in `file` through `home`. Without a home, the view is the file itself.
    #[must_use]
    pub fn new(file: &'a dyn DatabaseFile, home: Option<Arc<dyn Home>>) -> Self {
        Self { file, home }
    }

    /// Writes `bytes`, which begin page 1, to the file too, if they change fields of the header that other processes
    /// read in the file. SQLite changes such a field when it changes the page size or the mode outside of WAL mode. The
    /// caller has a home that holds the header.
    fn renew_header(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let Some(new) = bytes.get(..HEADER_BYTES).filter(|_| offset == 0) else { return Ok(()) };
        let mut old = [0; HEADER_BYTES];
        let length = self.file.read(&mut old, 0)?;
        if length < HEADER_BYTES || old[SHAPE] != new[SHAPE] {
            return self.file.write(new, 0);
        }
        Ok(())
    }

    /// Makes the home write everything to the file; see [`Home::drain`]. Does nothing without a home, because in that
    /// case the caller has already synced the file.
    ///
    /// # Errors
    /// As [`Home::drain`].
    pub fn drain(&self) -> Result<(), LogError> {
        self.home.as_ref().map_or(Ok(()), |home| home.drain(self.file))
    }
}

/// Writes a home's `bytes` to the file at the offset `offset`, but leaves the guard's own bytes as they are on disk.
/// They stay unchanged even if a power loss tears this write. The caller must prevent others from putting the guard on
/// or lifting it during the call, for example by holding SHARED. The bytes are not durable on return.
///
/// # Errors
/// As [`DatabaseFile::read`] and [`DatabaseFile::write`].
pub fn write_past_guard(file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), LogError> {
    if !guard::touches(offset, bytes.len()) {
        return file.write(bytes, offset);
    }
    let mut bytes = bytes.to_vec();
    show_guard(file, &mut bytes, offset)?;
    file.write(&bytes, offset)
}

/// Copies the guard from the file into `bytes`, as far as `bytes` contains the guard's place. `bytes` begins at byte
/// `offset` of page 1.
fn show_guard(file: &dyn DatabaseFile, bytes: &mut [u8], offset: u64) -> Result<(), LogError> {
    let mut header = [0; HEADER_BYTES];
    let length = file.read(&mut header, 0)?;
    guard::show(&header[..length], offset, bytes);
    Ok(())
}

/// Returns how many of the `len` bytes from `offset` on belong to the header.
fn of_header(len: usize, offset: u64) -> usize {
    let left = (HEADER_BYTES as u64).saturating_sub(offset);
    usize::try_from(left).map_or(len, |left| left.min(len))
}

impl DatabaseFile for Homed<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
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

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
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

    fn sync(&self) -> Result<(), LogError> {
        self.home.as_ref().map_or_else(|| self.file.sync(), |home| home.sync(self.file))
    }

    fn size(&self) -> Result<u64, LogError> {
        self.home.as_ref().map_or_else(|| self.file.size(), |home| home.size(self.file))
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.home.as_ref().map_or_else(|| self.file.truncate(bytes), |home| home.truncate(self.file, bytes))
    }
}

#[cfg(test)]
mod tests;
