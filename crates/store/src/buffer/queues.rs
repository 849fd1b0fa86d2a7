//! In which order pages leave the cache.
//!
//! A page that comes in is on *probation*: what uses it in the next moment is taken for the use that it came in for, so a scan,
//! which looks at each page twice in a row, leaves as quickly as it came. One that is used later *stays*, and so does one
//! that comes again soon after it has left. Inner pages of trees are in neither queue, and leave last. What is about to
//! leave waits until it is home, and is *ready* then.
//!
//! A frame is in one queue, or with the thread that has taken it out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use duralite_logfmt::store::PageId;

use super::frame::Frame;

/// The part of the frames that is for pages on probation, and twice that of the moment in which a use does not count.
const PROBATION_PART: usize = 8;
/// So many pages in a row are let stay because they were used; then one has to go.
const MOST_CHANCES: usize = 128;

/// A page that has left, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    page: PageId,
    at: u32,
}

/// The queues. Only whoever has the mutex around them changes them; frames are used meanwhile.
#[derive(Debug)]
pub(super) struct Queues {
    /// Mapped for no page.
    pub(super) free: Vec<u32>,
    /// Were clean and not used when they came to the end of their queue.
    pub(super) ready: VecDeque<u32>,
    /// Came to the end of their queue and are not home.
    pub(super) waiting: Vec<u32>,
    probation: VecDeque<u32>,
    staying: VecDeque<u32>,
    inner: VecDeque<u32>,
    /// Pages that have left lately, each where its number says.
    left: Box<[Left]>,
}

/// For how many pages that come in after it a use of a page does not count.
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

    /// So many at most wait to be home before somebody sees to it.
    pub(super) fn most_waiting(&self) -> usize {
        self.left.len() / 4
    }

    fn place(&self, page: PageId) -> usize {
        (page % self.left.len().max(1) as u64) as usize
    }

    /// Takes in a page that has come as the `now`th.
    pub(super) fn admit(&mut self, at: u32, page: PageId, now: u32) {
        let place = self.place(page);
        let Left { page: last, at: left_at } = self.left[place];
        if last == page && page != 0 && now.wrapping_sub(left_at) < self.left.len() as u32 {
            self.staying.push_back(at);
        } else {
            self.probation.push_back(at);
        }
    }

    /// Remembers that a page has left.
    pub(super) fn has_left(&mut self, page: PageId, now: u32) {
        let place = self.place(page);
        self.left[place] = Left { page, at: now };
    }

    /// Takes back a frame that cannot leave now.
    pub(super) fn stay(&mut self, at: u32) {
        self.staying.push_back(at);
    }

    /// Takes out the next frame that is to leave, clean or not: not pinned, not used lately, and with no inner page
    /// unless that may be.
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

    /// Of the inner pages, one that is none any more, or any if that may be.
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

    /// How many frames are in a queue.
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

    /// A cache without contents: pages come in where others leave.
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

        /// Misses of touching the hot pages a few times each, in an order that the seed says.
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
            // Pages that nobody wants again come and go in between, until the hot ones are known.
            for round in 0..20 {
                cache.touch_hot(hot, &mut random);
                (0..frames as u64).for_each(|page| cache.touch(1_000_000 + round * 100_000 + page, false));
            }
            let misses = cache.touch_hot(hot, &mut random);
            for page in 0..frames as u64 * 10 {
                // Where a piece ends, and then its rows.
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
        // It has left a moment ago, and comes again.
        assert!(!cache.at.contains_key(&110));
        cache.touch(110, false);
        (200..260).for_each(|page| cache.touch(page, false));
        assert!(cache.at.contains_key(&110));
    }
}
