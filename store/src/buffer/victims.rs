//! Finds frames for pages that come in. The keeper makes some frames ready in advance. If a thread finds no ready
//! frame, it makes some ready itself.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Pool;
use super::frame::sort_by_changing;
use super::queues::Queues;
use crate::controls::Rule;
use crate::error::Error;
use crate::format::DOUBLE_WRITE_PAGES;

/// The time for which a thread looks for a frame while all frames are in use.
const PATIENCE: Duration = Duration::from_secs(10);
/// The keeper keeps one frame in 16 ready, within the limits below.
const READY_PART: usize = 16;
const MOST_READY: usize = 1024;
const FEWEST_READY: usize = 8;
/// The number of pages that the keeper writes at a time, sorted by their order in the file.
const SORTED_AT_A_TIME: usize = 4 * DOUBLE_WRITE_PAGES;

impl Pool {
    /// Takes a frame for another page, and pins it once.
    pub(super) fn vacate(&self) -> Result<u32, Error> {
        let mut begun = None;
        loop {
            if let Some(at) = self.victim() {
                return Ok(at);
            }
            self.poison.check()?;
            let begun = *begun.get_or_insert_with(|| {
                self.waits.fetch_add(1, Ordering::Relaxed);
                Instant::now()
            });
            let at_a_time = DOUBLE_WRITE_PAGES.min(self.frames.len() / 4);
            // Write dirty leaves home first, even if a clean inner page could be evicted. The thread that evicts an
            // inner page would soon need it again. If leaves and inner pages evicted each other, no thread could go
            // down a tree any more.
            if self.make_ready(at_a_time, self.has_too_many_inner(), 1)? == 0
                && self.make_ready(at_a_time, true, 1)? == 0
            {
                if begun.elapsed() > PATIENCE {
                    return Err(Error::full("every page of the cache is in use; raise the cache's size"));
                }
                std::thread::yield_now();
            }
        }
    }

    /// Returns whether inner pages leave too few frames for leaves. If so, inner pages are evicted like leaves.
    fn has_too_many_inner(&self) -> bool {
        self.tallies.inner.load(Ordering::Relaxed) > self.frames.len() / 4 * 3
    }

    /// Returns how many frames the keeper keeps ready.
    fn wanted_ready(&self) -> usize {
        (self.frames.len() / READY_PART).clamp(FEWEST_READY, MOST_READY)
    }

    /// Takes a frame that is free, or whose page can be evicted at once. The frame has one pin.
    pub(super) fn victim(&self) -> Option<u32> {
        let mut queues = self.queues.lock();
        if let Some(at) = queues.free.pop() {
            self.frame(at).pins.store(1, Ordering::Release);
            return Some(at);
        }
        let found = self.ready_victim(&mut queues).or_else(|| self.next_victim(&mut queues));
        let is_low = queues.ready.len() < self.wanted_ready() / 2;
        drop(queues);
        if is_low && !self.is_keeper_woken.swap(true, Ordering::SeqCst) {
            self.keeper.wake();
        }
        found
    }

    fn ready_victim(&self, queues: &mut Queues) -> Option<u32> {
        while let Some(at) = queues.ready.pop_front() {
            let frame = self.frame(at);
            if frame.is_used.load(Ordering::Relaxed) {
                queues.stay(at);
            } else if self.take(queues, at) {
                return Some(at);
            } else if frame.is_dirty() {
                queues.waiting.push(at);
            } else {
                queues.stay(at);
            }
        }
        None
    }

    /// Takes the next frame whose page is clean. Moves frames with dirty pages into the queue `waiting`, from which the
    /// keeper takes them.
    fn next_victim(&self, queues: &mut Queues) -> Option<u32> {
        while queues.waiting.len() < queues.most_waiting() {
            let at = queues.next(&self.frames, self.has_too_many_inner())?;
            if self.frame(at).is_dirty() && self.file.controls().keep(Rule::DirtyStays) {
                queues.waiting.push(at);
            } else if self.take(queues, at) {
                return Some(at);
            } else {
                queues.stay(at);
            }
        }
        None
    }

