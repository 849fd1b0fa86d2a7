//! What the store knows of free pages, and of pages that a load is writing.

use rustc_hash::FxHashMap;

use crate::format::{Lsn, PageId};

/// The size of the groups of pages for which the store records the last object that freed one of them.
pub(super) const GROUP: u64 = 256;

/// A run of adjacent pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: PageId,
    pub(crate) count: u64,
    /// The log's head when the run was taken. The old content of the pages is older, and a page that is written to the
    /// run may have this LSN.
    pub(crate) head: Lsn,
}

/// Which free pages log objects may still refer to, and which pages a load is writing.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// For each group of pages, the newest object that has freed one of them since the store was opened.
    pub(super) freed: FxHashMap<u64, Lsn>,
    /// When the store was opened, the log may have referred to any page before `known`, by objects up to `opened`.
    known: PageId,
    opened: Lsn,
    /// The runs of loads that have not committed: first pages and lengths.
    pub(super) being_written: Vec<(PageId, u64)>,
}

impl Runs {
    pub(super) fn opened(&mut self, pages: PageId, newest: Lsn) {
        (self.known, self.opened) = (pages, newest);
    }

    /// Whether no log object from `head` on refers to a free page.
    pub(super) fn is_forgotten(&self, page: PageId, head: Lsn) -> bool {
        let opened = if page < self.known { self.opened } else { 0 };
        self.freed.get(&(page / GROUP)).copied().unwrap_or(0).max(opened) < head
    }
}
