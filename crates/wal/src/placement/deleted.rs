//! Finds a log that was deleted while processes have it open, and copies it before the last of these processes ends.
//!
//! The kernel keeps a deleted file as long as a process has it open, and shows it as `/proc/PID/fd/N`. A user who may read the
//! memory of that process may open the file there.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use duralite_format::LogId;
use duralite_medium::process::OwnFile;

use super::names::{self, Kind, is_log_name};
use super::segment::{DELETED_LOG_COPIED, DELETION_SEEN, LOG_DELETED, is_complete, is_segment_of};
use super::whose::Head;
use crate::shared::log_file::{make_file, publish};
use crate::{DatabaseIdentity, LogError};

/// The suffix that the kernel adds to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";
/// The beginning of the kernel's name for a file that was created without a name.
const NAMELESS: &[u8] = b"#";
/// The time for which this process tries to copy a log while other processes write to it.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two readings, if this process has told the writers to stop.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause between two readings, if this process could not tell the writers to stop. The writers check for themselves
/// every tenth of a second, so each of them notices the deletion within this pause.
const PAUSE_UNTOLD: Duration = Duration::from_millis(500);
const PIECE_BYTES: usize = 1 << 20;

/// A log whose file was deleted, but is still open in a living process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedLog {
    /// The id of the process.
    pub process: u32,
    /// The path by which the process's open file can be opened.
    pub descriptor: PathBuf,
    /// The path at which the log was, as far as this process can tell. The log may instead have been under its shorter
    /// name.
    pub path: PathBuf,
    /// The log's id.
    pub id: LogId,
}

/// Looks for the log with this id among the deleted files that processes have open. Returns the first log found, because
/// all logs found are the same file. Skips processes that this user may not inspect.
///
/// # Errors
/// `Io` if there is no `/proc`.
pub fn find_deleted(id: LogId) -> Result<Option<DeletedLog>, LogError> {
    let log_at = |(process, descriptor): (u32, PathBuf)| {
        let path = deleted_log_at(&descriptor, id)?;
        Some(DeletedLog { process, descriptor, path, id })
    };
    Ok(open_files()?.find_map(log_at))
}

/// Returns the files that processes have open, as far as this user may see them. For each file: the id of the process, and a
/// path by which this process can open the file again.
fn open_files() -> Result<impl Iterator<Item = (u32, PathBuf)>, LogError> {
    let proc = Path::new("/proc");
    let processes = fs::read_dir(proc).map_err(|error| LogError::io("read", proc, &error))?;
    Ok(processes.filter_map(Result::ok).flat_map(|process| {
        let number = process.file_name().to_str().and_then(|name| name.parse().ok());
        let open = number.zip(fs::read_dir(process.path().join("fd")).ok());
        open.into_iter()
            .flat_map(|(number, open)| open.filter_map(Result::ok).map(move |entry| (number, entry.path())))
    }))
}

/// Returns the former path of the deleted file behind this descriptor; `None` if the file was not deleted.
fn deleted_path(descriptor: &Path) -> Option<PathBuf> {
    let link = fs::read_link(descriptor).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(link.as_os_str().as_bytes().strip_suffix(DELETED)?)))
}

