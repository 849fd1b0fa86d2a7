//! Uploads commits. Also uploads snapshots, while another thread encodes them.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use duralite_archive::{ArchiveError, Primary};
use duralite_ltx::{Encoder, lock_page};
use futures_util::Stream;
use tempfile::SpooledTempFile;
use tokio::sync::mpsc;

use crate::group::Mark;
use crate::hold::Held;

/// The size in bytes of the pieces in which a large file is read and uploaded.
const PIECE: usize = 1 << 20;
/// The number of encoded pieces that may wait for their upload.
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

/// Returns the pieces of a file.
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

/// Encodes a snapshot, and sends it in pieces to the task that uploads them. Calls `pace` with the number of
/// bytes after each read.
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

/// Returns a sender for the pieces of a snapshot, and a stream from which the upload takes them.
pub fn channel()
-> (mpsc::Sender<Result<Bytes, ArchiveError>>, impl Stream<Item = Result<Bytes, ArchiveError>> + Unpin + Send)
{
    let (sender, mut receiver) = mpsc::channel(PIECES);
    (sender, futures_util::stream::poll_fn(move |context| receiver.poll_recv(context)))
}

/// A writer that sends its bytes in pieces.
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
