//! The database as SQLite sees it: pages on flash, with records of the log applied. SQLite sees each page as of the
//! page's *home position*, which is the transaction up to which SQLite has checkpointed the page.
//!
//! SQLite's checkpoint is *logical*: SQLite hands over a page as it is after some transaction, and the engine only moves the
//! page's home position to that transaction. Readers of older snapshots still find their versions of the page, because no
//! merge goes beyond the home position.

use std::sync::Arc;

use duralite_format::page_change;

use super::area::State;
use super::chain::{Chain, Walk};
use super::frames::Entry;
use super::merge::Cause;
use super::seal::{Buffers, Change, Sealing};
use super::store::{AsOf, Scratch, Store, is_same};
use super::words::{CHECKPOINTED, DB_PAGES, EPOCH, FILE_SYNCED, HOME_PAGES, SEALED, Turn};
use crate::LogError;
use crate::engine::home::{DatabaseFile, Header, Home};
use crate::engine::wall_clock;

/// The home of a log's pages.
pub(super) struct LoggedHome(pub(super) Arc<Store>);

/// Returns the parts of pages that a range of bytes covers. For each part: the page number, the offset in the page, and the
/// bytes of the range that are in this page.
fn pages_of(
    offset: u64,
    len: usize,
    page_bytes: u32,
) -> impl Iterator<Item = (u32, usize, std::ops::Range<usize>)> {
    let page = u64::from(page_bytes);
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % page) as usize;
        let count = (page as usize - within).min(len - done);
        let range = done..done + count;
        done += count;
        Some((u32::try_from(at / page + 1).ok()?, within, range))
    })
}

impl Home for LoggedHome {
    fn header(&self) -> Header {
        Header::Held
    }

    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let store = &*self.0;
        let size = self.size(file)?;
        let wanted =
            usize::try_from(size.saturating_sub(offset)).map_or(buf.len(), |left| left.min(buf.len()));
        let mut scratch = Scratch::default();
        for (page_number, within, range) in pages_of(offset, wanted, store.page_bytes) {
            let part = &mut buf[range];
            if part.len() == store.page_bytes as usize {
                store.read(file, page_number, AsOf::Home, part, &mut scratch)?;
            } else {
                let mut page = vec![0; store.page_bytes as usize];
                store.read(file, page_number, AsOf::Home, &mut page, &mut scratch)?;
                part.copy_from_slice(&page[within..within + part.len()]);
            }
        }
        Ok(wanted)
    }

    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let store = &*self.0;
        for (page_number, within, range) in pages_of(offset, bytes.len(), store.page_bytes) {
            let part = &bytes[range];
            if part.len() == store.page_bytes as usize {
                store.move_home(file, page_number, part)?;
            } else {
                let mut page = vec![0; store.page_bytes as usize];
                store.read(file, page_number, AsOf::Home, &mut page, &mut Scratch::default())?;
                page[within..within + part.len()].copy_from_slice(part);
                store.move_home(file, page_number, &page)?;
            }
        }
        Ok(())
    }

    /// Does only the merges that are due, because what SQLite wrote is durable in the log already. The first sync also
    /// syncs the file, because some process may have put the guard on the file and died before the guard was durable.
    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        let words = &self.0.words;
        if words.load(FILE_SYNCED) == 0 {
            file.sync()?;
            words.store(FILE_SYNCED, 1);
        }
        self.0.tidy(file)
    }

    fn checkpointed(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        self.0.tidy(file)
    }

    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        match self.0.words.load(HOME_PAGES) {
            0 => file.size(),
            pages => Ok(pages * u64::from(self.0.page_bytes)),
        }
    }

    /// Sets only the size that SQLite sees; the drain truncates the file later. Until the drain, the file keeps the
    /// pages beyond the end: if the database grows again, a new record may be a difference from such a page.
    fn truncate(&self, _file: &dyn DatabaseFile, bytes: u64) -> Result<(), LogError> {
        let _turn = self.0.lock()?;
        self.0.words.store(HOME_PAGES, bytes.div_ceil(u64::from(self.0.page_bytes)));
        Ok(())
    }

    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        self.0.drain(file)
    }
}

