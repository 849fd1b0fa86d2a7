//! Writes pages directly to the page file, bypassing the cache.

use super::Pool;
use crate::error::Error;
use crate::format::{PageId, lsn};

impl Pool {
    /// Writes adjacent pages home, bypassing the cache. No transaction may be reading these pages. The pages are not
    /// durable on return, and a crash may tear them. The pages' LSN must be the number of a durable log object.
    /// Otherwise a crash could lose that object. Later objects would then get lower numbers than the LSN, and redo
    /// would skip their changes of these pages.
    ///
    /// # Errors
    /// [`Error::Full`] if the disk is full; any other error has poisoned the store.
    pub(crate) fn write_past(&self, first: PageId, pages: &mut [u8]) -> Result<(), Error> {
        self.poison.check()?;
        self.file.write_past(first, pages).map_err(|error| match error {
            Error::Full { .. } => error,
            error => self.poison.set(&error),
        })
    }

    /// Makes all pages durable that `write_past` has written.
    ///
    /// # Errors
    /// Any error has poisoned the store.
    pub(crate) fn flush_past(&self) -> Result<(), Error> {
        self.file.flush().map_err(|error| self.poison.set(&error))
    }

    /// Reads a page into its frame again, if the cache has an old copy of it. `write_past` has written a new version of
    /// the page to the file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_anew(&self, id: PageId) -> Result<(), Error> {
        let Some(pin) = self.pin_cached(id) else { return Ok(()) };
        let mut page = pin.write();
        if !page.guard.is_valid || page.guard.id != id {
            return Ok(());
        }
        if page.pin.frame.is_dirty() {
            // No step changes a page that is being loaded. If such a page is dirty, the space map must be wrong.
            return Err(Error::Corrupt { what: "the space map".to_owned(), page: Some(id) });
        }
        if page.guard.snapshot.take().is_some() {
            page.pin.frame.has_changed();
        }
        self.file.read_page(id, &mut page.guard.bytes)?;
        debug_assert!(lsn(&page.guard.bytes) < self.log.next());
        page.pin.frame.note_kind(&page.guard.bytes, page.pin.tallies);
        Ok(())
    }
}
