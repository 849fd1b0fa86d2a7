//! The order in which the cache evicts pages.
//!
//! A page that comes into the cache is on *probation*. For a while, the cache ignores uses of the page, because they
//! are mostly part of the same access. So a scan, which uses each page twice in a row, evicts only its own pages. A
//! page that is used later *stays*, and so does a page that comes back soon after its eviction. Inner pages of trees
//! have a queue of their own, and are evicted last. A dirty page at the end of its queue *waits* until it is written
//! home; after that it is *ready*.
//!
//! Each frame is in one queue, or belongs to the thread that has taken it out of a queue.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::frame::Frame;
use crate::format::PageId;

/// One frame of 8 is for pages on probation. Uses of a page are ignored until other pages have come in, half as many as
/// there are frames for probation.
const PROBATION_PART: usize = 8;
/// The largest number of used pages that one search for a frame passes over. After that, the search takes the next page
/// even if it was used.
const MOST_CHANCES: usize = 128;

/// An evicted page, and the number of pages that had come in when it was evicted.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    page: PageId,
    at: u32,
}

/// The queues. A thread changes them only while it holds the mutex around this struct. It needs no mutex to use the
/// frames.
#[derive(Debug)]
pub(super) struct Queues {
    /// Frames that are mapped for no page.
    pub(super) free: Vec<u32>,
    /// Frames whose page was clean and unused when it reached the end of its queue.
    pub(super) ready: VecDeque<u32>,
    /// Frames whose page was dirty when it reached the end of its queue, and is still to be written home.
    pub(super) waiting: Vec<u32>,
    probation: VecDeque<u32>,
    staying: VecDeque<u32>,
    inner: VecDeque<u32>,
    /// Recently evicted pages. A page is at the index `page mod length`.
    left: Box<[Left]>,
}

/// Returns how many other pages must come into the cache after a page before the cache stops ignoring uses of that
/// page.
pub(super) const fn moment(frames: usize) -> u32 {
    (frames / PROBATION_PART / 2) as u32
}

