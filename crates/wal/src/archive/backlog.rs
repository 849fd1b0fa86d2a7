//! Writes the backlog of a log that is about to be closed, and reads it (invariant 73).

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use duralite_format::FormatError;
use duralite_format::archive::backlog::{
    COMMIT_BYTES, Commit, Header, Next, PAGE_BYTES, Trailer, decode_page, encode_page,
};
use duralite_medium::process::OwnFile;
use rustix::fs::OFlags;

use super::backlog_of;
use super::file::remove;
use crate::engine::home::DatabaseFile;
use crate::engine::{Engine, Transaction};
use crate::hooks::{self, FileStep};
use crate::shared::log_file::adjust;
use crate::{DatabaseIdentity, Log, LogError};

/// The number of bytes that one write or read transfers.
const BUFFER: usize = 256 << 10;

/// Writes the log's transactions after the position `after` into a new backlog beside the log's database. Returns
/// `false` if there are no such transactions. The backlog is durable on return, and replaces an earlier backlog of the
/// log. The caller keeps all other processes from using the log, and every transaction in the log is final.
///
/// # Errors
/// `Io`, `Corrupt`, `Poisoned`.
pub fn write(
    log: &mut Log,
    file: &dyn DatabaseFile,
    database: &DatabaseIdentity,
    after: u64,
) -> Result<bool, LogError> {
    let path = backlog_of(&database.path, log.id());
    if log.behind(after)?.bytes == 0 {
        return Ok(false);
    }
    remove(&path)?;
    // A failure to write the backlog is no reason to stop using the log, so `guarded` must not see it as an error.
    let written = log.guarded(|stream| Ok(write_all(stream.engine_mut(), file, database, &path, after)))?;
    if written.is_err() {
        // An incomplete file is useless, but takes space.
        let _ = std::fs::remove_file(&path);
    }
    written.map(|()| true)
}

fn write_all(
    engine: &mut dyn Engine,
    file: &dyn DatabaseFile,
    database: &DatabaseIdentity,
    path: &Path,
    after: u64,
) -> Result<(), LogError> {
    let failed = |error: io::Error| LogError::io("write", path, &error);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(database.mode & 0o666);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    hooks::step(FileStep::Record, path).map_err(failed)?;
    let out = OwnFile::open(|| options.open(path)).map_err(failed)?;
    adjust(&out, database.mode & 0o666, database).map_err(failed)?;
    let (id, origin, page_bytes) = (engine.id(), engine.origin().position, engine.page_bytes());
    let first = after.max(origin);
    let mut to = BufWriter::with_capacity(BUFFER, &*out);
    to.write_all(&Header { log: id, page_bytes, first }.encode()).map_err(failed)?;
    let mut trailer = Trailer { position: first, commits: 0 };
    let mut page = vec![0; page_bytes as usize];
    let mut sequence = u32::try_from(first - origin).unwrap_or(u32::MAX);
    engine.read_in_order();
    while let Some(found) = engine.transaction_after(sequence) {
        sequence = found.sequence;
        let frames = newest_frames(engine, &found)?;
        trailer =
            Trailer { position: origin.saturating_add(u64::from(sequence)), commits: trailer.commits + 1 };
        let commit = Commit {
            position: trailer.position,
            time_ms: found.time_ms,
            db_pages: found.db_pages,
            pages: u32::try_from(frames.len()).unwrap_or(u32::MAX),
        };
        to.write_all(&Next::Commit(commit).encode(id)).map_err(failed)?;
        for (number, frame) in frames {
            engine.read_page(file, frame, &mut page)?;
            to.write_all(&encode_page(id, commit.position, number, &page)).map_err(failed)?;
            to.write_all(&page).map_err(failed)?;
        }
    }
    to.write_all(&Next::Trailer(trailer).encode(id)).map_err(failed)?;
    to.flush().map_err(failed)?;
    drop(to);
    hooks::step(FileStep::Record, path).and_then(|()| out.sync_all()).map_err(failed)?;
    crate::placement::sync_names(path)
}

