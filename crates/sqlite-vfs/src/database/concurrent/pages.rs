//! Pages as of a snapshot.

use duralite_sqlite_ffi as ffi;

use super::shared_index::SharedIndex;
use super::snapshot::Snapshot;
use super::state::Concurrent;
use crate::database::Db;
use crate::errors::{During, Failure};

/// Reads a page as of a snapshot. If the database had no such page at that time, the page reads as zeros.
pub fn read_page(
    db: &Db,
    index: SharedIndex<'_>,
    snapshot: &Snapshot,
    page: u32,
    buf: &mut [u8],
) -> Result<(), Failure> {
    // Do not read beyond the end of the database. The file may have been longer in the past, and a home that
    // maps the file may still map the old length. Such a home relies on its callers not to read there.
    if !snapshot.may_have(page) {
        buf.fill(0);
        return Ok(());
    }
    if let Some(frame) = snapshot.find(index, page)? {
        let read = index.attachment.log().read_frame(&db.base, frame, buf);
        return read.map_err(|error| Failure::of(&error, During::Read));
    }
    let offset = u64::from(page.saturating_sub(1)) * buf.len() as u64;
    match db.read_unmasked(buf, offset)? {
        // SQLite, too, reads zeros after the end of the file.
        ffi::OK | ffi::IOERR_SHORT_READ => Ok(()),
        code => Err(Failure::new(code, format!("cannot read page {page} of {}", db.path.display()))),
    }
}

impl Concurrent {
    /// Returns a page as of a snapshot.
    pub(super) fn page_at(&self, db: &Db, snapshot: &Snapshot, page: u32) -> Result<Vec<u8>, Failure> {
        let mut image = vec![0; self.page_bytes];
        read_page(db, self.index(), snapshot, page, &mut image)?;
        Ok(image)
    }
}