impl Store {
    /// Makes `page` the version that SQLite sees in the database. If a transaction in the log left the page with these
    /// contents, the page's home position moves to that transaction. Otherwise this call commits the page as a
    /// transaction of its own.
    fn move_home(&self, file: &dyn DatabaseFile, page_number: u32, page: &[u8]) -> Result<(), LogError> {
        self.words.add(CHECKPOINTED, 1);
        let found = match self.recent.version_of(page_number, page) {
            Some(number) if self.is_home_before(page_number, number)? => Found::After(number),
            _ => self.find_version(file, page_number, page)?,
        };
        if found == Found::Nowhere {
            return self.write_directly(file, page_number, page);
        }
        let _turn = self.lock()?;
        // Raise the size first, because SQLite sees no page beyond the home's size.
        if u64::from(page_number) > self.home_pages(file)? {
            self.words.store(HOME_PAGES, u64::from(page_number));
        }
        if let Found::After(number) = found
            // If the chain is gone, another process has merged the page into the file since the search, and no home
            // position has to move.
            && let Some(first) = self.area.find_chain(page_number)?
            && self.area.state(first, State::Home) < number
        {
            self.area.set_state(first, State::Home, number);
        }
        Ok(())
    }

    /// Returns whether a page has a chain and its home position is not later than transaction `number`.
    fn is_home_before(&self, page_number: u32, number: u64) -> Result<bool, LogError> {
        let Some(first) = self.area.find_chain(page_number)? else { return Ok(false) };
        Ok(self.home_position(self.area.state(first, State::Home)) <= number)
    }

    /// Searches for the first version of a page that equals `page`, beginning with the version at the page's home
    /// position.
    fn find_version(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &[u8],
    ) -> Result<Found, LogError> {
        let mut chain = Chain::default();
        let mut image = vec![0; page.len()];
        let (mut scratch, mut payload) = (Scratch::default(), Vec::new());
        loop {
            let epoch = self.words.epoch();
            let version = self.read(file, page_number, AsOf::Home, &mut image, &mut scratch)?;
            if is_same(page_number, &image, page) {
                return Ok(Found::Home);
            }
            // The call below loads extents that contain at least all records committed up to now.
            let range = (version.transaction, self.words.load(SEALED));
            let found = match self.pages.load(&self.area, page_number, &mut chain) {
                Ok(true) => self.find_in(&chain, page_number, range, page, &mut image, &mut payload),
                Ok(false) => Ok(Found::Nowhere),
                Err(error) => Err(error),
            };
            if epoch.is_some() && self.words.epoch() == epoch {
                return found;
            }
        }
    }

    fn find_in(
        &self,
        chain: &Chain,
        page_number: u32,
        (after, sealed): (u64, u64),
        page: &[u8],
        image: &mut [u8],
        payload: &mut Vec<u8>,
    ) -> Result<Found, LogError> {
        let home = self.home_position(chain.home);
        let mut walk = Walk::new(&self.area, &chain.extents, self.page_bytes).upto(sealed);
        while let Some(record) = walk.next()? {
            if record.transaction <= after || record.transaction <= home {
                continue;
            }
            walk.payload(&record, page_number, payload)?;
            page_change::apply(image, payload)
                .map_err(|what| LogError::Corrupt { offset: record.at, what })?;
            if is_same(page_number, image, page) {
                return Ok(Found::After(record.transaction));
            }
        }
        Ok(Found::Nowhere)
    }

    /// Commits a page that SQLite writes without a WAL. The page becomes a transaction of its own, and its home
    /// position moves to that transaction at once.
    fn write_directly(&self, file: &dyn DatabaseFile, page_number: u32, page: &[u8]) -> Result<(), LogError> {
        let mut payload = Vec::new();
        page_change::encode_whole(page, &mut payload);
        let changes = [Change { page_number, payload }];
        let turn = self.lock_for(file, &changes, 0)?;
        if self.area.find_chain(page_number)?.is_some_and(|first| self.is_ahead(first)) {
            // Others have committed a version of this page that SQLite has not checkpointed. This write would replace
            // it.
            return Err(LogError::Unexpected("a page that was changed on its way to the database"));
        }
        let pages = self.home_pages(file)?.max(u64::from(page_number));
        self.seal_home(&turn, &changes, pages.max(self.words.load(DB_PAGES)))?;
        self.words.store(HOME_PAGES, pages);
        Ok(())
    }

