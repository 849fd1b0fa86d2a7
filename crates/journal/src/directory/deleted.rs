//! A log that was deleted while processes have it open: taking a copy of it before the last of them is gone.
//!
//! The kernel keeps such a file as long as anybody has it open, and shows it as `/proc/PID/fd/N`. Whoever may read the memory of that
//! process may open it there.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use duralite_logfmt::LogId;
use duralite_medium::process::OwnFile;

use super::head::Head;
use super::names::{self, Kind, is_log_name};
use super::words::{LOG_DELETED, is_complete};
use crate::log_file::making::{make_file, publish};
use crate::{DatabaseIdentity, JournalError};

/// What the kernel puts behind the name of a file that was deleted.
const DELETED: &[u8] = b" (deleted)";
/// What the kernel calls a file that was made without a name.
const NAMELESS: &[u8] = b"#";
/// A copy that was read while somebody wrote is made again, for so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two readings. Who could not be told sees within a tenth of a second that the log was deleted.
const PAUSE: Duration = Duration::from_millis(10);
const PIECE_BYTES: usize = 1 << 20;

/// A log without a name, as a living process has it open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedLog {
    /// The process.
    pub process: u32,
    /// Where this process's open file can be opened.
    pub descriptor: PathBuf,
    /// Where the log was, as far as can be told: it may have had its shorter name.
    pub path: PathBuf,
    /// Its identity.
    pub id: LogId,
}

/// Looks for the log with this id among the deleted files that processes have open; the first is as good as any other, since it is one
/// file. Processes that this user may not look at are passed over.
///
/// # Errors
/// `Io` when there is no `/proc`.
pub fn find_deleted(id: LogId) -> Result<Option<DeletedLog>, JournalError> {
    let proc = Path::new("/proc");
    let processes = fs::read_dir(proc).map_err(|error| JournalError::io("read", proc, &error))?;
    for process in processes.filter_map(Result::ok) {
        let number = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some((number, open)) = number.zip(fs::read_dir(process.path().join("fd")).ok()) else { continue };
        for descriptor in open.filter_map(Result::ok).map(|entry| entry.path()) {
            if let Some(path) = deleted_log_at(&descriptor, id) {
                return Ok(Some(DeletedLog { process: number, descriptor, path, id }));
            }
        }
    }
    Ok(None)
}

/// Where the file was, if it is this log and was deleted. Nothing is opened that can be none, by its name.
fn deleted_log_at(descriptor: &Path, id: LogId) -> Option<PathBuf> {
    let link = fs::read_link(descriptor).ok()?;
    let path = PathBuf::from(OsStr::from_bytes(link.as_os_str().as_bytes().strip_suffix(DELETED)?));
    let name = path.file_name()?;
    let may_be = match names::kind_of(name) {
        Some(Kind::Plain) => true,
        Some(Kind::WithId(other)) => other == id,
        Some(Kind::Segment(_)) => false,
        // Whoever made a file without a name sees it so, whatever it was called later.
        None => name.as_bytes().starts_with(NAMELESS),
    };
    if !may_be {
        return None;
    }
    let file = OwnFile::open(|| File::open(descriptor)).ok()?;
    let head = Head::read(&path, &file).ok().filter(|head| head.log_id == id && is_deleted(&file))?;
    let was_named = names::kind_of(name).is_some();
    Some(if was_named { path } else { names::with_id(path.parent()?, &head.database(), id) })
}

/// Whether an open file has no name any more.
pub(crate) fn is_deleted(file: &File) -> bool {
    file.metadata().is_ok_and(|meta| meta.nlink() == 0)
}

