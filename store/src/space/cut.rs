//! Cuts free pages off the end of the page file.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::Ordering;

use super::{SPARE_PAGES, Space};
use crate::error::Error;
use crate::format::{Lsn, PageId, is_set, lsn, pages_in_use};
use crate::pager::Pager;

/// The number of pages that are checked at a time. Their space maps are latched meanwhile.
const PAGES_AT_A_TIME: u64 = 512;

impl Space {
    /// Returns how many pages the file must keep: the pages in use, the pages that are reserved for the undo of open
    /// transactions, and some spare ones.
    pub(crate) fn pages_wanted(&self) -> PageId {
        let pages = self.used.load(Ordering::SeqCst) + self.kept.load(Ordering::SeqCst) + SPARE_PAGES;
        self.first_map + pages + pages.div_ceil(self.bits - 1)
    }

    /// Returns whether no log object from `head` on refers to the free page `page`.
    fn is_unspoken_of(&self, pager: &Pager, page: PageId, head: Lsn) -> Result<bool, Error> {
        match pager.pool.read(page) {
            Ok(page) => Ok(lsn(page.bytes()) < head),
            // A load that did not finish may have torn the page.
            Err(Error::Corrupt { .. }) => Ok(self.is_forgotten(page, head)),
            Err(error) => Err(error),
        }
    }

    /// Cuts free pages off the end of the file, as long as no log object from `head` on refers to them.
    ///
    /// # Errors
    /// Errors of the medium.
    pub(crate) fn cut(&self, pager: &Pager, head: Lsn) -> Result<(), Error> {
        let file = pager.pool.file();
        loop {
            let (pages, wanted) = (file.pages(), self.pages_wanted());
            let from = wanted.max(pages.saturating_sub(PAGES_AT_A_TIME));
            if pages <= from {
                return Ok(());
            }
            // Latch the space maps of the pages from `from` to the end of the file. Until the latches are released, no
            // other thread allocates or frees one of these pages.
            let mut maps = BTreeMap::new();
            for id in from..pages {
                let (map, _) = self.place_of(id);
                if let Entry::Vacant(vacant) = maps.entry(map) {
                    vacant.insert(pager.pool.write(map)?);
                }
            }
            let mut end = pages;
            for id in (from..pages).rev() {
                let (map, bit) = self.place_of(id);
                let Some(map) = maps.get(&map) else { break };
                let is_free = if map.id() == id {
                    pages_in_use(map.bytes()) == 0 && map.lsn() < head
                } else {
                    !is_set(map.bytes(), bit) && self.is_unspoken_of(pager, id, head)?
                };
                if !is_free {
                    break;
                }
                end = id;
            }
            if end == pages {
                return Ok(());
            }
            file.shrink_to(end)?;
            // Another thread may have reserved pages during the shrinking. Either this call counts its reservation, or
            // that thread sees that the file is too short, and makes it larger itself.
            file.grow_to(self.pages_wanted())?;
            // Stops if a page was in use, or if the medium could not shrink.
            if end > from || file.pages() > end {
                return Ok(());
            }
        }
    }
}
