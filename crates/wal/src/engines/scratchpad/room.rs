//! Finds pages that no log needs, and gives them back.
//!
//! A page is needed as long as the file of its log exists. A log that is no longer in the region's directory may have
//! been moved, and still needs its pages. So a process may give back a log's pages only while it has the log's file
//! open. That is a process that uses the log, the process that deletes the file ([`release`]), or the last process that
//! closes a file without a name. A log that cannot be found loses its pages only by an explicit command ([`reclaim`]).
//!
//! Invariants kept here: 12, 14, 24.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use duralite_format::LogId;
use duralite_format::scratchpad::{COUNTED_OFFSET, LOGS_AT, Owner};
use duralite_medium::Nvm;
use rustc_hash::FxHashMap;

use super::region::{Needed, Region, add, offset_of};
use super::region_file::{self, RegionFile};
use crate::LogError;

impl Region {
    /// Gives back the pages that dead processes took for this log, except those that are `needed`. Does nothing if
    /// `needed` is `None`.
    pub(super) fn collect_dead(&self, needed: Option<Needed<'_>>) {
        let (Some(needed), Some(segment)) = (needed, &self.segment) else { return };
        self.collect(needed, |slot| segment.is_alive(slot).unwrap_or(true));
    }

    /// Gives back all of the log's pages, except those that are `needed` and those of other living processes.
    pub(super) fn collect(&self, needed: impl Fn(u32) -> bool, lives: impl Fn(usize) -> bool) {
        if !self.is_writable() {
            return;
        }
        self.free(|page, word| {
            let slot = Owner::slot_in(word);
            let is_left = Owner::in_word(word) == Some(self.owner) && (slot == self.slot || !lives(slot));
            is_left && !needed(page)
        });
    }

    /// Gives back all pages of the log, because the log is gone or about to be deleted.
    pub(super) fn collect_all(&self) {
        self.collect(|_| false, |_| false);
    }

    /// Frees each page for which `is_free` returns `true`. The arguments of `is_free` are the page's number and owner
    /// word. Returns the number of pages freed.
    fn free(&self, is_free: impl Fn(u32, u64) -> bool) -> u32 {
        let mut given = 0;
        for page in 1..self.pages() {
            let word = self.owner_word(page);
            // Free the page only if its word is unchanged. Another process may have given the page back since, and a third
            // process may have taken it.
            if is_free(page, word) && self.nvm.compare_exchange_u64(offset_of(page), word, 0).is_ok() {
                given += 1;
            }
        }
        self.count(-i64::from(given));
        given
    }

    /// Returns the owners of the region's pages, each with the number of its pages.
    fn owners(&self) -> FxHashMap<Owner, u32> {
        let mut owners = FxHashMap::default();
        for owner in (1..self.pages()).filter_map(|page| Owner::in_word(self.owner_word(page))) {
            *owners.entry(owner).or_default() += 1;
        }
        owners
    }

    /// Returns the error for a region without a free page. The error says why there is none.
    pub(super) fn full(&self) -> LogError {
        let limit_bytes = self.superblock.limit_bytes();
        let missing = self.file.as_ref().and_then(|file| {
            let mut owners = self.owners();
            owners.remove(&self.owner);
            let missing = file.missing(self.superblock.id, &owners).ok()?;
            let pages: u32 = missing.iter().filter_map(|owner| owners.get(owner)).sum();
            (pages > 0).then(|| (file.path.clone(), offset_of(pages)))
        });
        match missing {
            Some((region, missing_bytes)) => LogError::RegionFull { region, limit_bytes, missing_bytes },
            None => LogError::LimitReached { limit_bytes },
        }
    }

    /// Returns whether the log's file has lost its last name, so that no further process can open it.
    fn is_nameless(&self) -> bool {
        let meta = self.log_file.as_ref().and_then(|file| file.metadata().ok());
        meta.is_some_and(|meta| meta.nlink() == 0)
    }

