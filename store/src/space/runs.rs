//! Remembers which pages were freed, and which pages a load is writing.

use rustc_hash::FxHashMap;

use crate::format::{Lsn, PageId};

/// The number of pages in a group. For each group, the store remembers the last object that freed one of its pages.
pub(super) const GROUP: u64 = 256;

/// A run of adjacent pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: PageId,
    pub(crate) count: u64,
    /// The log's head when the run was taken. The old content of the pages has lower LSNs. So a load can give this LSN
    /// to the pages that it writes to the run.
    pub(crate) head: Lsn,
}

/// The free pages to which log objects may still refer, and the pages that a load is writing.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// For each group of pages, the newest object that has freed one of its pages since the store was opened.
    pub(super) freed: FxHashMap<u64, Lsn>,
    /// Log objects with numbers up to `opened` may refer to any page below `known`, because the store does not know
    /// which of these pages were freed shortly before it was opened.
    known: PageId,
    opened: Lsn,
    /// The runs of loads that have not committed: each by its first page and its length.
    pub(super) being_written: Vec<(PageId, u64)>,
}

impl Runs {
    pub(super) fn opened(&mut self, pages: PageId, newest: Lsn) {
        (self.known, self.opened) = (pages, newest);
    }

    /// Returns whether no log object from `head` on refers to the free page `page`.
    pub(super) fn is_forgotten(&self, page: PageId, head: Lsn) -> bool {
        let opened = if page < self.known { self.opened } else { 0 };
        self.freed.get(&(page / GROUP)).copied().unwrap_or(0).max(opened) < head
    }
}
