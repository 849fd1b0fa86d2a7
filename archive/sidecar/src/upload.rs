//! Uploads commits, and snapshots as they are encoded.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use duralite_archive::{ArchiveError, Primary};
use duralite_ltx::{Encoder, lock_page};
use duralite_wal::{ErrorKind, LogError};
use futures_util::Stream;
use tempfile::SpooledTempFile;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::beside::Beside;
use crate::group::Mark;
use crate::hold::Held;
use crate::source::{LogGroup, Source};

/// Bytes of the pieces in which a longer one is read and uploaded.
const PIECE: usize = 1 << 20;
/// Pieces that wait for the upload while the next one is made.
const PIECES: usize = 2;

/// Uploads commits.
///
/// # Errors
/// As [`Primary::upload`].
pub async fn upload_group(
    primary: &Primary,
    file: &mut SpooledTempFile,
    min: u64,
    mark: &Mark,
) -> Result<()> {
    file.seek(SeekFrom::Start(0))?;
    if file.is_rolled() {
        return Ok(primary.upload_large(pieces_of(file), min, mark.txid, mark.time_ms).await?);
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(primary.upload(content.into(), min, mark.txid, mark.time_ms).await?)
}

/// How often the sidecar looks whether the log wants to start over while it uploads.
const ASKED: Duration = Duration::from_millis(1);

/// Uploads groups of commits.
///
/// The log keeps what is not in the archive yet. But while connections commit all the time, there is always something, and
/// the log would grow up to its limit. So when a connection that wants to start the log over asks for it, the sidecar reads
/// the log to its end, holds what it reads, and lets go of the log. If the sidecar dies before that is in the archive, the
/// log may have started over, and a snapshot closes the gap.
pub struct Uploader<'a> {
    runtime: &'a Handle,
    beside: &'a Beside,
    /// Once this is set, no request is answered.
    stop: &'a AtomicBool,
    /// The position after what is in the archive, or was let go of.
    pinned: u64,
    /// What is being uploaded, or could not be. It no longer needs the log.
    encoded: Option<Encoded>,
    /// What has been read for the upload after that.
    next: LogGroup,
}

/// A group of commits as an object of the archive.
struct Encoded {
    file: SpooledTempFile,
    after: Mark,
}

impl<'a> Uploader<'a> {
    /// Uploads what a log has after a mark.
    pub fn new(
        runtime: &'a Handle,
        beside: &'a Beside,
        stop: &'a AtomicBool,
        source: &Source,
        after: &Mark,
    ) -> Self {
        let next = source.group_after(after.position);
        Self { runtime, beside, stop, pinned: next.position(), encoded: None, next }
    }

    /// Archives the next group of commits, up to a position; `None` if there was none. When this returns, the commits are
    /// acknowledged, and whoever waits for them has been woken. Returns how many others had been committed before that.
    pub fn upload(
        &mut self,
        source: &mut Source,
        primary: &Primary,
        mark: &mut Mark,
        until: Option<u64>,
    ) -> Result<Option<u64>> {
        let encoded = match self.encoded.take() {
            Some(encoded) => Some(encoded),
            None => self.encode(source, mark, until)?,
        };
        let Some(Encoded { mut file, after }) = encoded else { return Ok(None) };
        let min = mark.txid + 1;
        let uploaded = {
            let mut upload = std::pin::pin!(async {
                upload_group(primary, &mut file, min, &after).await?;
                primary.acknowledge().await?;
                anyhow::Ok(())
            });
            loop {
                let waited = async { tokio::time::timeout(ASKED, &mut upload).await };
                match self.runtime.block_on(waited) {
                    Ok(ended) => break ended,
                    // The next upload reports an error.
                    Err(_) => drop(self.answer(source, until)),
                }
            }
        };
        if let Err(error) = uploaded {
            self.encoded = Some(Encoded { file, after });
            return Err(error);
        }
        let waiting = source.follower().newest()?.saturating_sub(after.position);
        source.follower().set_replicated(after.position, after.sealed_ms())?;
        *mark = after;
        self.pinned = self.pinned.max(after.position);
        Ok(Some(waiting))
    }

