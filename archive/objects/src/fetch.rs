//! Fetches several objects at once, and passes them to the reader one after the other.
//!
//! A large object is fetched in pieces, several at a time. The number of pieces in memory is limited, however large the
//! objects are and however fast they arrive.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::{StreamExt as _, stream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, channel};

use super::archive::Archive;
use super::error::ArchiveError;
use super::plan::Step;

/// The size of a piece in bytes. It is so large that the time for a request hardly matters, and so small that several
/// pieces take little memory.
const PIECE: u64 = 4 << 20;
/// The number of permits that a request for a large piece takes from the semaphore. A request for a small piece takes
/// fewer, at least one. So several small requests can run in place of a large one. Small requests take time but hardly
/// any memory.
const PLACES: u64 = 8;
/// The number of fetched pieces that may wait for the reader. More pieces may be on their way.
const WAITING: usize = 2;

/// The progress of fetching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The number of bytes that were read so far.
    pub bytes: u64,
    /// The bytes of all objects.
    pub of_bytes: u64,
    /// The number of objects that were read so far.
    pub objects: u64,
    /// The number of all objects.
    pub of_objects: u64,
}

/// A function that this code calls with the progress after each piece.
pub type Report = Arc<dyn Fn(Progress) + Send + Sync>;

/// A part of an object. The objects arrive in order, and so do the pieces of each object.
struct Piece {
    content: Result<Bytes, ArchiveError>,
    is_last: bool,
}

/// Fetches the objects of `steps`. Meanwhile `work` reads them on another thread. At most `parallel` requests for large
/// pieces run at a time, or [`PLACES`] times as many for small pieces.
pub async fn fetch<T: Send + 'static>(
    archive: &Archive,
    steps: &[Step],
    parallel: usize,
    report: Option<Report>,
    work: impl FnOnce(&mut Objects) -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, ArchiveError> {
    let (sender, receiver) = channel(WAITING);
    let of_bytes = steps.iter().map(|step| step.object.bytes).sum();
    let progress = Progress { of_bytes, of_objects: steps.len() as u64, ..Progress::default() };
    let mut objects = Objects { receiver, progress, report, is_within: false };
    let worker = tokio::task::spawn_blocking(move || work(&mut objects));
    let pieces = steps.iter().flat_map(|step| pieces_of(step.object.bytes).map(move |piece| (step, piece)));
    let parallel = parallel.max(1);
    let places = &Semaphore::new(parallel * PLACES as usize);
    let fetched = stream::iter(pieces)
        // The pieces take permits in the order in which the reader needs them. So the piece that the reader needs next
        // never waits for a later one.
        .then(|(step, range)| async move {
            let place = places.acquire_many(places_of(range.end - range.start)).await;
            (step, range, place)
        })
        .map(|(step, range, place)| async move {
            let is_whole = range.start == 0 && range.end >= step.object.bytes;
            let is_last = range.end >= step.object.bytes;
            let content = if is_whole {
                archive.get(&step.key).await
            } else {
                archive.get_range(&step.key, range).await
            };
            (Piece { content, is_last }, place)
        })
        .buffered(parallel * PLACES as usize);
    let mut fetched = std::pin::pin!(fetched);
    while let Some((piece, _place)) = fetched.next().await {
        // If this fails, the worker has ended, and its result is ready.
        if sender.send(piece).await.is_err() {
            break;
        }
    }
    drop(sender);
    worker.await.map_err(|_| ArchiveError::Task)?
}

/// Returns the parts of an object of this length.
fn pieces_of(bytes: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    let count = bytes.div_ceil(PIECE).max(1);
    (0..count).map(move |at| at * PIECE..((at + 1) * PIECE).min(bytes))
}

/// Returns how many permits of the semaphore a piece of `bytes` bytes takes: at least one, and at most [`PLACES`].
fn places_of(bytes: u64) -> u32 {
    bytes.div_ceil(PIECE / PLACES).clamp(1, PLACES) as u32
}

/// The objects that are being fetched.
pub struct Objects {
    receiver: Receiver<Piece>,
    progress: Progress,
    report: Option<Report>,
    /// Whether the next piece belongs to an object that a reader has begun but not read to its end.
    is_within: bool,
}

impl Objects {
    /// Lets `work` read the next object. If fetching the object failed, returns that error.
    pub fn next<T>(
        &mut self,
        work: impl FnOnce(&mut ObjectReader<'_>) -> Result<T, ArchiveError>,
    ) -> Result<T, ArchiveError> {
        let mut reader = ObjectReader { objects: self, rest: Bytes::new(), failed: None };
        while reader.objects.is_within {
            reader.receive();
        }
        (reader.rest, reader.failed) = (Bytes::new(), None);
        reader.objects.is_within = true;
        let done = work(&mut reader);
        let failed = reader.failed.take();
        self.progress.objects += 1;
        self.tell();
        failed.map_or(done, Err)
    }

    fn tell(&self) {
        if let Some(report) = &self.report {
            report(self.progress);
        }
    }
}

/// The content of one object.
pub struct ObjectReader<'a> {
    objects: &'a mut Objects,
    rest: Bytes,
    failed: Option<ArchiveError>,
}

impl ObjectReader<'_> {
    fn receive(&mut self) {
        let Some(piece) = self.objects.receiver.blocking_recv() else {
            self.failed.get_or_insert(ArchiveError::Task);
            self.objects.is_within = false;
            return;
        };
        self.objects.is_within = !piece.is_last;
        match piece.content {
            Ok(content) => {
                self.objects.progress.bytes += content.len() as u64;
                self.rest = content;
                self.objects.tell();
            }
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }
}

impl Read for ObjectReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && self.objects.is_within && self.failed.is_none() {
            self.receive();
        }
        if self.failed.is_some() {
            return Err(io::Error::other("the object was not fetched"));
        }
        let len = self.rest.len().min(buffer.len());
        self.rest.copy_to_slice(&mut buffer[..len]);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_an_object_are_the_object() {
        for bytes in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7] {
            let pieces: Vec<_> = pieces_of(bytes).collect();
            let mut end = 0;
            for piece in &pieces {
                assert_eq!(piece.start, end);
                end = piece.end;
            }
            assert_eq!(end, bytes);
            assert_eq!(pieces.iter().filter(|piece| piece.end >= bytes).count(), 1);
        }
    }
}
