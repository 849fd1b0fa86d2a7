//! The archive: a directory that keeps the log objects that the store discards. From a backup and the archive together,
//! the store can be restored to any moment after the backup.
//!
//! Invariant 47: a restore never skips log objects that the archive lacks. Each segment names its predecessor. The file
//! `reached` contains an object number, and the store is known to have had every object below that number. If a store
//! was restored to an earlier moment, its new log objects belong to another history of the store, which the old archive
//! refuses. The records of the archive survive a crash.

mod prune;
mod segment;

use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

pub use self::prune::{Keep, Pruned};
use self::segment::write_reached;
pub(crate) use self::segment::{Segment, SegmentHead, list, name_of, read_reached, write_segment};
use crate::error::Error;
use crate::format::Lsn;
use crate::log::Log;

/// The size in bytes at which a segment is closed. The segment's last object may exceed it.
const SEGMENT_BYTES: usize = 16 << 20;

/// An open archive: its directory, and which log objects it contains.
#[derive(Debug)]
pub(crate) struct Archive {
    dir: PathBuf,
    store_id: [u8; 16],
    line: Mutex<Line>,
}

/// The newest unbroken sequence of segments, as a range of log object numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// The first object of the sequence; 0 if the archive is empty.
    from: Lsn,
    /// The first log object of the newest segment.
    newest: Lsn,
    /// The number after the last log object of the sequence.
    end: Lsn,
}

impl Line {
    /// Adds the next segment to the sequence. If log objects are missing before the segment, begins a new sequence with
    /// it.
    fn add(&mut self, first: Lsn, end: Lsn) {
        if self.from == 0 || first > self.end {
            self.from = first;
        }
        (self.newest, self.end) = (first, end.max(self.end));
    }
}

impl Archive {
    /// Opens the archive in a directory, and makes the directory if there is none. `log_first` is the first object of
    /// the store's current log. If the store has already discarded log objects that the archive lacks, this function
    /// records that gap in the file `reached`, durably.
    pub(crate) fn open(dir: &Path, store_id: [u8; 16], log: &dyn Log, log_first: Lsn) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(|error| Error::io("making the archive", dir, error))?;
        let segments = list(dir)?;
        // All logs of this store have the objects before `log_first` in common. If a segment contains a later object,
        // but has another seed than the log, the segment comes from another history of the store. So the store refuses
        // this archive.
        let is_foreign = |head: &SegmentHead| {
            head.store_id != store_id
                || head.end > log.next()
                || (head.seed != log.seed() && head.end > log_first)
        };
        if segments.iter().any(|segment| is_foreign(&segment.head)) {
            return Err(Error::Invalid {
                what: format!(
                    "{} has the archive of another store, or of this one as it was before it was restored; \
                     name another directory",
                    dir.display()
                ),
            });
        }
        let mut line = Line::default();
        segments.iter().for_each(|segment| line.add(segment.head.first, segment.head.end));
        if line.from != 0 && log.head() > line.end && read_reached(dir)? < log.head() {
            write_reached(dir, log.head())?;
        }
        Ok(Self { dir: dir.to_owned(), store_id, line: Mutex::new(line) })
    }

    /// Returns the first log object of the newest unbroken sequence of segments; 0 if the archive is empty.
    pub(crate) fn from(&self) -> Lsn {
        self.line.lock().from
    }

    /// Archives every log object below `head` that the archive does not have yet. The objects are durable in the
    /// archive on return.
    pub(crate) fn take(&self, log: &dyn Log, head: Lsn) -> Result<(), Error> {
        let mut line = self.line.lock();
        let mut first = line.end.max(log.head());
        if first >= head {
            return Ok(());
        }
        let mut bytes = Vec::new();
        log.scan(first, head, &mut |lsn, object| {
            bytes.extend_from_slice(object);
            if bytes.len() >= SEGMENT_BYTES {
                self.write(log, &mut line, first, lsn + 1, &bytes)?;
                first = lsn + 1;
                bytes.clear();
            }
            Ok(())
        })?;
        if !bytes.is_empty() {
            self.write(log, &mut line, first, head, &bytes)?;
        }
        Ok(())
    }

    fn write(
        &self,
        log: &dyn Log,
        line: &mut Line,
        first: Lsn,
        end: Lsn,
        objects: &[u8],
    ) -> Result<(), Error> {
        // After a gap the segment names no predecessor, so that a restore does not continue across the gap.
        let previous = if line.end == first { line.newest } else { 0 };
        let head = SegmentHead { store_id: self.store_id, seed: log.seed(), first, end, previous };
        write_segment(&self.dir, &head, objects)?;
        line.add(first, end);
        write_reached(&self.dir, end)
    }
}
