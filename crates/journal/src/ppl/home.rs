//! The database as SQLite sees it: pages on flash with the records of the log up to where SQLite has checkpointed them.
//!
//! SQLite's checkpoint is *logical*: it hands over a page as it is after some transaction, and all that happens is that the
//! page's home position moves there. What readers of older snapshots need is still there, since nothing is merged beyond.

use std::sync::Arc;

use duralite_logfmt::page_change;

use super::area::State;
use super::chain::Walk;
use super::frames::Entry;
use super::merge::Cause;
use super::pages::Chain;
use super::recent::is_same;
use super::seal::{Buffers, Change, Sealing};
use super::store::{AsOf, Scratch, Store};
use super::words::{CHECKPOINTED, DB_PAGES, EPOCH, FILE_SYNCED, HOME_PAGES, SEALED};
use crate::JournalError;
use crate::engine::wall_clock;
use crate::home::{DatabaseFile, Header, Home};

/// The home of a log's pages.
pub(super) struct LoggedHome(pub(super) Arc<Store>);

/// The parts of pages that a range of bytes covers: page number, offset in the page, and bytes of the range.
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

    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, JournalError> {
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

    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
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

    /// What was written is durable already, in the log: only merges are done. The first time in the file too, whose guard
    /// somebody may have put on who died before it was durable.
    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        let words = &self.0.words;
        if words.load(FILE_SYNCED) == 0 {
            file.sync()?;
            words.store(FILE_SYNCED, 1);
        }
        self.0.tidy(file)
    }

    fn checkpointed(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        self.0.tidy(file)
    }

    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, JournalError> {
        match self.0.words.load(HOME_PAGES) {
            0 => file.size(),
            pages => Ok(pages * u64::from(self.0.page_bytes)),
        }
    }

    /// The file itself is cut when all is drained: until then changes may be recorded of what is in it.
    fn truncate(&self, _file: &dyn DatabaseFile, bytes: u64) -> Result<(), JournalError> {
        let _turn = self.0.lock()?;
        self.0.words.store(HOME_PAGES, bytes.div_ceil(u64::from(self.0.page_bytes)));
        Ok(())
    }

    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        self.0.drain(file)
    }
}

impl Store {
    /// Makes a page at home what `page` is: as it is after one of the transactions in its log, or else by a transaction
    /// of its own.
    fn move_home(&self, file: &dyn DatabaseFile, page_number: u32, page: &[u8]) -> Result<(), JournalError> {
        self.words.add(CHECKPOINTED, 1);
        let found = match self.recent.version_of(page_number, page) {
            Some(number) if self.is_home_before(page_number, number)? => Found::After(number),
            _ => self.find_version(file, page_number, page)?,
        };
        if found == Found::Nowhere {
            return self.write_directly(file, page_number, page);
        }
        let _turn = self.lock()?;
        // First: a page beyond the end is at home for nobody.
        if u64::from(page_number) > self.home_pages(file)? {
            self.words.store(HOME_PAGES, u64::from(page_number));
        }
        if let Found::After(number) = found
            // One without a chain was merged meanwhile, and is at home.
            && let Some(first) = self.area.find_chain(page_number)?
            && self.area.state(first, State::Home) < number
        {
            self.area.set_state(first, State::Home, number);
        }
        Ok(())
    }

    /// Whether a page is home as far as a transaction, and no further.
    fn is_home_before(&self, page_number: u32, number: u64) -> Result<bool, JournalError> {
        let Some(first) = self.area.find_chain(page_number)? else { return Ok(false) };
        Ok(self.home_position(self.area.state(first, State::Home)) <= number)
    }

    /// The first version of a page, from that at home on, that looks like this.
    fn find_version(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &[u8],
    ) -> Result<Found, JournalError> {
        let mut chain = Chain::default();
        let mut image = vec![0; page.len()];
        let (mut scratch, mut payload) = (Scratch::default(), Vec::new());
        loop {
            let epoch = self.words.epoch();
            let version = self.read(file, page_number, AsOf::Home, &mut image, &mut scratch)?;
            if is_same(page_number, &image, page) {
                return Ok(Found::Home);
            }
            // What is committed by now is all in the extents that are found next.
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
    ) -> Result<Found, JournalError> {
        let home = self.home_position(chain.home);
        let mut walk = Walk::new(&self.area, &chain.extents, self.page_bytes).upto(sealed);
        while let Some(record) = walk.next()? {
            if record.transaction <= after || record.transaction <= home {
                continue;
            }
            walk.payload(&record, page_number, payload)?;
            page_change::apply(image, payload)
                .map_err(|what| JournalError::Corrupt { offset: record.at, what })?;
            if is_same(page_number, image, page) {
                return Ok(Found::After(record.transaction));
            }
        }
        Ok(Found::Nowhere)
    }

    /// What is written while no WAL is in use is a transaction of its own, which is home at once.
    fn write_directly(
        &self,
        file: &dyn DatabaseFile,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), JournalError> {
        let mut payload = Vec::new();
        page_change::encode_whole(page, &mut payload);
        let changes = [Change { page_number, payload }];
        let turn = self.lock_for(file, &changes, 0)?;
        let number = self.words.load(SEALED) + 1;
        if self.area.find_chain(page_number)?.is_some_and(|first| self.is_ahead(first)) {
            // It would take the place of what has been committed since.
            return Err(JournalError::Unexpected("a page that was changed on its way to the database"));
        }
        let pages = self.home_pages(file)?.max(u64::from(page_number));
        let db_pages = u32::try_from(pages.max(self.words.load(DB_PAGES))).unwrap_or(u32::MAX);
        let entry = Entry::empty(number, db_pages, wall_clock());
        self.seal(&turn, &Sealing { changes: &changes, entry, retired: false }, &mut Buffers::default())?;
        if let Some(first) = self.area.find_chain(page_number)? {
            self.area.set_state(first, State::Home, number);
        }
        self.words.store(HOME_PAGES, pages);
        Ok(())
    }

    /// Puts every page into the file as it is at home, and forgets the rest. The caller has the database to itself.
    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), JournalError> {
        // Nobody else merges now: whoever did has died, and its number may be another one's.
        (0..self.area.geometry.slots).for_each(|slot| self.words.own_slot(slot, false));
        loop {
            let pages: Vec<u32> = self.area.all_chains()?.into_iter().map(|(page, _)| page).collect();
            if pages.is_empty() || self.merge(file, &pages, Cause::Closing)?.pages == 0 {
                break;
            }
        }
        for (page_number, _) in self.area.all_chains()? {
            if self.has_to_merge(page_number)? {
                return Err(JournalError::Unexpected("a page that cannot be merged"));
            }
        }
        let size = self.home_pages(file)? * u64::from(self.page_bytes);
        let now = file.size()?;
        if now < size {
            // The last pages were never written: they are zeros.
            file.write(&[0], size - 1)?;
        } else if now > size {
            file.truncate(size)?;
        }
        if now != size {
            file.sync()?;
        }
        self.drop_chains()
    }

    /// Drops what is left of chains: records of transactions that nobody could see.
    fn drop_chains(&self) -> Result<(), JournalError> {
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

/// Which version of a page looks like one that is written home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The one that is there.
    Home,
    /// That after a transaction.
    After(u64),
    /// None.
    Nowhere,
}