impl DeletedLog {
    /// Copies the log to `to`, with the mode and owner of its database `db`; durable on return. Writers are told that the log was deleted,
    /// by the memory that they share, if that has its name: they commit nothing more. The copy is read twice, and
    /// counts when nothing has changed in between.
    ///
    /// Those who commit nothing more put pages into the database file, which some logs are of no use beside: `as_of` gets the database
    /// file as it was at the moment that the copy is of. It is not made durable.
    ///
    /// `to` must not be called like a log: a process that opens the database would take the copy for a log that nobody uses, while those
    /// that have the deleted one go on. Give it its name when they have ended.
    ///
    /// # Errors
    /// `Busy` when somebody goes on writing, or `to` is called like a log; `Io`.
    pub fn copy(&self, to: &Path, db: &DatabaseIdentity, as_of: Option<&File>) -> Result<(), JournalError> {
        let busy = |what| JournalError::Busy { path: to.to_path_buf(), what };
        if is_log_name(to) {
            return Err(busy(
                "a copy that is called like a log would be opened beside the one in use; choose another name",
            ));
        }
        let failed = |error: io::Error| JournalError::io("copy a deleted log to", to, &error);
        let from = OwnFile::open(|| File::open(&self.descriptor)).map_err(failed)?;
        let database = as_of
            .map(|as_of| Ok((OwnFile::open(|| File::open(&db.path))?, as_of)))
            .transpose()
            .map_err(|error: io::Error| JournalError::io("open", &db.path, &error))?;
        self.stop_writers();
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let copy = make_file(dir, to, db)?;
        let mut files: Vec<(&File, &File)> = database.iter().map(|(from, to)| (&**from, *to)).collect();
        files.push((&from, &copy));
        let copied = copy_settled(&files).map_err(failed).and_then(|settled| {
            if settled {
                publish(to, &copy).map_err(failed)
            } else {
                Err(busy("the log is being written to; try again"))
            }
        });
        if copied.is_err() && copy.metadata().is_ok_and(|meta| meta.nlink() > 0) {
            drop(fs::remove_file(to));
        }
        copied
    }

    /// Whether nobody has written to the log since it was copied to `copy`. A log that is gone with its last process nobody writes to.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_as_in(&self, copy: &Path) -> Result<bool, JournalError> {
        let failed = |error: io::Error| JournalError::io("read", copy, &error);
        // The number may be another file's by now.
        if deleted_log_at(&self.descriptor, self.id).is_none() {
            return Ok(true);
        }
        let Ok(from) = OwnFile::open(|| File::open(&self.descriptor)) else { return Ok(true) };
        let to = File::open(copy).map_err(failed)?;
        is_same(&from, &to).map_err(failed)
    }

    /// Sets the word that every process looks at before it writes. Where the shared memory is not found, only the second reading of the
    /// copy notices who writes.
    fn stop_writers(&self) {
        let segment = names::segment(&self.path, self.id);
        let named = fs::OpenOptions::new().read(true).write(true).open(&segment).ok();
        if let Some(file) = named.filter(is_complete) {
            // Who could not be told is seen by what he writes.
            drop(file.write_all_at(&1_u64.to_ne_bytes(), LOG_DELETED));
        }
    }
}

/// Copies files until two readings of all of them are the same; whether they were. Then each of them was as it was copied at a
/// moment between the two.
fn copy_settled(files: &[(&File, &File)]) -> io::Result<bool> {
    let start = Instant::now();
    let mut is_first = true;
    while is_first || start.elapsed() < PATIENCE {
        let mut are_same = true;
        for (from, to) in files {
            are_same &= copy_once(from, to)?;
        }
        if are_same && !is_first {
            return Ok(true);
        }
        is_first = false;
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}

/// Makes `to` what `from` is; whether it was already.
fn copy_once(from: &File, to: &File) -> io::Result<bool> {
    let length = from.metadata()?.len();
    let was_as_long = to.metadata()?.len() == length;
    to.set_len(length)?;
    compare(from, to, length, &mut |piece, at| to.write_all_at(piece, at)).map(|same| same && was_as_long)
}

fn is_same(from: &File, to: &File) -> io::Result<bool> {
    let length = from.metadata()?.len();
    Ok(to.metadata()?.len() == length && compare(from, to, length, &mut |_, _| Ok(()))?)
}

/// Gives `differs` the pieces that are not the same, and where they are; whether there was none. A file that is cut meanwhile is not
/// the same.
fn compare(
    from: &File,
    to: &File,
    length: u64,
    differs: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<bool> {
    let (mut read, mut before) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let (mut at, mut is_same) = (0, true);
    while at < length {
        let bytes = usize::try_from(length - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        match from.read_exact_at(&mut read[..bytes], at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            done => done?,
        }
        to.read_exact_at(&mut before[..bytes], at)?;
        if read[..bytes] != before[..bytes] {
            is_same = false;
            differs(&read[..bytes], at)?;
        }
        at += bytes as u64;
    }
    Ok(is_same)
}