    /// Reads and encodes the next group of commits, up to a position; `None` if there is none.
    fn encode(&mut self, source: &mut Source, mark: &Mark, until: Option<u64>) -> Result<Option<Encoded>> {
        match source.collect(&mut self.next, until, true) {
            // What is held comes before what the log has lost.
            Err(error) if error.kind() == ErrorKind::LostPlace && self.next.is_held() => {}
            collected => collected?,
        }
        // This look comes after the read, so it sees whatever has changed the database before these commits.
        if self.beside.is_broken(source.id())? {
            return Ok(None);
        }
        let encoded = source.encode(&mut self.next, mark)?;
        self.next = self.next.next();
        Ok(encoded.map(|(file, after)| Encoded { file, after }))
    }

    /// If the log wants to start over, reads it to its end, or up to a position, and lets go of what has been read.
    /// Returns `false` if no more can be held.
    pub fn answer(&mut self, source: &mut Source, until: Option<u64>) -> Result<bool> {
        if self.stop.load(Ordering::Relaxed) || !source.follower().is_asked_to_read(self.next.position())? {
            return Ok(true);
        }
        if self.next.is_full() {
            return Ok(false);
        }
        source.collect(&mut self.next, until, false)?;
        source.hold(&mut self.next)?;
        self.pinned = self.next.position();
        self.pin(source)?;
        Ok(true)
    }

    /// Pins what is neither in the archive nor was let go of.
    pub fn pin(&self, source: &mut Source) -> Result<(), LogError> {
        source.follower().pin(self.pinned).map(drop)
    }

    /// Whether it has read commits that it has not archived.
    pub fn holds_anything(&self) -> bool {
        self.encoded.is_some() || !self.next.is_empty()
    }
}

/// The pieces of a file.
fn pieces_of(file: &mut SpooledTempFile) -> impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin {
    futures_util::stream::iter(std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(PIECE);
        match file.take(PIECE as u64).read_to_end(&mut piece) {
            Ok(0) => None,
            Ok(_) => Some(Ok(piece.into())),
            Err(source) => Some(Err(of_file(source))),
        }
    }))
}

fn of_file(source: io::Error) -> ArchiveError {
    ArchiveError::File { path: "a temporary file".to_owned(), source }
}

/// Encodes a snapshot into pieces, which another task uploads. `pace` is called with the number of bytes read.
///
/// # Errors
/// The database cannot be read; the upload has ended.
pub fn encode_snapshot(
    held: &mut Held,
    mark: &Mark,
    pieces: mpsc::Sender<Result<Bytes, ArchiveError>>,
    mut pace: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let (pages, page_size) = (held.pages(), held.page_bytes());
    let header = mark.header(1, page_size, pages, 0);
    let mut encoder = Encoder::new(Pieces { pieces, piece: Vec::with_capacity(PIECE) }, header)?;
    let mut page = vec![0; page_size as usize];
    let mut content = held.content()?;
    for number in 1..=pages {
        content.read_exact(&mut page).context("read the database")?;
        if number != lock_page(page_size) {
            encoder.page(number, &page)?;
        }
        pace(page.len())?;
    }
    Ok(encoder.finish()?.0.flush()?)
}

/// The sending end of a snapshot's pieces, and the stream of them.
pub fn channel()
-> (mpsc::Sender<Result<Bytes, ArchiveError>>, impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin + Send)
{
    let (sender, mut receiver) = mpsc::channel(PIECES);
    (sender, futures_util::stream::poll_fn(move |context| receiver.poll_recv(context)))
}

/// Sends what is written to it, in pieces.
struct Pieces {
    pieces: mpsc::Sender<Result<Bytes, ArchiveError>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let sent = self.pieces.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended"))
    }
}
