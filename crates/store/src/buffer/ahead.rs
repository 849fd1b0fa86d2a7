//! Reading pages into the cache before a scan needs them.
//!
//! Invariant 54: a scan that reads ahead waits only for the reads themselves, and only a thread that needs one of these pages waits
//! for the scan. The scan takes frames that are free, or whose pages can be evicted at once, and has all of them before it maps
//! the first, so it never waits for a frame while it holds a latch. Pages that were read ahead and are not used yet have at most
//! one frame in [`AHEAD_PART`], for all scans together. In the long run at most one page is read in vain for four that are needed.
//! Reading a page ahead is no use of it: its first use is the one that it was read for, and a page that is evicted unused is
//! forgotten. A page that cannot be read ahead is left out; a thread that needs it reads it, and gets the error.

use std::sync::atomic::Ordering;

use duralite_logfmt::store::{PageId, lsn};
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use super::Pool;
use super::frame::{Content, Pinned};
use crate::page_file::runs;

/// The part of the frames that pages may have that were read ahead and are not used yet. It is half of the probation queue, so that
/// such a page is not evicted before its use.
const AHEAD_PART: usize = 16;
/// The most pages that one call reads.
pub(crate) const MOST_AHEAD: usize = 32;

/// The pages of one call.
type Pages = SmallVec<[PageId; MOST_AHEAD]>;

/// A frame that is mapped for a page that is being read.
struct Coming<'p> {
    id: PageId,
    at: u32,
    // In this order: the latch goes before the pin.
    content: RwLockWriteGuard<'p, Content>,
    pin: Pinned<'p>,
    is_read: bool,
}

impl Pool {
    /// Makes sure that pages are in the cache, those that come first in a list; of how many that is so. The system may fetch those
    /// that follow meanwhile; `is_fetched` says that it was told to fetch the first ones before. Not to be called with latches
    /// held.
    pub(crate) fn read_ahead(&self, first: &[PageId], then: &[PageId], is_fetched: bool) -> usize {
        let mut count = first.len().min(MOST_AHEAD);
        let mut missing: Pages = first[..count].iter().copied().filter(|id| self.is_missing(*id)).collect();
        let room = self.keep_room(missing.len());
        if let Some(beyond) = missing.get(room) {
            count = first.iter().position(|id| id == beyond).unwrap_or(count);
            missing.truncate(room);
        }
        missing.sort_unstable();
        // Those that lie apart are read one after the other, and may be fetched side by side.
        if !is_fetched && runs(&missing).nth(1).is_some() {
            self.file.will_read(&missing);
        }
        let mut later: Pages = then.iter().copied().filter(|id| self.is_missing(*id)).collect();
        later.sort_unstable();
        self.file.will_read(&later);
        if self.bring_in(&missing) { count } else { 0 }
    }

    /// Room for so many pages, or for fewer.
    fn keep_room(&self, pages: usize) -> usize {
        let owed = self.tallies.owed.load(Ordering::Relaxed);
        let most = (self.frames.len() / AHEAD_PART).saturating_sub(owed);
        let with = |unused: usize| unused + pages.min(most.saturating_sub(unused));
        let ahead = &self.tallies.ahead;
        let before = ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unused| Some(with(unused)));
        before.map_or(0, |unused| with(unused) - unused)
    }

    /// Whether it is a page of the file that is not in the cache.
    fn is_missing(&self, id: PageId) -> bool {
        id < self.file.pages() && !self.part(id).lock().frames.contains_key(&id)
    }

    /// Reads pages, in the order of the file, for which room is kept; whether there were frames for all.
    fn bring_in(&self, pages: &[PageId]) -> bool {
        let frames: SmallVec<[u32; MOST_AHEAD]> = pages.iter().map_while(|_| self.victim()).collect();
        let begun = pages.iter().zip(&frames).filter_map(|(id, at)| self.begin(*id, *at));
        let mut coming: SmallVec<[Coming<'_>; MOST_AHEAD]> = begun.collect();
        self.tallies.ahead.fetch_sub(pages.len() - coming.len(), Ordering::Relaxed);
        for neighbours in coming.chunk_by_mut(|one, next| one.id + 1 == next.id) {
            let Some(first) = neighbours.first().map(|page| page.id) else { continue };
            let mut parts: SmallVec<[&mut [u8]; MOST_AHEAD]> =
                neighbours.iter_mut().map(|page| &mut *page.content.bytes).collect();
            // Whoever needs one of them reads it by itself, and is told.
            let is_read = self.file.read_neighbours(first, &mut parts).is_ok();
            drop(parts);
            neighbours.iter_mut().for_each(|page| page.is_read = is_read);
        }
        let failed: SmallVec<[u32; MOST_AHEAD]> =
            coming.into_iter().filter_map(|page| self.come(page).err()).collect();
        // With no latch held: others may be waiting for these frames.
        failed.into_iter().for_each(|at| self.give_back(at));
        frames.len() == pages.len()
    }

    /// Maps a frame for a page, unless it is in the cache by now.
    fn begin(&self, id: PageId, at: u32) -> Option<Coming<'_>> {
        let frame = self.frame(at);
        // Nobody else knows the frame.
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

    /// A page has come, or else its frame is mapped for nothing any more.
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