/// Returns the former path of the file behind this descriptor, if the file is this log and was deleted. Does not open a
/// file whose name shows that it is not this log.
fn deleted_log_at(descriptor: &Path, id: LogId) -> Option<PathBuf> {
    let path = deleted_path(descriptor)?;
    let name = path.file_name()?;
    let may_be = match names::kind_of(name) {
        Some(Kind::Plain) => true,
        Some(Kind::WithId(other)) => other == id,
        Some(Kind::Segment(_)) => false,
        // The kernel shows the path under which a process opened the file. If the process created the file without a
        // name, the kernel does not show the name that the file got later.
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

/// Opens the file behind this descriptor for writing, if it is a segment of this log and was deleted.
fn deleted_segment_at(descriptor: &Path, id: LogId) -> Option<OwnFile> {
    let path = deleted_path(descriptor)?;
    let name = path.file_name()?;
    if names::kind_of(name) != Some(Kind::Segment(id)) && !name.as_bytes().starts_with(NAMELESS) {
        return None;
    }
    let file = open_to_write(descriptor)?;
    (is_deleted(&file) && is_segment_of(&file, id)).then_some(file)
}

fn open_to_write(path: &Path) -> Option<OwnFile> {
    OwnFile::open(|| fs::OpenOptions::new().read(true).write(true).open(path)).ok()
}

/// Returns whether an open file has no name any more.
pub(crate) fn is_deleted(file: &File) -> bool {
    file.metadata().is_ok_and(|meta| meta.nlink() == 0)
}

impl DeletedLog {
    /// Copies the log to `to`, with the mode and owner of its database `db`. The copy is durable on return. First tells
    /// writers, through the segment (which may have been deleted too), that the log was deleted. Before a writer
    /// acknowledges a commit, it checks whether it was told, and if so, it acknowledges nothing. So the copy holds
    /// everything that any writer has acknowledged or will acknowledge. This method reads the log twice, and accepts
    /// the copy if nothing changed between the two readings.
    ///
    /// If this user may not write to the segment, writers find out for themselves that the log was deleted. The copy may then
    /// lack a commit of a writer that was stopped for longer than the time between the two readings.
    ///
    /// A process that commits nothing more may still write pages to the database file, and some logs are useless without a
    /// matching version of that file. So this method copies the database file to `as_of`, as it was at the moment of the
    /// copy. `as_of` is not made durable.
    ///
    /// `to` must not have the name of a log. Otherwise a process that opens the database would take the copy for a log that
    /// no process uses, while others still use the deleted log. Give the copy such a name only when the processes that use
    /// the deleted log have ended.
    ///
    /// # Errors
    /// `Busy` if a process goes on writing, or `to` has the name of a log; `Io`.
    pub fn copy(&self, to: &Path, db: &DatabaseIdentity, as_of: Option<&File>) -> Result<(), LogError> {
        let busy = |what| LogError::Busy { path: to.to_path_buf(), what };
        if is_log_name(to) {
            return Err(busy(
                "a copy with the name of a log would be opened beside the log in use; choose another name",
            ));
        }
        let failed = |error: io::Error| LogError::io("copy a deleted log to", to, &error);
        let from = OwnFile::open(|| File::open(&self.descriptor)).map_err(failed)?;
        let database = as_of
            .map(|as_of| Ok((OwnFile::open(|| File::open(&db.path))?, as_of)))
            .transpose()
            .map_err(|error: io::Error| LogError::io("open", &db.path, &error))?;
        let pause = if self.stop_writers()? { PAUSE } else { PAUSE_UNTOLD };
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let copy = make_file(dir, to, db)?;
        let mut files: Vec<(&File, &File)> = database.iter().map(|(from, to)| (&**from, *to)).collect();
        files.push((&from, &copy));
        let copied = copy_settled(&files, pause).map_err(failed).and_then(|settled| {
            if settled {
                publish(to, &copy).map_err(failed)
            } else {
                Err(busy("a process is still writing the log; try again"))
            }
        });
        if copied.is_err() && copy.metadata().is_ok_and(|meta| meta.nlink() > 0) {
            drop(fs::remove_file(to));
        }
        copied
    }

    /// Returns whether no process has written to the log since it was copied to `copy`. Also returns `true` if the log's last
    /// process has ended, because then nobody can write to the log.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_as_in(&self, copy: &Path) -> Result<bool, LogError> {
        let failed = |error: io::Error| LogError::io("read", copy, &error);
        // The descriptor's number may belong to another file by now.
        if deleted_log_at(&self.descriptor, self.id).is_none() {
            return Ok(true);
        }
        let Ok(from) = OwnFile::open(|| File::open(&self.descriptor)) else { return Ok(true) };
        let to = File::open(copy).map_err(failed)?;
        is_same(&from, &to).map_err(failed)
    }

    /// Sets the word that every process checks before it writes, and again before it acknowledges. There may be two
    /// segments, because a process may have made a new one under the name of a deleted one. So this method sets the
    /// word in both. Returns `true` if it found a segment, and could set the word in every segment that it found.
    fn stop_writers(&self) -> Result<bool, LogError> {
        let path = names::segment(&self.path, self.id);
        let named = open_to_write(&path).filter(|file| is_complete(file));
        let deleted = open_files()?.filter_map(|(_, descriptor)| deleted_segment_at(&descriptor, self.id));
        let word = DELETION_SEEN | DELETED_LOG_COPIED;
        let tell = |file: OwnFile| file.write_all_at(&word.to_ne_bytes(), LOG_DELETED).is_ok();
        let told: Vec<bool> = named.into_iter().chain(deleted).map(tell).collect();
        // The word must be set before the copy reads anything.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(!told.is_empty() && told.into_iter().all(|is_told| is_told))
    }
}

/// Copies files until two successive readings of all of them are the same. Returns `false` if that does not happen in
/// time. If it returns `true`, each copy equals its file as it was at some moment between the two readings.
fn copy_settled(files: &[(&File, &File)], pause: Duration) -> io::Result<bool> {
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
        std::thread::sleep(pause);
    }
    Ok(false)
}

/// Makes `to` a copy of `from`. Returns whether `to` already was a copy.
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

/// Calls `differs` with every piece that differs, and with the piece's offset. Returns whether all pieces are the same.
/// A file that is truncated during the comparison counts as different.
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