/// Returns the pages of a transaction in ascending order, each with the number of its last frame. Leaves out pages after
/// the end of the database.
fn newest_frames(engine: &dyn Engine, of: &Transaction) -> Result<Vec<(u32, u32)>, LogError> {
    let mut frames = Vec::new();
    for number in of.first_frame..=of.last_frame {
        let frame = engine.frame(number).ok_or(LogError::Unexpected("a frame number"))?;
        if frame.page_number <= of.db_pages {
            frames.push((frame.page_number, number));
        }
    }
    // The last frame of each page comes first in this order, so `dedup` keeps it.
    frames.sort_unstable_by_key(|(page, frame)| (*page, u32::MAX - *frame));
    frames.dedup_by_key(|(page, _)| *page);
    Ok(frames)
}

/// A backlog that is being read, one page at a time.
pub struct Backlog {
    path: PathBuf,
    from: BufReader<File>,
    header: Header,
    /// The commit whose pages the caller is reading, and how many of these pages the caller has not read yet.
    commit: Option<(Commit, u32)>,
    seen: Trailer,
    is_whole: bool,
}

impl Backlog {
    /// Opens a backlog.
    ///
    /// # Errors
    /// `Io`, `Format`.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let file = File::open(path).map_err(|error| LogError::io("open", path, &error))?;
        let mut from = BufReader::with_capacity(BUFFER, file);
        let header = Header::decode(&read(&mut from, path)?).map_err(damaged(path))?;
        let seen = Trailer { position: header.first, commits: 0 };
        Ok(Self { path: path.to_path_buf(), from, header, commit: None, seen, is_whole: false })
    }

    /// Returns the header: the log, its page size, and the position at which the backlog begins.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// Reads the next commit. Returns `None` after the last commit if the backlog is complete, and an error if it is
    /// not. The caller has read all pages of the previous commit.
    ///
    /// # Errors
    /// `Io`; `Format` for a backlog that is damaged or incomplete.
    pub fn next_commit(&mut self) -> Result<Option<Commit>, LogError> {
        let wrong = damaged(&self.path);
        if self.is_whole {
            return Ok(None);
        }
        if self.commit.is_some_and(|(_, left)| left > 0) {
            return Err(LogError::Unexpected("a commit before the pages of the last one"));
        }
        let bytes: [u8; COMMIT_BYTES] = read(&mut self.from, &self.path)?;
        match Next::decode(&bytes, self.header.log).map_err(&wrong)? {
            Next::Commit(commit) if commit.position > self.seen.position => {
                self.seen = Trailer { position: commit.position, commits: self.seen.commits + 1 };
                self.commit = Some((commit, commit.pages));
                Ok(Some(commit))
            }
            Next::Trailer(trailer) if trailer == self.seen => {
                self.is_whole = true;
                Ok(None)
            }
            _ => Err(wrong(FormatError::Damaged { what: "the order of commits" })),
        }
    }

    /// Reads the next page of the commit into `image`, which is a page long, and returns the page's number. Returns
    /// `None` after the last page.
    ///
    /// # Errors
    /// `Io`, `Format`.
    pub fn next_page(&mut self, image: &mut [u8]) -> Result<Option<u32>, LogError> {
        let Some((commit, left)) = self.commit.filter(|(_, left)| *left > 0) else { return Ok(None) };
        if image.len() != self.header.page_bytes as usize {
            return Err(LogError::Unexpected("a page of another size"));
        }
        let head: [u8; PAGE_BYTES] = read(&mut self.from, &self.path)?;
        self.from.read_exact(image).map_err(|error| cut_short(&self.path, &error))?;
        let number =
            decode_page(&head, self.header.log, commit.position, image).map_err(damaged(&self.path))?;
        self.commit = Some((commit, left - 1));
        Ok(Some(number))
    }
}

fn damaged(path: &Path) -> impl Fn(FormatError) -> LogError + use<> {
    let log = path.to_path_buf();
    move |source| LogError::Format { log: log.clone(), source }
}

fn cut_short(path: &Path, error: &io::Error) -> LogError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            damaged(path)(FormatError::Short { what: "a backlog beside the database" })
        }
        _ => LogError::io("read", path, error),
    }
}

fn read<const N: usize>(from: &mut impl Read, path: &Path) -> Result<[u8; N], LogError> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(|error| cut_short(path, &error))?;
    Ok(bytes)
}
