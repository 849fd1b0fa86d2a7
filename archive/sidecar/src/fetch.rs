//! Fetches an object of any size with little memory.

use std::io::{Seek as _, SeekFrom, Write as _};

use anyhow::Result;
use duralite_archive::{Archive, Step};
use tempfile::SpooledTempFile;

/// The number of bytes of an object that one request fetches, and the largest number of bytes that stay in
/// memory.
const PIECE: usize = 4 << 20;

/// Returns the content of an object.
///
/// # Errors
/// Those of the archive; the file system of temporary files is full.
pub async fn fetch(archive: &Archive, step: &Step) -> Result<SpooledTempFile> {
    let (key, bytes) = (&step.key, step.object.bytes);
    let mut content = SpooledTempFile::new(PIECE);
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + PIECE as u64);
        content.write_all(&archive.get_range(key, at..end).await?)?;
        at = end;
    }
    content.seek(SeekFrom::Start(0))?;
    Ok(content)
}
