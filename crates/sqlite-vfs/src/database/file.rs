//! The database file: which file it is, and how engines use it.

use std::ffi::{CString, c_int};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES};
use duralite_locks::file::FileLock;
use duralite_medium::process::off_standard_streams;
use duralite_medium::{Nvm, in_words};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::home::{DatabaseFile, HomeKind, memory};
use duralite_wal::{DatabaseIdentity, LogError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::errors::{During, Failure};
use crate::sqlite::base::{BaseFile, BaseVfs, OwnFile};

/// The file that the base VFS has opened, even if its path leads elsewhere by now.
pub struct OpenedFile {
    /// A descriptor that only identifies the file. [`named_file`] opens it with `O_PATH`, so closing it
    /// releases none of the locks that SQLite holds on the file. `None` if the path already led to another
    /// file; an error if the descriptor could not be opened.
    named: Result<Option<OwnedFd>, Errno>,
    /// Whether this connection has mapped the file at some time.
    mapped: AtomicBool,
}

impl OpenedFile {
    /// Identifies the file that the base VFS has just opened by this path.
    pub fn of(base: BaseFile, path: &Path) -> Self {
        Self { named: named_file(base, path), mapped: AtomicBool::new(false) }
    }

    fn descriptor(&self) -> Option<&OwnedFd> {
        self.named.as_ref().ok().and_then(Option::as_ref)
    }

    /// Returns the identity by which a log recognises this file.
    pub fn identity(&self, path: &Path) -> Result<DatabaseIdentity, Failure> {
        let shown = path.display();
        match &self.named {
            Ok(Some(file)) => {
                DatabaseIdentity::of_open(file, path).map_err(|error| Failure::of(&error, During::Open))
            }
            // Not *busy*, because no waiting helps.
            Ok(None) => Err(Failure::new(
                ffi::READONLY_DBMOVED,
                format!("{shown} was replaced while it was being opened; open it again"),
            )),
            Err(errno) => Err(Failure::cannot_open(format!(
                "cannot open {shown}: {}; then open it again",
                in_words(&(*errno).into())
            ))),
        }
    }

    /// Returns whether the file has no name any more, and only open descriptors lead to it.
    pub fn has_no_name(&self) -> bool {
        let links = self.descriptor().and_then(|file| rustix::fs::fstat(file).ok());
        links.is_some_and(|stat| stat.st_nlink == 0)
    }

    /// Returns the file, for code that attaches a log and may map the file. A mapping needs a descriptor. The
    /// descriptor stays open until some connection to the same file is closed ([`Self::close_left_mapping`]).
    pub fn mappable<'a>(&'a self, base: BaseFile, path: &'a Path) -> Mappable<'a> {
        Mappable { base, file: self, path }
    }

    /// Closes the descriptor that a mapping of the file has left open. A connection that is being closed and
    /// holds no lock calls this. Closing any descriptor of a file releases all POSIX locks that this process
    /// holds on the file. So if any connection holds a lock, in this process or another, the descriptor stays
    /// open until another connection is closed.
    pub fn close_left_mapping(&self, lock: &FileLock<BaseFile>, was_served: bool) {
        let may_have_mapped = was_served || self.mapped.load(Ordering::Relaxed);
        let Some(file) = self.descriptor().filter(|_| may_have_mapped) else { return };
        if !memory::is_left_open(file) {
            return;
        }
        let Ok(mut own) = lock.own() else { return };
        if matches!(own.held_mut().exclusive(|_| false), Ok(Some(_))) {
            memory::close_left(file);
        }
    }
}

/// Opens a descriptor that identifies the file that the base VFS has just opened by this path. Returns `None`
/// when the path leads to another file by now.
fn named_file(base: BaseFile, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let file = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => {
            off_standard_streams(file).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?
        }
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok((!base.has_moved()).then_some(file))
}

/// Returns whether the file with this path is a database that names this log. If that is not known, the
/// answer is `true`, because the answer decides whether the caller may delete the log.
pub fn names_log(vfs: BaseVfs, path: &Path, id: LogId) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // Look at the path first, because the base VFS reports a file that it cannot open to SQLite's error log.
    if matches!(path.try_exists(), Ok(false)) {
        return false;
    }
    let Some(file) = OwnFile::open(vfs, &name) else { return true };
    let mut header = [0; HEADER_BYTES];
    match file.base().read(&mut header, 0) {
        ffi::OK => match guard::inspect(&header) {
            DatabaseHeader::Guarded { log_id, .. } => log_id == id,
            found => found == DatabaseHeader::Damaged,
        },
        code => code != ffi::IOERR_SHORT_READ,
    }
}

/// The base VFS's file, for an engine that may map it.
pub struct Mappable<'a> {
    base: BaseFile,
    file: &'a OpenedFile,
    path: &'a Path,
}

impl DatabaseFile for Mappable<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        DatabaseFile::read(&self.base, buf, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        DatabaseFile::write(&self.base, bytes, offset)
    }

    fn sync(&self) -> Result<(), LogError> {
        DatabaseFile::sync(&self.base)
    }

    fn size(&self) -> Result<u64, LogError> {
        DatabaseFile::size(&self.base)
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        DatabaseFile::truncate(&self.base, bytes)
    }

    fn map(&self, memory: HomeKind) -> Result<Arc<dyn Nvm>, LogError> {
        let Some(file) = self.file.descriptor() else {
            let what = "it was replaced while it was being opened; open it again";
            return Err(LogError::Busy { path: self.path.to_path_buf(), what });
        };
        self.file.mapped.store(true, Ordering::Relaxed);
        memory::map(file, self.path, memory)
    }
}

/// The file, used through SQLite's own descriptor. Closing another descriptor of the file would release
/// SQLite's locks.
impl DatabaseFile for BaseFile {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        match (*self).read(buf, offset) {
            ffi::OK => Ok(buf.len()),
            ffi::IOERR_SHORT_READ => {
                let left = DatabaseFile::size(self)?.saturating_sub(offset);
                Ok(usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len())))
            }
            code => Err(LogError::BaseVfs { op: "read", code }),
        }
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        succeeded("write", (*self).write(bytes, offset))
    }

    fn sync(&self) -> Result<(), LogError> {
        succeeded("sync", (*self).sync(ffi::SYNC_FULL))
    }

    fn size(&self) -> Result<u64, LogError> {
        (*self).size().map_err(|code| LogError::BaseVfs { op: "size", code })
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        if DatabaseFile::size(self)? <= bytes {
            return Ok(());
        }
        succeeded("truncate", (*self).truncate(i64::try_from(bytes).unwrap_or(i64::MAX)))
    }
}

fn succeeded(op: &'static str, code: c_int) -> Result<(), LogError> {
    if code == ffi::OK { Ok(()) } else { Err(LogError::BaseVfs { op, code }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// *Busy* would make the application try again with the same connection. No such attempt succeeds: the
    /// application must open the database again.
    #[test]
    fn a_file_that_was_replaced_while_it_was_opened_is_not_busy() {
        let opened = OpenedFile { named: Ok(None), mapped: AtomicBool::new(false) };
        let failure = opened.identity(Path::new("/app.db")).unwrap_err();
        assert_eq!(failure.code, ffi::READONLY_DBMOVED);
        assert!(failure.message.contains("open it again"), "{}", failure.message);
    }
}