    /// Writes every page to the file in the version that SQLite sees, and then drops all records that are left. The
    /// caller is the only user of the database.
    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        // No process is merging now. If a slot has an owner, that process has died, and its process slot may belong to
        // a living process by now. So clear all owners.
        (0..self.area.geometry.slots).for_each(|slot| self.words.own_slot(slot, false));
        self.undo_unseen(file)?;
        loop {
            let pages: Vec<u32> = self.area.all_chains()?.into_iter().map(|(page, _)| page).collect();
            if pages.is_empty() || self.merge(file, &pages, Cause::Closing)?.pages == 0 {
                break;
            }
        }
        for (page_number, _) in self.area.all_chains()? {
            if self.has_to_merge(page_number)? {
                return Err(LogError::Unexpected("a page that cannot be merged"));
            }
        }
        let size = self.home_pages(file)? * u64::from(self.page_bytes);
        let now = file.size()?;
        if now < size {
            // Nobody ever wrote the last pages, so they are zeros. Writing one byte extends the file.
            file.write(&[0], size - 1)?;
        } else if now > size {
            file.truncate(size)?;
        }
        if now != size {
            file.sync()?;
        }
        self.drop_chains()
    }

    /// Undoes a transaction that was sealed but never published because its writer died. One new transaction undoes it
    /// on all of its pages. Dropping the chains of these pages one by one would be wrong: a crash after some of them
    /// would leave a part of the transaction, and recovery would make that part visible.
    fn undo_unseen(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        let end = self.home_pages(file)?;
        let mut unseen = self.area.all_chains()?;
        unseen.retain(|(page_number, first)| self.is_unseen(*page_number, *first, end));
        let unseen: Vec<u32> = unseen.into_iter().map(|(page_number, _)| page_number).collect();
        let changes = self.changes_to(file, &unseen, AsOf::Home, |_, _, home, payload| {
            page_change::encode_whole(home, payload);
        })?;
        if changes.is_empty() {
            return Ok(());
        }
        let turn = self.lock_for(file, &changes, 0)?;
        self.seal_home(&turn, &changes, end)
    }

    /// Seals pages as a transaction, and moves the home positions of these pages to it. Afterwards the database has
    /// `db_pages` pages.
    fn seal_home(&self, turn: &Turn<'_>, changes: &[Change], db_pages: u64) -> Result<(), LogError> {
        let number = self.words.load(SEALED) + 1;
        let entry = Entry::empty(number, u32::try_from(db_pages).unwrap_or(u32::MAX), wall_clock());
        self.seal(turn, &Sealing { changes, entry, retired: false }, &mut Buffers::default())?;
        for change in changes {
            if let Some(first) = self.area.find_chain(change.page_number)? {
                self.area.set_state(first, State::Home, number);
            }
        }
        Ok(())
    }

    /// Drops the chains that are left. The database needs none of them: their pages are beyond its end, or the file
    /// already has all their records.
    fn drop_chains(&self) -> Result<(), LogError> {
        let turn = self.lock()?;
        let mut extents = Vec::new();
        for (page_number, first) in self.area.all_chains()? {
            self.area.replace_chain(page_number, first, None)?;
            self.area.extents_from(first, &mut extents)?;
            self.words.add(EPOCH, 1);
            self.drop_extents(&turn, &extents);
        }
        self.words.store(DB_PAGES, self.words.load(HOME_PAGES));
        Ok(())
    }
}

/// Which version of a page equals the image that SQLite writes home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The version that SQLite already sees in the database, at the page's home position.
    Home,
    /// The version after a transaction.
    After(u64),
    /// No version.
    Nowhere,
}
