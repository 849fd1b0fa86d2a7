//! Pages that are read before somebody needs them, neighbours at once.

use std::sync::atomic::Ordering;

use duralite_logfmt::store::{PageId, check};

use super::PageFile;
use crate::error::Error;

impl PageFile {
    /// Reads neighbouring pages by one call, from `first` on, without a look at what they are.
    ///
    /// # Errors
    /// Of the medium, which may be for one of them only: nothing is sure of any then.
    pub(crate) fn read_neighbours(&self, first: PageId, into: &mut [&mut [u8]]) -> Result<(), Error> {
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        let read = self.block.read_parts(first * self.page_bytes as u64, into);
        read.map_err(|error| Error::medium("reading pages", error))
    }

    /// Whether a page is what was written.
    pub(crate) fn is_whole(&self, id: PageId, bytes: &[u8]) -> bool {
        check(bytes, id, self.seed).is_ok()
    }

    /// Says that pages, in the order of the file, will be read soon.
    pub(crate) fn will_read(&self, pages: &[PageId]) {
        for run in runs(pages) {
            self.block.will_read(run[0] * self.page_bytes as u64, (run.len() * self.page_bytes) as u64);
        }
    }
}

/// Pages in the order of the file, by neighbours.
pub(crate) fn runs(pages: &[PageId]) -> impl Iterator<Item = &[PageId]> {
    pages.chunk_by(|one, next| one + 1 == *next)
}