    /// Evicts the page of a frame that is in no queue, unless the page is pinned or dirty. Returns whether the frame is
    /// empty now.
    fn take(&self, queues: &mut Queues, at: u32) -> bool {
        let frame = self.frame(at);
        let id = frame.id.load(Ordering::SeqCst);
        let mut part = self.part(id).lock();
        let is_mapped = part.frames.get(&id) == Some(&at);
        let is_kept = frame.is_dirty() && self.file.controls().keep(Rule::DirtyStays);
        if !is_mapped || frame.pins.load(Ordering::Acquire) != 0 || is_kept {
            return false;
        }
        // Makes shared copies outdated before the page can get another frame, where a thread may change it.
        frame.has_changed();
        part.frames.remove(&id);
        frame.pins.store(1, Ordering::Release);
        drop(part);
        if frame.is_inner.load(Ordering::Relaxed) {
            self.inner_left.fetch_add(1, Ordering::Relaxed);
        }
        if frame.ends_ahead(&self.tallies) {
            self.came_in_vain.fetch_add(1, Ordering::Relaxed);
            self.tallies.was_in_vain();
        } else {
            queues.has_left(id, self.came.load(Ordering::Relaxed));
        }
        true
    }

    /// Makes up to `count` frames ready, in the order in which their pages would be evicted. Writes dirty pages home
    /// for this. Returns how many frames are ready. Does nothing if other threads have made `enough` frames ready while
    /// this thread waited for the cleaning mutex. Skips latched pages, so the caller may hold latches.
    ///
    /// # Errors
    /// Errors of the log or the page file, which have poisoned the store.
    fn make_ready(&self, count: usize, may_be_inner: bool, enough: usize) -> Result<usize, Error> {
        let cleaning = self.cleaning.lock();
        let mut chosen = {
            let mut queues = self.queues.lock();
            if queues.ready.len() >= enough {
                return Ok(queues.ready.len());
            }
            let waiting = queues.waiting.len().min(count);
            let mut chosen: Vec<u32> = queues.waiting.drain(..waiting).collect();
            while chosen.len() < count {
                let Some(at) = queues.next(&self.frames, may_be_inner) else { break };
                chosen.push(at);
            }
            chosen
        };
        sort_by_changing(&mut chosen, |at| {
            (self.frame(*at).is_dirty(), self.frame(*at).id.load(Ordering::Relaxed))
        });
        let mut ready = 0;
        let mut done = Ok(());
        for batch in chosen.chunks(DOUBLE_WRITE_PAGES) {
            let dirty = batch.iter().map(|at| self.frame(*at)).filter(|frame| frame.is_dirty());
            if done.is_ok() {
                done = self.write_home_alone(&cleaning, dirty, Duration::ZERO).map(|_| ());
            }
            let mut queues = self.queues.lock();
            for at in batch {
                if self.frame(*at).is_dirty() {
                    queues.stay(*at);
                } else {
                    queues.ready.push_back(*at);
                    ready += 1;
                }
            }
        }
        done.map(|()| ready)
    }

    /// Does the keeper's work: when few frames are ready, makes some ready before threads need them. Returns whether
    /// more frames should still be made ready.
    ///
    /// # Errors
    /// Errors of the log or the page file, which have poisoned the store.
    pub(crate) fn stay_ahead(&self) -> Result<bool, Error> {
        self.is_keeper_woken.store(false, Ordering::SeqCst);
        let missing = {
            let queues = self.queues.lock();
            self.wanted_ready().saturating_sub(queues.ready.len() + queues.free.len())
        };
        let count = missing.min(SORTED_AT_A_TIME).min(self.frames.len() / 8);
        if count == 0 {
            return Ok(false);
        }
        let made = self.make_ready(count, self.has_too_many_inner(), usize::MAX)?;
        Ok(made > 0 && made < missing)
    }

    /// Sleeps until a thread finds too few frames ready, or for at most `limit`.
    pub(crate) fn wait_for_need(&self, limit: Duration) {
        self.keeper.sleep(limit);
    }

    /// Wakes the keeper from [`wait_for_need`](Self::wait_for_need).
    pub(crate) fn wake_keeper(&self) {
        self.keeper.wake();
    }
}
