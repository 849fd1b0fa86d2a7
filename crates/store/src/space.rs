//! Which pages are in use: one map page for as many pages as it has bits, itself the first of them.

use std::sync::atomic::{AtomicU64, Ordering};

use duralite_logfmt::store::{Change, PageId, bits_of, first_clear, is_set};

use crate::buffer::Writing;
use crate::error::Error;
use crate::pager::{Author, Logged, Pager};

/// Gives pages, and takes them back.
#[derive(Debug)]
pub(crate) struct Space {
    first_map: PageId,
    bits: u64,
    /// No page before this one is free, as far as is known.
    hint: AtomicU64,
}

/// Pages that are about to be in use: so they are once an object says it, together with what they hold.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) map: Writing,
    pub(crate) pages: Vec<(PageId, u32)>,
}

impl Space {
    pub(crate) fn new(first_map: PageId, page_bytes: usize) -> Self {
        Self { first_map, bits: bits_of(page_bytes), hint: AtomicU64::new(0) }
    }

    /// The first page that is no map.
    pub(crate) fn first_data_page(&self) -> PageId {
        self.first_map + 1
    }

    /// The map that speaks of a page, and the page's bit.
    pub(crate) fn place_of(&self, page: PageId) -> (PageId, u32) {
        let at = page - self.first_map;
        (self.first_map + at / self.bits * self.bits, (at % self.bits) as u32)
    }

    /// Finds so many free pages that one map speaks of. The map is latched; no other latch may be taken after it
    /// but that of a page that was free.
    ///
    /// # Errors
    /// [`Error::Full`] if the file cannot grow.
    pub(crate) fn find(&self, pager: &Pager, count: usize) -> Result<Given, Error> {
        let hint = self.hint.load(Ordering::Relaxed);
        let mut group = hint / self.bits;
        let mut from = ((hint % self.bits) as u32).max(1);
        loop {
            let first = self.first_map + group * self.bits;
            pager.pool.file().grow_to(first + 1)?;
            let map = pager.pool.write(first)?;
            let mut pages = Vec::with_capacity(count);
            while pages.len() < count {
                let Some(bit) = first_clear(map.bytes(), from).filter(|bit| u64::from(*bit) < self.bits)
                else {
                    break;
                };
                pages.push((first + u64::from(bit), bit));
                from = bit + 1;
            }
            if pages.len() == count {
                let last = pages.last().map_or(0, |(page, _)| *page);
                pager.pool.file().grow_to(last + 1)?;
                // Others may have given pages back since the hint was read: it only moves on from there.
                let next = pages.first().map_or(0, |(page, _)| page - self.first_map);
                let _ = self.hint.compare_exchange(hint, next, Ordering::Relaxed, Ordering::Relaxed);
                return Ok(Given { map, pages });
            }
            group += 1;
            from = 1;
        }
    }

    /// Gives a page back. It may be given to somebody else at once.
    ///
    /// # Errors
    /// As [`Pager::step`].
    pub(crate) fn give_back(&self, pager: &Pager, author: Author, page: PageId) -> Result<Logged, Error> {
        let (map, bit) = self.place_of(page);
        let mut map = pager.pool.write(map)?;
        if !is_set(map.bytes(), bit) {
            return Err(Error::corrupt("the space map, where a page is free twice,"));
        }
        let logged = pager.step(author, &[], &mut [&mut map], &[(0, Change::MapClear { bit })])?;
        self.freed(page);
        Ok(logged)
    }

    /// A page has been given back by an object of somebody else's.
    pub(crate) fn freed(&self, page: PageId) {
        self.hint.fetch_min(page - self.first_map, Ordering::Relaxed);
    }
}
