//! Pages that go home past the cache.

use duralite_logfmt::store::{PageId, lsn};

use super::Pool;
use crate::error::Error;

impl Pool {
    /// Writes pages beside each other home that nobody reads. Not durable on return, and torn where a crash comes. Their LSN has to
    /// be that of an object of the log that is durable: a page that claims to be newer than what is left of the log after a crash
    /// would be passed over when the log is redone.
    ///
    /// # Errors
    /// [`Error::Full`] if the disk is; any other has poisoned the store.
    pub(crate) fn write_past(&self, first: PageId, pages: &mut [u8]) -> Result<(), Error> {
        self.poison.check()?;
        self.file.write_past(first, pages).map_err(|error| match error {
            Error::Full { .. } => error,
            error => self.poison.set(&error),
        })
    }

    /// Makes what was written past the cache durable.
    ///
    /// # Errors
    /// The store is poisoned.
    pub(crate) fn flush_past(&self) -> Result<(), Error> {
        self.file.flush().map_err(|error| self.poison.set(&error))
    }

    /// Reads a page anew, if it is in the cache, that was written past it.
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
            // Nobody changes such a page.
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
