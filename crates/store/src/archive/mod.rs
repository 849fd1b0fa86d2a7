//! Log that the store does not need any more, in a directory: with a backup it makes the store of any later moment.

mod segment;

use std::fs;
use std::path::{Path, PathBuf};

use duralite_logfmt::store::Lsn;
use parking_lot::Mutex;

pub(crate) use self::segment::{Segment, SegmentHead, list, write_segment};
use crate::error::Error;
use crate::log::Log;

/// Bytes of objects in a file, and one object more.
const SEGMENT_BYTES: usize = 16 << 20;

/// Where cold log goes.
#[derive(Debug)]
pub(crate) struct Archive {
    dir: PathBuf,
    store_id: [u8; 16],
    /// Everything below is there.
    next: Mutex<Option<Lsn>>,
}

impl Archive {
    /// Opens a directory, which is made if there is none.
    pub(crate) fn open(dir: &Path, store_id: [u8; 16], next: Lsn) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(|error| Error::io("making the archive", dir, error))?;
        let segments = list(dir)?;
        if segments.iter().any(|segment| segment.head.store_id != store_id || segment.head.end > next) {
            return Err(Error::Invalid {
                what: format!(
                    "{} has the archive of another store, or of this one as it was before it was restored; \
                     name another directory",
                    dir.display()
                ),
            });
        }
        let end = segments.iter().map(|segment| segment.head.end).max();
        Ok(Self { dir: dir.to_owned(), store_id, next: Mutex::new(end) })
    }

    /// Takes everything below `head` that is not here yet. Durable on return.
    pub(crate) fn take(&self, log: &dyn Log, head: Lsn) -> Result<(), Error> {
        let mut next = self.next.lock();
        let from = next.unwrap_or(0).max(log.head());
        if from >= head {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let mut first = from;
        log.scan(from, head, &mut |lsn, object| {
            bytes.extend_from_slice(object);
            if bytes.len() >= SEGMENT_BYTES {
                self.write(log, first, lsn + 1, &bytes)?;
                *next = Some(lsn + 1);
                first = lsn + 1;
                bytes.clear();
            }
            Ok(())
        })?;
        if !bytes.is_empty() {
            self.write(log, first, head, &bytes)?;
        }
        *next = Some(head);
        Ok(())
    }

    fn write(&self, log: &dyn Log, first: Lsn, end: Lsn, objects: &[u8]) -> Result<(), Error> {
        let head = SegmentHead { store_id: self.store_id, seed: log.seed(), first, end };
        write_segment(&self.dir, &head, objects)
    }
}