impl Queues {
    pub(super) fn new(frames: usize) -> Self {
        Self {
            free: (0..frames as u32).rev().collect(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            probation: VecDeque::new(),
            staying: VecDeque::new(),
            inner: VecDeque::new(),
            left: vec![Left::default(); frames].into(),
        }
    }

    /// Returns how many dirty pages may wait before the thread that needs a frame has to write some home itself.
    pub(super) fn most_waiting(&self) -> usize {
        self.left.len() / 4
    }

    fn place(&self, page: PageId) -> usize {
        (page % self.left.len().max(1) as u64) as usize
    }

    /// Puts the frame `at` into a queue. Its page was the `now`th page to come into the cache.
    pub(super) fn admit(&mut self, at: u32, page: PageId, now: u32) {
        let place = self.place(page);
        let Left { page: last, at: left_at } = self.left[place];
        if last == page && page != 0 && now.wrapping_sub(left_at) < self.left.len() as u32 {
            self.staying.push_back(at);
        } else {
            self.probation.push_back(at);
        }
    }

    /// Remembers that a page was evicted, so that it stays if it soon comes back.
    pub(super) fn has_left(&mut self, page: PageId, now: u32) {
        let place = self.place(page);
        self.left[place] = Left { page, at: now };
    }

    /// Puts a frame into a queue again, because its page cannot be evicted now.
    pub(super) fn stay(&mut self, at: u32) {
        self.staying.push_back(at);
    }

    /// Takes out the next frame to evict, clean or dirty. The frame's page is not pinned, and was not used recently.
    /// The page is an inner page only if `may_be_inner`.
    pub(super) fn next(&mut self, frames: &[Frame], may_be_inner: bool) -> Option<u32> {
        let mut chances = 0;
        for _ in 0..frames.len() * 2 {
            let most_on_probation = frames.len() / PROBATION_PART;
            let is_new = self.probation.len() > most_on_probation || self.staying.is_empty();
            let next = if is_new { self.probation.pop_front() } else { self.staying.pop_front() };
            let Some(at) = next else { break };
            let frame = &frames[at as usize];
            if frame.is_inner.load(Ordering::Relaxed) {
                self.inner.push_back(at);
            } else if frame.pins.load(Ordering::Acquire) != 0 {
                self.staying.push_back(at);
            } else if frame.is_used.swap(false, Ordering::Relaxed) && chances < MOST_CHANCES {
                chances += 1;
                self.staying.push_back(at);
            } else {
                return Some(at);
            }
        }
        self.next_inner(frames, may_be_inner)
    }

    /// Searches the queue of inner pages, and takes out a frame whose page is no longer an inner page. If
    /// `may_be_inner`, takes out any frame that is unpinned and was not used recently.
    fn next_inner(&mut self, frames: &[Frame], may_be_inner: bool) -> Option<u32> {
        for _ in 0..self.inner.len() * 2 {
            let at = self.inner.pop_front()?;
            let frame = &frames[at as usize];
            let is_candidate = may_be_inner || !frame.is_inner.load(Ordering::Relaxed);
            if is_candidate
                && frame.pins.load(Ordering::Acquire) == 0
                && !frame.is_used.swap(false, Ordering::Relaxed)
            {
                return Some(at);
            }
            self.inner.push_back(at);
        }
        None
    }

    /// Returns how many frames are in a queue; the test compares this with the size of the cache.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.free.len()
            + self.ready.len()
            + self.waiting.len()
            + self.probation.len()
            + self.staying.len()
            + self.inner.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use std::collections::BTreeMap;

    use super::super::frame::Tallies;
    use super::*;

    /// A cache that keeps track of pages, but has no bytes. A page that comes in takes the frame of the page that is
    /// evicted.
    struct Cache {
        queues: Queues,
        frames: Vec<Frame>,
        tallies: Tallies,
        at: BTreeMap<PageId, u32>,
        now: u32,
        misses: u64,
    }

    impl Cache {
        fn new(frames: usize) -> Self {
            let (queues, frames) = (Queues::new(frames), (0..frames).map(|_| Frame::default()).collect());
            let tallies = Tallies::default();
            Self { queues, frames, tallies, at: BTreeMap::new(), now: 0, misses: 0 }
        }

        fn touch(&mut self, page: PageId, is_inner: bool) {
            if let Some(at) = self.at.get(&page) {
                self.frames[*at as usize].touched(self.now, moment(self.frames.len()), &self.tallies);
                return;
            }
            self.misses += 1;
            let at = self.queues.free.pop().unwrap_or_else(|| {
                let at = self.queues.next(&self.frames, false).unwrap();
                let page = self.frames[at as usize].id.load(Ordering::SeqCst);
                self.at.remove(&page).unwrap();
                self.queues.has_left(page, self.now);
                at
            });
            self.now += 1;
            let frame = &self.frames[at as usize];
            frame.id.store(page, Ordering::SeqCst);
            frame.came(self.now);
            frame.is_inner.store(is_inner, Ordering::Relaxed);
            self.queues.admit(at, page, self.now);
            self.at.insert(page, at);
            assert_eq!(self.queues.len(), self.frames.len(), "a frame is in two queues, or in none");
        }

        /// Uses each of the hot pages a few times, in an order that the seed determines. Returns the number of misses.
        fn touch_hot(&mut self, pages: u64, random: &mut fastrand::Rng) -> u64 {
            let before = self.misses;
            for _ in 0..pages * 8 {
                self.touch(random.u64(1..=pages), false);
            }
            self.misses - before
        }
    }

    #[test]
    fn a_scan_leaves_the_hot_pages_where_they_are() {
        for (seed, frames) in [(1, 64), (2, 256), (3, 4096)] {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut cache = Cache::new(frames);
            let hot = frames as u64 / 2;
            // In each round, the hot pages are used, and then many other pages come in once and are evicted. After
            // enough rounds the cache knows which pages are hot.
            for round in 0..20 {
                cache.touch_hot(hot, &mut random);
                (0..frames as u64).for_each(|page| cache.touch(1_000_000 + round * 100_000 + page, false));
            }
            let misses = cache.touch_hot(hot, &mut random);
            for page in 0..frames as u64 * 10 {
                // A scan uses each leaf twice: where one batch of rows ends, and where the next one begins.
                cache.touch(10_000_000 + page, false);
                cache.touch(10_000_000 + page, false);
            }
            let after = cache.touch_hot(hot, &mut random);
            assert!(after <= misses, "seed {seed}: {misses} misses before the scan, {after} after it");
        }
    }

    #[test]
    fn inner_pages_stay_while_others_can_leave() {
        let mut cache = Cache::new(64);
        (1..=40).for_each(|page| cache.touch(page, true));
        (100..10_000).for_each(|page| cache.touch(page, false));
        let misses = cache.misses;
        (1..=40).for_each(|page| cache.touch(page, true));
        assert_eq!(cache.misses, misses);
    }

    #[test]
    fn a_page_that_comes_again_soon_stays() {
        let mut cache = Cache::new(64);
        (100..200).for_each(|page| cache.touch(page, false));
        // Page 110 has just been evicted, and now comes back.
        assert!(!cache.at.contains_key(&110));
        cache.touch(110, false);
        (200..260).for_each(|page| cache.touch(page, false));
        assert!(cache.at.contains_key(&110));
    }
}
