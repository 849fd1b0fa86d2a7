//! The frames that a large transaction has in the log before its commit.

use duralite_format::wal_index::IndexHeader;

/// The frames that a large transaction has written to the log before its commit. Other connections do not see
/// these frames yet.
pub(super) struct InLog {
    /// The state of the log directly before the first of these frames.
    pub base: IndexHeader,
    /// The page number of each of these frames.
    pub pages: Vec<u32>,
    /// The frame, counted from 0, whose header SQLite has written and whose page is not complete yet.
    begun: Option<usize>,
    /// The first frame, counted from 0, whose page SQLite has written more than once.
    pub overwritten: Option<usize>,
}

impl InLog {
    /// Returns the value for a large transaction that has no frames in the log yet. `base` is the state of
    /// the log. The transaction's first frame will directly follow it.
    pub fn behind(base: IndexHeader) -> Self {
        Self { base, pages: Vec::new(), begun: None, overwritten: None }
    }

    /// Returns the number that the transaction's frame `at`, which is counted from 0, has in the log.
    pub fn number(&self, at: usize) -> u32 {
        self.base.frames() + u32::try_from(at + 1).unwrap_or(u32::MAX)
    }

    /// Notes that SQLite writes to the page of the frame `at`, which is in the log. `is_whole` says whether
    /// this write reaches the end of the page.
    pub fn write_page(&mut self, at: usize, is_whole: bool) {
        if self.begun != Some(at) {
            self.overwritten = Some(self.overwritten.map_or(at, |first| first.min(at)));
        }
        if is_whole {
            self.begun = None;
        }
    }

    /// Notes that SQLite writes the header of the frame `at`, for this page. The frame is usually a new one.
    /// After a rollback to a savepoint, SQLite may continue with an earlier frame, and the frames from there
    /// on are dropped.
    pub fn begin_frame(&mut self, at: usize, page: u32) {
        self.pages.truncate(at);
        self.overwritten = self.overwritten.filter(|first| *first < at);
        self.pages.push(page);
        self.begun = Some(at);
    }
}
