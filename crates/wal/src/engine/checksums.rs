//! SQLite's checksums of the frames in an engine.
//!
//! They do not protect the log, whose integrity is the engine's task: [`crate::log::stream`] says why some of them may be
//! wrong. An engine stores what SQLite computed, for commit frames only.

use duralite_format::sqlite_wal::Checksum;

use super::home::DatabaseFile;
use super::{Frame, LogFile, LogReader};
use crate::LogError;

/// The checksum of a frame for which SQLite has written none.
pub(crate) const UNKNOWN: Checksum = [0, 0];

/// The checksum that SQLite has written for a frame, if it has written one.
pub(crate) fn known(frame: &Frame) -> Option<Checksum> {
    frame.checksum.filter(|sum| *sum != UNKNOWN)
}

/// Recomputes SQLite's checksums over all committed frames and compares them with those stored at the commit
/// frames. Returns the first commit frame whose checksum SQLite cannot have computed: some page is then not what it
/// was at the commit. A checksum may continue the true checksum of the frame before, or the one that was stored
/// there. After a commit frame whose checksum is unknown, any checksum is accepted.
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
    // The checksum that SQLite had computed, which may differ from the true one.
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
