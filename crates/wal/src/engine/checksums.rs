//! SQLite's checksums of the frames in an engine.
//!
//! SQLite's checksums do not protect the log, because each engine has checksums of its own for that.
//! [`crate::log::stream`] says why some of SQLite's checksums may be wrong. An engine stores only the checksums of
//! commit frames, as SQLite computed them.

use duralite_format::sqlite_wal::Checksum;

use super::home::DatabaseFile;
use super::{Frame, LogFile, LogReader};
use crate::LogError;

/// The checksum of a frame for which SQLite has written no checksum.
pub(crate) const UNKNOWN: Checksum = [0, 0];

/// Returns the checksum that SQLite has written for a frame, if there is one.
pub(crate) fn known(frame: &Frame) -> Option<Checksum> {
    frame.checksum.filter(|sum| *sum != UNKNOWN)
}

/// Recomputes SQLite's checksums over all committed frames and compares them with the checksums stored at the commit
/// frames. Returns the first commit frame whose stored checksum SQLite cannot have computed. If there is such a frame,
/// its page or the page of an earlier frame has changed since the commit. SQLite computes each checksum from that of
/// the frame before. SQLite itself may have stored a wrong checksum, and computed the next one either from the wrong
/// checksum or from the true one. So this function accepts both results. After a commit frame whose checksum is not
/// known, it accepts any checksum.
///
/// # Errors
/// As [`crate::engine::LogReader::read_page`].
pub fn find_checksum_mismatch<E: LogFile + LogReader + ?Sized>(
    engine: &mut E,
    file: &dyn DatabaseFile,
) -> Result<Option<u32>, LogError> {
    let Some(header) = engine.wal_header().copied() else { return Ok(None) };
    let mut page = vec![0; header.page_bytes as usize];
    let mut sum = header.checksum;
    // The running checksum that SQLite itself has, which may be wrong. `None` if it is not known.
    let mut believed = Some(sum);
    for number in 1..=engine.committed() {
        let frame = engine.frame(number).ok_or(LogError::Unexpected("a frame number"))?;
        engine.read_page(file, number, &mut page)?;
        let next = header.extend(sum, frame.page_number, frame.db_pages, &page);
        believed = match believed {
            Some(before) if before == sum => Some(next),
            other => other.map(|before| header.extend(before, frame.page_number, frame.db_pages, &page)),
        };
        sum = next;
        match frame.checksum {
            None => {}
            Some(UNKNOWN) => believed = None,
            Some(stored) if stored == sum || believed.is_none_or(|believed| believed == stored) => {
                believed = Some(stored);
            }
            Some(_) => return Ok(Some(number)),
        }
    }
    Ok(None)
}
