//! Pages that nobody needs: finding them, and giving them back.
//!
//! A page is needed as long as its log may come to be read again, and that only the log's file decides, wherever it is: one
//! that is not in the region's directory any more may have been moved, and what it has committed is here. So pages of a log
//! are given back by those who have the log: its processes, whoever deletes its file ([`release`]), and the last one to let go
//! of a file that has lost its name. Nobody takes them from a log that is merely not found, but who is told to by name
//! ([`reclaim`]).
//!
//! Invariants kept here: 12, 14, 24.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use duralite_logfmt::LogId;
use duralite_logfmt::scratchpad::{COUNTED_OFFSET, LOGS_AT, Owner};
use duralite_medium::Nvm;
use rustc_hash::FxHashMap;

use super::region::{Needed, Region, add, offset_of};
use super::region_file::{self, RegionFile};
use crate::JournalError;

impl Region {
    /// Gives back what processes of this log that died have left, where it is known what is needed.
    pub(super) fn collect_dead(&self, needed: Option<Needed<'_>>) {
        let (Some(needed), Some(segment)) = (needed, &self.segment) else { return };
        self.collect(needed, |slot| segment.is_alive(slot).unwrap_or(true));
    }

    /// Gives back what this log's processes have left: all pages but those that `needed` says and those of other
    /// processes that live.
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

    /// Gives back all that the log has: it is about to be deleted, or is gone.
    pub(super) fn collect_all(&self) {
        self.collect(|_| false, |_| false);
    }

    /// Makes those pages free of which this is so, by number and owner's word.
    fn free(&self, is_free: impl Fn(u32, u64) -> bool) -> u32 {
        let mut given = 0;
        for page in 1..self.pages() {
            let word = self.owner_word(page);
            // Only as it was looked at: somebody may have given it back meanwhile, and taken it again.
            if is_free(page, word) && self.nvm.compare_exchange_u64(offset_of(page), word, 0).is_ok() {
                given += 1;
            }
        }
        self.count(-i64::from(given));
        given
    }

    /// The owners of pages, and how many pages each has.
    fn owners(&self) -> FxHashMap<Owner, u32> {
        let mut owners = FxHashMap::default();
        for owner in (1..self.pages()).filter_map(|page| Owner::in_word(self.owner_word(page))) {
            *owners.entry(owner).or_default() += 1;
        }
        owners
    }

    /// Why there is no page left.
    pub(super) fn full(&self) -> JournalError {
        let limit_bytes = self.superblock.limit_bytes();
        let missing = self.file.as_ref().and_then(|file| {
            let mut owners = self.owners();
            owners.remove(&self.owner);
            let missing = file.missing(self.superblock.id, &owners).ok()?;
            let pages: u32 = missing.iter().filter_map(|owner| owners.get(owner)).sum();
            (pages > 0).then(|| (file.path.clone(), offset_of(pages)))
        });
        match missing {
            Some((region, missing_bytes)) => JournalError::RegionFull { region, limit_bytes, missing_bytes },
            None => JournalError::LimitReached { limit_bytes },
        }
    }

    /// Whether the log's file has lost its last name, so that nobody can open it any more who has not.
    fn is_nameless(&self) -> bool {
        let meta = self.log_file.as_ref().and_then(|file| file.metadata().ok());
        meta.is_some_and(|meta| meta.nlink() == 0)
    }

    /// Notes that this log's region has it no more.
    pub(super) fn uncount(&self, log: &dyn Nvm) {
        if self.is_writable() && log.compare_exchange_u64(COUNTED_OFFSET, 1, 0).is_ok() {
            // First here: a region that counts one log too many stays, where one too few might be deleted.
            log.flush(COUNTED_OFFSET, 8);
            log.fence();
            add(&*self.nvm, LOGS_AT, -1);
            self.nvm.flush(LOGS_AT, 8);
            self.nvm.fence();
        }
    }
}

/// Counts a log that is being made, before anybody can open it; durable on return. The caller holds the region.
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
        // Whoever is the last one leaves no region behind that is good for nobody. A log that was moved elsewhere may own
        // pages still, or have none just now.
        if file.is_unused() && self.nvm.load_u64(LOGS_AT) == 0 && self.owners().is_empty() {
            file.remove_unused(self.superblock.id);
        }
    }
}

/// What a region holds, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionUse {
    /// Its file.
    pub path: PathBuf,
    /// Most bytes that logs may have of it.
    pub limit_bytes: u64,
    /// Bytes of logs that are in its directory, or in use.
    pub used_bytes: u64,
    /// Bytes of logs that are neither: they were moved, or deleted by other means than this library.
    pub missing_bytes: u64,
    /// How many such logs there are.
    pub missing_logs: usize,
}

/// Looks at the regions in a directory, and gives back with `discard` what logs have that are missing: for good, also if they
/// have been moved and not deleted. Bytes that were given back are told as missing once more.
///
/// # Errors
/// `Io` where the directory or one of its logs cannot be read, `Format` and `Owner` of a region; `Busy` while one is being
/// deleted.
pub fn reclaim(dir: &Path, discard: bool) -> Result<Vec<RegionUse>, JournalError> {
    let mut found = Vec::new();
    let regions =
        region_file::regions_in(dir).map_err(|error| JournalError::io("read directory", dir, &error))?;
    for path in regions {
        let Some((file, superblock)) = region_file::open_named(&path)? else { continue };
        let nvm = region_file::map_whole(&file, &superblock)?;
        // As a log that has nothing.
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

fn give_back_of(region: &Region, file: &RegionFile, owner: Owner) -> Result<(), JournalError> {
    // Whoever attaches it just now waits, or has it already.
    if file.hold_alone(owner)? {
        region.free(|_, word| Owner::in_word(word) == Some(owner));
        file.let_go(owner);
    }
    Ok(())
}

/// Gives back all that a log has which nobody uses, and which is about to be deleted.
pub(super) fn release(region: &Region, log: &dyn Nvm) {
    region.collect_all();
    region.uncount(log);
}
