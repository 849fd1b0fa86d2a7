//! Reads pages into the cache before a scan needs them.
//!
//! Invariant 54: a scan that reads ahead waits only for the reads themselves. Another thread waits for the scan only if
//! it needs one of the pages that the scan is reading. The scan takes only frames that are free, or whose pages can be
//! evicted at once. It takes all of its frames before it maps the first one, so it never waits for a frame while it
//! holds a latch. At most one frame in [`AHEAD_PART`] holds a page that was read ahead and is still unused. In the long
//! run, at most one page is read ahead in vain for every four pages that threads need.
//!
//! Reading a page ahead is not a use of the page. Its first use is treated as the access that brought it into the
//! cache. If a page is evicted unused, the cache does not remember that it had the page. If a page cannot be read
//! ahead, the scan skips it. The thread that needs the page then reads it, and gets the error.

use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use super::Pool;
use super::frame::{Content, Pinned};
use crate::format::{PageId, lsn};
use crate::page_file::runs;

/// At most one frame in 16 may hold a page that was read ahead and is still unused. All such frames together fill at
/// most half of the probation queue, so that no such page is evicted before its use.
const AHEAD_PART: usize = 16;
/// The largest number of pages that one call of [`Pool::read_ahead`] reads.
pub(crate) const MOST_AHEAD: usize = 32;

/// The pages of one call of [`Pool::read_ahead`].
type Pages = SmallVec<[PageId; MOST_AHEAD]>;

/// A frame that is already mapped for a page, while the scan is still reading the page.
struct Coming<'p> {
    id: PageId,
    at: u32,
    // Fields are dropped in this order: the latch before the pin.
    content: RwLockWriteGuard<'p, Content>,
    pin: Pinned<'p>,
    is_read: bool,
}

impl Pool {
    /// Reads pages into the cache before a scan needs them: the first [`MOST_AHEAD`] pages of `first`, or fewer if the
    /// cache has no room for so many. Skips pages that are already in the cache. Returns how many pages of `first` are
    /// now in the cache; 0 if too few frames were free. Also asks the operating system to fetch the pages in `then`.
    /// `is_fetched` says that an earlier call has already asked for `first`. The caller must not hold latches.
    pub(crate) fn read_ahead(&self, first: &[PageId], then: &[PageId], is_fetched: bool) -> usize {
        let mut count = first.len().min(MOST_AHEAD);
        let mut missing: Pages = first[..count].iter().copied().filter(|id| self.is_missing(*id)).collect();
        let room = self.keep_room(missing.len());
        if let Some(beyond) = missing.get(room) {
            count = first.iter().position(|id| id == beyond).unwrap_or(count);
            missing.truncate(room);
        }
        missing.sort_unstable();
        // If the missing pages are not all adjacent, the scan needs several reads, one after another. So first tell the
        // operating system about all of the pages, so that it can fetch them in parallel.
        if !is_fetched && runs(&missing).nth(1).is_some() {
            self.file.will_read(&missing);
        }
        let mut later: Pages = then.iter().copied().filter(|id| self.is_missing(*id)).collect();
        later.sort_unstable();
        self.file.will_read(&later);
        if self.bring_in(&missing) { count } else { 0 }
    }

    /// Reserves room for up to this many pages. Returns for how many pages there was room.
    fn keep_room(&self, pages: usize) -> usize {
        let owed = self.tallies.owed.load(Ordering::Relaxed);
        let most = (self.frames.len() / AHEAD_PART).saturating_sub(owed);
        let with = |unused: usize| unused + pages.min(most.saturating_sub(unused));
        let ahead = &self.tallies.ahead;
        let before = ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unused| Some(with(unused)));
        before.map_or(0, |unused| with(unused) - unused)
    }

    /// Returns whether a page is in the file but not in the cache.
    fn is_missing(&self, id: PageId) -> bool {
        id < self.file.pages() && !self.part(id).lock().frames.contains_key(&id)
    }

    /// Reads pages into the cache, in the order in which they are in the file. The caller has reserved room for them.
    /// Returns whether there were frames for all of them.
    fn bring_in(&self, pages: &[PageId]) -> bool {
        let frames: SmallVec<[u32; MOST_AHEAD]> = pages.iter().map_while(|_| self.victim()).collect();
        let begun = pages.iter().zip(&frames).filter_map(|(id, at)| self.begin(*id, *at));
        let mut coming: SmallVec<[Coming<'_>; MOST_AHEAD]> = begun.collect();
        self.tallies.ahead.fetch_sub(pages.len() - coming.len(), Ordering::Relaxed);
        for neighbours in coming.chunk_by_mut(|one, next| one.id + 1 == next.id) {
            let Some(first) = neighbours.first().map(|page| page.id) else { continue };
            let mut parts: SmallVec<[&mut [u8]; MOST_AHEAD]> =
                neighbours.iter_mut().map(|page| &mut *page.content.bytes).collect();
            // If the read fails, a thread that needs one of these pages reads that page alone, and gets the error.
            let is_read = self.file.read_neighbours(first, &mut parts).is_ok();
            drop(parts);
            neighbours.iter_mut().for_each(|page| page.is_read = is_read);
        }
        let failed: SmallVec<[u32; MOST_AHEAD]> =
            coming.into_iter().filter_map(|page| self.come(page).err()).collect();
        // `give_back` waits for other threads to unpin these frames, so this thread must hold no latch here.
        failed.into_iter().for_each(|at| self.give_back(at));
        frames.len() == pages.len()
    }

    /// Maps a free frame for a page before the page is read. Returns `None` if another thread has brought the page into
    /// the cache in the meantime.
    fn begin(&self, id: PageId, at: u32) -> Option<Coming<'_>> {
        let frame = self.frame(at);
        // No other thread knows the frame yet, so its latch is free.
        let mut content = frame.content.write();
        let mut part = self.part(id).lock();
        if part.frames.contains_key(&id) {
            drop(part);
            drop(content);
            frame.pins.store(0, Ordering::Release);
            self.queues.lock().free.push(at);
            return None;
        }
        frame.id.store(id, Ordering::SeqCst);
        frame.came(self.came.load(Ordering::Relaxed));
        frame.comes_ahead();
        part.frames.insert(id, at);
        drop(part);
        content.at = at;
        self.empty(&mut content, id);
        let pin = Pinned { frame, tallies: &self.tallies };
        Some(Coming { id, at, content, pin, is_read: false })
    }

    /// Finishes reading a page. If the page is not valid, unmaps its frame, and returns the frame's index as the error.
    fn come(&self, page: Coming<'_>) -> Result<(), u32> {
        let Coming { id, at, mut content, pin, is_read } = page;
        let is_it =
            is_read && self.file.is_whole(id, &content.bytes) && lsn(&content.bytes) < self.log.next();
        if !is_it {
            self.part(id).lock().frames.remove(&id);
            pin.frame.ends_ahead(&self.tallies);
            drop(content);
            drop(pin);
            return Err(at);
        }
        content.is_valid = true;
        pin.frame.note_kind(&content.bytes, &self.tallies);
        self.came_ahead.fetch_add(1, Ordering::Relaxed);
        drop(content);
        drop(pin);
        let now = self.came.fetch_add(1, Ordering::Relaxed);
        self.queues.lock().admit(at, id, now);
        Ok(())
    }
}