    /// Removes this log from the region's count of logs.
    pub(super) fn uncount(&self, log: &dyn Nvm) {
        if self.is_writable() && log.compare_exchange_u64(COUNTED_OFFSET, 1, 0).is_ok() {
            // Clear the log's word first. After a crash between the two stores, the region counts one log too many, so
            // no process deletes the region. If it counted one too few, a process might delete it while a log needs it.
            log.flush(COUNTED_OFFSET, 8);
            log.fence();
            add(&*self.nvm, LOGS_AT, -1);
            self.nvm.flush(LOGS_AT, 8);
            self.nvm.fence();
        }
    }
}

/// Counts a log that is being made, before another process can open it. The count is durable on return. The caller holds
/// the region's lock.
pub(super) fn count_log(log: &dyn Nvm, region: &dyn Nvm) {
    add(region, LOGS_AT, 1);
    region.flush(LOGS_AT, 8);
    region.fence();
    log.store_u64(COUNTED_OFFSET, 1);
    log.flush(COUNTED_OFFSET, 8);
    log.fence();
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_writable()) else { return };
        if self.is_nameless() && file.hold_alone(self.owner).unwrap_or(false) {
            self.collect_all();
        }
        // The last process deletes a region that no log needs. A log in another directory may still own pages. If it
        // owns no page at the moment, only the count of logs shows that it exists. So check both the count and the
        // owners of pages.
        if file.is_unused() && self.nvm.load_u64(LOGS_AT) == 0 && self.owners().is_empty() {
            file.remove_unused(self.superblock.id);
        }
    }
}

/// The contents of a region, and the logs that own them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionUse {
    /// The region's file.
    pub path: PathBuf,
    /// The most bytes of the region that logs may use.
    pub limit_bytes: u64,
    /// The number of bytes of the region that belong to logs in its directory, or to other logs that processes use.
    pub used_bytes: u64,
    /// The number of bytes of the region that belong to all other logs, which somebody has moved, or has deleted
    /// without this library.
    pub missing_bytes: u64,
    /// The number of logs that own these missing bytes.
    pub missing_logs: usize,
}

/// Examines the regions in a directory. With `discard`, also gives back the pages of missing logs. That cannot be
/// undone, even if such a log was only moved. In the result, the pages that this call gave back still count as pages of
/// missing logs.
///
/// # Errors
/// `Io` if the directory or one of its logs cannot be read; `Format` and `Owner` for a region; `Busy` while a region is being
/// deleted.
pub fn reclaim(dir: &Path, discard: bool) -> Result<Vec<RegionUse>, LogError> {
    let mut found = Vec::new();
    let regions =
        region_file::regions_in(dir).map_err(|error| LogError::io("read directory", dir, &error))?;
    for path in regions {
        let Some((file, superblock)) = region_file::open_named(&path)? else { continue };
        let nvm = region_file::map_whole(&file, &superblock)?;
        // Open the region as a log that owns no pages would.
        let nobody = LogId([0; 16]);
        let mut region = Region::new(nvm, superblock, nobody, None, path.clone(), false);
        let owners = region.owners();
        let missing = file.missing(superblock.id, &owners)?;
        let pages: u32 = missing.iter().filter_map(|owner| owners.get(owner)).sum();
        let all: u32 = owners.values().sum();
        if discard {
            missing.iter().try_for_each(|owner| give_back_of(&region, &file, *owner))?;
            if file.is_unused() {
                region.nvm.store_u64(LOGS_AT, file.logs(superblock.id)?.len() as u64);
            }
        }
        region.file = Some(file);
        found.push(RegionUse {
            path,
            limit_bytes: superblock.limit_bytes() - offset_of(1),
            used_bytes: offset_of(all - pages),
            missing_bytes: offset_of(pages),
            missing_logs: missing.len(),
        });
    }
    Ok(found)
}

fn give_back_of(region: &Region, file: &RegionFile, owner: Owner) -> Result<(), LogError> {
    // If a process is attaching the log, it either holds this lock already or has to wait for it.
    if file.hold_alone(owner)? {
        region.free(|_, word| Owner::in_word(word) == Some(owner));
        file.let_go(owner);
    }
    Ok(())
}

/// Gives back all pages of a log that no process uses, because the log is about to be deleted.
pub(super) fn release(region: &Region, log: &dyn Nvm) {
    region.collect_all();
    region.uncount(log);
}
