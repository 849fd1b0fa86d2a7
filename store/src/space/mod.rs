//! The record of which pages are in use. A space map is a page with a bit for each page that it covers. The map itself
//! is the first of these pages.
//!
//! Invariant 41: before a transaction removes a row or makes it shorter, it reserves the pages that the undo may need,
//! because other transactions may fill the freed space. So a rollback never fails for lack of room in the page file.

mod cut;
mod run;
mod runs;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use self::runs::Run;
use self::runs::Runs;
use crate::buffer::Writing;
use crate::error::Error;
use crate::format::{Change, Lsn, PageId, bits_of, first_clear, is_set, pages_in_use};
use crate::pager::{Author, Logged, Pager};

/// The number of free pages that must remain after a change. They are for undo, and for pages that a change reserves
/// for its own undo. So transactions can remove rows even when the disk is full.
const SPARE_PAGES: u64 = 32;
/// The largest number of searches for free pages in one call. A search misses pages that other transactions meanwhile
/// free before the place where it began. If it finds too few pages for this reason, the call searches again. In
/// practice the limit is never reached.
const MOST_LOOKS: u32 = 1000;

/// The purpose for which pages are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// For a change, which may fail.
    Do,
    /// For undo, which must not fail; it may take reserved pages.
    Undo,
}

/// The allocator of the pages of the page file.
#[derive(Debug)]
pub(crate) struct Space {
    first_map: PageId,
    bits: u64,
    /// All pages before this one are in use. This number counts from the first map, which is page 0.
    hint: AtomicU64,
    /// The number of pages that are in use, or that a thread has found and is about to use. Maps are not included.
    used: AtomicU64,
    /// The number of pages that are reserved for the undo of open transactions.
    kept: AtomicU64,
    runs: Mutex<Runs>,
}

/// A free page that a thread has found, and the change of the page's map that marks the page as in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenPage {
    pub(crate) id: PageId,
    /// The index of the page's map in [`Given::maps`].
    pub(crate) map: usize,
    pub(crate) set: Change<'static>,
}

/// Free pages that a thread has found, and their latched maps. The pages are in use once a log object has recorded
/// their content, and the changes of the maps.
#[derive(Debug)]
pub(crate) struct Given<'s> {
    space: &'s Space,
    pub(crate) maps: Vec<Writing<'s>>,
    pub(crate) pages: Vec<GivenPage>,
    count: u64,
    is_taken: bool,
}

impl Given<'_> {
    /// Marks the pages as in use, now that the object that records this is in the log.
    pub(crate) fn taken(&mut self) {
        self.is_taken = true;
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.space.used.fetch_sub(self.count, Ordering::SeqCst);
        }
    }
}

impl Space {
    /// Makes the allocator. Its counts are not known before [`count`](Self::count).
    pub(crate) fn new(first_map: PageId, page_bytes: usize) -> Self {
        Self {
            first_map,
            bits: bits_of(page_bytes),
            hint: AtomicU64::new(0),
            used: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            runs: Mutex::default(),
        }
    }

    /// Counts the pages in use. No other thread may allocate or free pages yet.
    ///
    /// # Errors
    /// An error of the medium.
    pub(crate) fn count(&self, pager: &Pager) -> Result<(), Error> {
        let end = pager.pool.file().pages();
        let mut used = 0;
        let mut map = self.first_map;
        while map < end {
            let most = self.bits.min(end - map) - 1;
            used += match pager.pool.read(map) {
                Ok(map) => pages_in_use(map.bytes()).min(most),
                // If a map is damaged, all pages that it covers are counted as in use, and none of them is allocated. A
                // thread that needs the map itself gets the error.
                Err(Error::Corrupt { .. }) => most,
                Err(error) => return Err(error),
            };
            map += self.bits;
        }
        self.used.store(used, Ordering::SeqCst);
        self.runs.lock().opened(end, pager.log.next() - 1);
        Ok(())
    }

    /// Returns the first page that is not a map.
    pub(crate) fn first_data_page(&self) -> PageId {
        self.first_map + 1
    }

    /// Returns the map that covers a page, and the page's bit in that map.
    pub(crate) fn place_of(&self, page: PageId) -> (PageId, u32) {
        let at = page - self.first_map;
        (self.first_map + at / self.bits * self.bits, (at % self.bits) as u32)
    }

    /// Makes the file large enough for this many pages, not counting maps.
    fn make_room(&self, pager: &Pager, pages: u64) -> Result<(), Error> {
        pager.pool.file().grow_to(self.first_map + pages + pages.div_ceil(self.bits - 1))
    }

    /// Reserves pages for the undo of a change. The caller gives them up with [`give_up`](Self::give_up).
    ///
    /// # Errors
    /// [`Error::Full`] if the file cannot grow.
    pub(crate) fn keep(&self, pager: &Pager, pages: u64) -> Result<(), Error> {
        let kept = self.kept.fetch_add(pages, Ordering::SeqCst) + pages;
        self.make_room(pager, self.used.load(Ordering::SeqCst) + kept).inspect_err(|_| self.give_up(pages))
    }

