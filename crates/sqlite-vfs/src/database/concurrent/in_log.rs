//! The frames of an open transaction that are in the log.

use duralite_format::wal_index::IndexHeader;

/// The frames of a large transaction that are in the log. Other connections do not see these frames before
/// the transaction's commit.
pub(super) struct InLog {
    /// The state of the log directly before the first of these frames.
    pub base: IndexHeader,
    /// The page of each frame that is in the log.
    pub pages: Vec<u32>,
    /// The frame, counted from 0, whose header SQLite has just written.
    begun: Option<usize>,
    /// The first frame, counted from 0, whose page SQLite has written again.
    pub overwritten: Option<usize>,
}

impl InLog {
    /// Makes the value for a large transaction without frames yet, whose first frame comes directly after
    /// this state of the log.
    pub fn behind(base: IndexHeader) -> Self {
        Self { base, pages: Vec::new(), begun: None, overwritten: None }
    }

    /// Returns the number in the log of the frame `at`, which is counted from 0.
    pub fn number(&self, at: usize) -> u32 {
        self.base.frames() + u32::try_from(at + 1).unwrap_or(u32::MAX)
    }

    /// Notes that SQLite writes the page of the frame `at`, for the first time or again. The frame is in the
    /// log. `is_whole` says whether SQLite writes the end of the page.
    pub fn write_page(&mut self, at: usize, is_whole: bool) {
        if self.begun != Some(at) {
            self.overwritten = Some(self.overwritten.map_or(at, |first| first.min(at)));
        }
        if is_whole {
            self.begun = None;
        }
    }

    /// Notes that SQLite appends the frame `at`, with this page. After a rollback to a savepoint, SQLite may
    /// also write the frame again.
    pub fn begin_frame(&mut self, at: usize, page: u32) {
        self.pages.truncate(at);
        self.overwritten = self.overwritten.filter(|first| *first < at);
        self.pages.push(page);
        self.begun = Some(at);
    }
}
