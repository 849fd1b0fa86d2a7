//! Archives the commits that a closed log has left in its backlog.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use duralite_wal::archive::backlog::Backlog;
use tempfile::SpooledTempFile;

use crate::group::{Commit, Group, Mark};

/// A commit from a backlog, with the pages that it has written.
pub struct Left {
    /// The page size in bytes.
    pub page_size: u32,
    /// The size of the database in pages after the commit.
    pub db_pages: u32,
    /// The page images by page number.
    pub pages: BTreeMap<u32, Vec<u8>>,
}

/// Returns the commit that ends at a position; `None` if the backlog has no such commit.
///
/// # Errors
/// The backlog is damaged.
pub fn commit_at(backlog: &mut Backlog, position: u64) -> Result<Option<Left>> {
    let page_size = backlog.header().page_bytes;
    let mut page = vec![0; page_size as usize];
    while let Some(commit) = backlog.next_commit()?.filter(|commit| commit.position <= position) {
        let mut left = Left { page_size, db_pages: commit.db_pages, pages: BTreeMap::new() };
        while let Some(number) = backlog.next_page(&mut page)? {
            if commit.position == position {
                left.pages.insert(number, page.clone());
            }
        }
        if commit.position == position {
            return Ok(Some(left));
        }
    }
    Ok(None)
}

/// Encodes the commits of a backlog that come after a position, as LTX files. Calls `archive` with each file,
/// the number of the file's first transaction, and the mark of its last one. Returns the mark of the last
/// transaction in the last file.
///
/// # Errors
/// The backlog is damaged, or begins after the position; an error of `archive`.
pub fn each_group(
    path: &Path,
    position: u64,
    mut mark: Mark,
    mut archive: impl FnMut(SpooledTempFile, u64, &Mark) -> Result<()>,
) -> Result<Mark> {
    let mut backlog = Backlog::open(path)?;
    let (first, page_size, log) = (backlog.header().first, backlog.header().page_bytes, backlog.header().log);
    if first > position {
        bail!("{} begins after what the archive has", path.display());
    }
    let mut hand_over = |group: &Group<Vec<u8>>| {
        let encoded = group.encode(&mark, |image, page| {
            page.copy_from_slice(image);
            Ok(())
        })?;
        if let Some((file, after)) = encoded {
            archive(file, mark.txid + 1, &after)?;
            mark = after;
        }
        anyhow::Ok(())
    };
    let mut group = Group::new(page_size, log);
    let mut page = vec![0; page_size as usize];
    while let Some(commit) = backlog.next_commit()? {
        let mut pages = Vec::new();
        while let Some(number) = backlog.next_page(&mut page)? {
            if commit.position > position {
                pages.push((number, page.clone()));
            }
        }
        if commit.position <= position {
            continue;
        }
        let (position, time_ms, db_pages) = (commit.position, commit.time_ms, commit.db_pages);
        group.push(Commit { position, time_ms, db_pages }, pages);
        if group.is_full() {
            hand_over(&std::mem::replace(&mut group, Group::new(page_size, log)))?;
        }
    }
    hand_over(&group)?;
    Ok(mark)
}
