//! Which pages are in use: one map page for as many pages as it has bits, itself the first of them.
//!
//! Invariant 41: whoever takes a row out, or makes it shorter, has kept the pages that putting it back may need, since
//! others may fill the room meanwhile. So a rollback never fails for lack of room in the page file.

mod cut;
mod run;
mod runs;

use std::sync::atomic::{AtomicU64, Ordering};

use duralite_logfmt::store::{Change, Lsn, PageId, bits_of, first_clear, is_set, pages_in_use};
use parking_lot::Mutex;

pub(crate) use self::runs::Run;
use self::runs::Runs;
use crate::buffer::Writing;
use crate::error::Error;
use crate::pager::{Author, Logged, Pager};

/// Pages that nobody takes who does something new: so that rows can be taken out when the disk is full.
const SPARE_PAGES: u64 = 32;
/// So often pages are looked for again that others gave back too late to be found. As good as for ever.
const MOST_LOOKS: u32 = 1000;

/// What pages are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To do something, which may fail.
    Do,
    /// To take something back, which may not: it may have what was kept for that.
    Undo,
}

/// Gives pages, and takes them back.
#[derive(Debug)]
pub(crate) struct Space {
    first_map: PageId,
    bits: u64,
    /// No page before this one is free.
    hint: AtomicU64,
    /// Pages in use that are no maps, and those that are about to be.
    used: AtomicU64,
    /// Pages that taking back what is in progress may need.
    kept: AtomicU64,
    runs: Mutex<Runs>,
}

/// A page that is about to be in use, and what its map is to say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenPage {
    pub(crate) id: PageId,
    /// Its map's place in [`Given::maps`].
    pub(crate) map: usize,
    pub(crate) set: Change<'static>,
}

/// Pages that are about to be in use: so they are once an object says it, together with what they hold.
#[derive(Debug)]
pub(crate) struct Given<'s> {
    space: &'s Space,
    pub(crate) maps: Vec<Writing<'s>>,
    pub(crate) pages: Vec<GivenPage>,
    count: u64,
    is_taken: bool,
}

impl Given<'_> {
    /// The object is in the log.
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
    /// Knows nothing yet: see [`count`](Self::count).
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

    /// Counts the pages in use, before anybody else takes or gives back some.
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
                // Whoever needs it is told. What it speaks of is not given to anybody.
                Err(Error::Corrupt { .. }) => most,
                Err(error) => return Err(error),
            };
            map += self.bits;
        }
        self.used.store(used, Ordering::SeqCst);
        self.runs.lock().opened(end, pager.log.next() - 1);
        Ok(())
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

    /// Makes the file so large that it has so many pages besides maps.
    fn make_room(&self, pager: &Pager, pages: u64) -> Result<(), Error> {
        pager.pool.file().grow_to(self.first_map + pages + pages.div_ceil(self.bits - 1))
    }

    /// Keeps pages for taking back what is about to be done, until [`give_up`](Self::give_up).
    ///
    /// # Errors
    /// [`Error::Full`] if the file cannot grow.
    pub(crate) fn keep(&self, pager: &Pager, pages: u64) -> Result<(), Error> {
        let kept = self.kept.fetch_add(pages, Ordering::SeqCst) + pages;
        self.make_room(pager, self.used.load(Ordering::SeqCst) + kept).inspect_err(|_| self.give_up(pages))
    }

    /// Nothing can be taken back any more that pages were kept for.
    pub(crate) fn give_up(&self, pages: u64) {
        self.kept.fetch_sub(pages, Ordering::SeqCst);
    }

    /// Finds so many free pages. Their maps are latched; no other latch may be taken after them but those of pages
    /// that were free.
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
            // There is room, as was just seen to; but what was given back meanwhile may be before what was looked at.
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

    /// Looks once for the first free pages. Not with an error of its own, but with that in it, if the file would have to
    /// grow and cannot.
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
        // Others may have given pages back since the hint was read: it only moves on from there.
        let next = first_free.unwrap_or(hint);
        let _ = self.hint.compare_exchange(hint, next, Ordering::SeqCst, Ordering::SeqCst);
        Ok(pager.pool.file().grow_to(given.pages.last().map_or(0, |page| page.id + 1)))
    }

    /// Gives a page back. It may be given to somebody else at once.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is free already; as [`Pager::step`].
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

    /// A page has been given back by an object of somebody else's. Called with its map still latched.
    pub(crate) fn freed(&self, page: PageId, lsn: Lsn) {
        self.freed_run(page, 1, lsn);
    }
}

#[cfg(test)]
mod tests;
