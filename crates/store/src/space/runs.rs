//! What is known of pages that are free, or that are being written past the cache.

use duralite_logfmt::store::{Lsn, PageId};
use rustc_hash::FxHashMap;

/// Of so many pages it is known when one of them was given back last.
pub(super) const GROUP: u64 = 256;

/// Pages beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: PageId,
    pub(crate) count: u64,
    /// Where the log began: what the pages were before is older, and what is written to them may say that it is as new as this.
    pub(crate) head: Lsn,
}

/// Which pages log objects may still speak of though they are free, and which are being written past the cache.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// By group, the newest object that gave one of its pages back since the store was opened.
    pub(super) freed: FxHashMap<u64, Lsn>,
    /// Pages before this one the log may have spoken of when the store was opened, up to the object `opened`.
    known: PageId,
    opened: Lsn,
    /// Of loads that have not committed: first pages, and how many.
    pub(super) being_written: Vec<(PageId, u64)>,
}

impl Runs {
    pub(super) fn opened(&mut self, pages: PageId, newest: Lsn) {
        (self.known, self.opened) = (pages, newest);
    }

    /// Whether no object from `head` on speaks of a page that is free.
    pub(super) fn is_forgotten(&self, page: PageId, head: Lsn) -> bool {
        let opened = if page < self.known { self.opened } else { 0 };
        self.freed.get(&(page / GROUP)).copied().unwrap_or(0).max(opened) < head
    }
}