    /// Gives up reserved pages, because the change can no longer be undone.
    pub(crate) fn give_up(&self, pages: u64) {
        self.kept.fetch_sub(pages, Ordering::SeqCst);
    }

    /// Makes the file large enough for a later [`find`](Self::find). Growing the file ends with a flush, so the caller
    /// does this before it takes latches. If `find` grew the file, every thread that needs a latched page would wait
    /// for that flush. This can still happen if other threads use up the pages first.
    ///
    /// # Errors
    /// An error of the medium, but none if the disk is full. Then `find` decides whether there are enough pages.
    pub(crate) fn prepare(&self, pager: &Pager) -> Result<(), Error> {
        let pages = self.used.load(Ordering::SeqCst) + self.kept.load(Ordering::SeqCst) + 2 * SPARE_PAGES;
        match self.make_room(pager, pages) {
            Err(Error::Full { .. }) => Ok(()),
            done => done,
        }
    }

    /// Finds free pages, and latches their maps. While the caller holds these latches, it may latch only the pages that
    /// were found.
    ///
    /// # Errors
    /// [`Error::Full`] if the file cannot grow.
    pub(crate) fn find<'s>(
        &'s self,
        pager: &'s Pager,
        count: u64,
        purpose: Purpose,
    ) -> Result<Given<'s>, Error> {
        let used = self.used.fetch_add(count, Ordering::SeqCst) + count;
        let mut given = Given { space: self, maps: Vec::new(), pages: Vec::new(), count, is_taken: false };
        let spare = match purpose {
            Purpose::Do => self.kept.load(Ordering::SeqCst) + SPARE_PAGES,
            Purpose::Undo => 0,
        };
        self.make_room(pager, used + spare)?;
        for look in 1.. {
            // The file certainly has enough free pages. But other threads may have freed some of them after the search
            // began, and before the place where it began. So if this search finds too few pages, search again.
            let found = self.look(pager, &mut given)?;
            if found.is_ok() || look == MOST_LOOKS {
                return found.map(|()| given);
            }
            given.maps.clear();
            given.pages.clear();
            std::thread::yield_now();
        }
        Ok(given)
    }

    /// Searches once for free pages, and takes the first ones in the file. Returns the inner error if the file cannot
    /// grow as far as the search needs.
    fn look<'s>(&self, pager: &'s Pager, given: &mut Given<'s>) -> Result<Result<(), Error>, Error> {
        let hint = self.hint.load(Ordering::SeqCst);
        let mut first_free = None;
        let mut group = hint / self.bits;
        let mut from = ((hint % self.bits) as u32).max(1);
        while (given.pages.len() as u64) < given.count {
            let first = self.first_map + group * self.bits;
            if let Err(error) = pager.pool.file().grow_to(first + 1) {
                return Ok(Err(error));
            }
            let map = pager.pool.write(first)?;
            let before = given.pages.len();
            while (given.pages.len() as u64) < given.count
                && let Some(bit) = first_clear(map.bytes(), from).filter(|bit| u64::from(*bit) < self.bits)
            {
                let id = first + u64::from(bit);
                first_free.get_or_insert(id - self.first_map);
                given.pages.push(GivenPage { id, map: given.maps.len(), set: Change::MapSet { bit } });
                from = bit + 1;
            }
            if given.pages.len() > before {
                given.maps.push(map);
            }
            group += 1;
            from = 1;
        }
        // Moves the hint forward, but only if it has not changed since it was read. If another thread has meanwhile
        // freed a page before the hint and lowered the hint, the lower value must stay.
        let next = first_free.unwrap_or(hint);
        let _ = self.hint.compare_exchange(hint, next, Ordering::SeqCst, Ordering::SeqCst);
        Ok(pager.pool.file().grow_to(given.pages.last().map_or(0, |page| page.id + 1)))
    }

    /// Frees a page. From then on, other threads may allocate the page.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page is already free; the errors of [`Pager::step`].
    pub(crate) fn give_back(&self, pager: &Pager, author: Author, page: PageId) -> Result<Logged, Error> {
        let (map, bit) = self.place_of(page);
        let mut map = pager.pool.write(map)?;
        if !is_set(map.bytes(), bit) {
            return Err(Error::corrupt("the space map, where a page is free twice,"));
        }
        let logged = pager.step(author, &[], &mut [&mut map], &[(0, Change::MapClear { bit })])?;
        self.freed(page, logged.lsn);
        Ok(logged)
    }

    /// Notes that the object `lsn` has freed a page. Another part of the store has logged that object. The caller still
    /// has the page's map latched.
    pub(crate) fn freed(&self, page: PageId, lsn: Lsn) {
        self.freed_run(page, 1, lsn);
    }
}

#[cfg(test)]
mod tests;
