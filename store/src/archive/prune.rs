//! Removes the oldest segments of an archive.

use std::fs;
use std::time::{Duration, SystemTime};

use duralite_medium::block::sync_directory;

use super::segment::list;
use super::{Archive, Line};
use crate::error::Error;

/// The rule that says which part of an archive [pruning](crate::Store::prune_archive) keeps. The newest segment always
/// remains.
///
/// ```
/// use duralite_store::Keep;
/// assert_ne!(Keep::Bytes(1 << 30), Keep::After(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// The newest segments, which have at most this many bytes in total.
    Bytes(u64),
    /// Segments whose files were modified within this time.
    For(Duration),
    /// The segments that are needed to restore a backup. The value is the log object number that
    /// [`Store::backup`](crate::Store::backup) returned for this backup.
    After(u64),
}

/// What pruning has removed from an archive.
///
/// ```
/// assert_eq!(duralite_store::Pruned::default().bytes, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of removed files.
    pub segments: u64,
    /// The size of these files in bytes.
    pub bytes: u64,
}

impl Archive {
    /// Removes segments, the oldest first. So even if a crash interrupts the pruning, the remaining segments have no
    /// gap. The removal is durable on return.
    pub(crate) fn prune(&self, keep: Keep) -> Result<Pruned, Error> {
        // While this thread holds the mutex, no other thread adds a segment.
        let mut line = self.line.lock();
        let mut sizes = Vec::new();
        for segment in list(&self.dir)? {
            let file =
                fs::metadata(&segment.path).map_err(|error| Error::io("reading", &segment.path, error))?;
            let age = file.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
            sizes.push((segment, file.len(), age.unwrap_or_default()));
        }
        let mut left: u64 = sizes.iter().map(|(_, bytes, _)| *bytes).sum();
        let mut pruned = Pruned::default();
        let newest = sizes.len().saturating_sub(1);
        for (segment, bytes, age) in sizes.iter().take(newest) {
            let goes = match keep {
                Keep::Bytes(most) => left > most,
                Keep::For(limit) => *age > limit,
                Keep::After(last) => segment.head.end <= last.saturating_add(1),
            };
            if !goes {
                break;
            }
            fs::remove_file(&segment.path).map_err(|error| Error::io("removing", &segment.path, error))?;
            left -= bytes;
            pruned = Pruned { segments: pruned.segments + 1, bytes: pruned.bytes + bytes };
        }
        if pruned.segments > 0 {
            sync_directory(&self.dir).map_err(|error| Error::medium("pruning the archive", error))?;
            let mut rest = Line::default();
            for (segment, ..) in sizes.iter().skip(pruned.segments as usize) {
                rest.add(segment.head.first, segment.head.end);
            }
            *line = rest;
        }
        Ok(pruned)
    }
}
