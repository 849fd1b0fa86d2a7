//! Log that the store does not need any more, in a directory: with a backup it makes the store of any later moment.
//!
//! Invariant 47: what the archive lacks is never passed over. Segments name the one before them, `reached` says how far the
//! history goes, and log of another history of the same store is refused. All of it survives a crash.

mod prune;
mod segment;

use std::fs;
use std::path::{Path, PathBuf};

use duralite_logfmt::store::Lsn;
use parking_lot::Mutex;

pub use self::prune::{Keep, Pruned};
use self::segment::write_reached;
pub(crate) use self::segment::{Segment, SegmentHead, list, name_of, read_reached, write_segment};
use crate::error::Error;
use crate::log::Log;

/// Bytes of objects in a file, and one object more.
const SEGMENT_BYTES: usize = 16 << 20;

/// Where cold log goes.
#[derive(Debug)]
pub(crate) struct Archive {
    dir: PathBuf,
    store_id: [u8; 16],
    line: Mutex<Line>,
}

/// The segments that go on from one another without a gap, up to the newest.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Its first object; 0 for none.
    from: Lsn,
    /// The first object of the newest segment.
    newest: Lsn,
    /// Everything from `from` on and below this is there.
    end: Lsn,
}

impl Line {
    /// Takes in the next segment.
    fn add(&mut self, first: Lsn, end: Lsn) {
        if self.from == 0 || first > self.end {
            self.from = first;
        }
        (self.newest, self.end) = (first, end.max(self.end));
    }
}

impl Archive {
    /// Opens a directory, which is made if there is none, for the store's log, whose first object was `log_first`. If the
    /// store has given up log since that the archive lacks, the archive says so from now on, durably.
    pub(crate) fn open(dir: &Path, store_id: [u8; 16], log: &dyn Log, log_first: Lsn) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(|error| Error::io("making the archive", dir, error))?;
        let segments = list(dir)?;
        // What a log was made after is the history of all logs that were made after it: what is newer came from elsewhere.
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

    /// The first object from which on the archive has everything; 0 if it has nothing yet.
    pub(crate) fn from(&self) -> Lsn {
        self.line.lock().from
    }

    /// Takes everything below `head` that is not here yet. Durable on return.
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
        // After a gap it goes on from none: the history before is another line.
        let previous = if line.end == first { line.newest } else { 0 };
        let head = SegmentHead { store_id: self.store_id, seed: log.seed(), first, end, previous };
        write_segment(&self.dir, &head, objects)?;
        line.add(first, end);
        write_reached(&self.dir, end)
    }
}
