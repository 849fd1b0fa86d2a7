//! The cache of pages.
//!
//! However many threads want a page, the cache reads it once. The reading thread holds the latch of the page's frame
//! and no other lock, so reads of different pages run in parallel.
//!
//! A page is *pinned* while a thread uses it, and *latched* while a thread reads or changes its bytes. Threads latch
//! parents before children, and latch space maps last. A thread that holds a latch never waits for a lock, and takes
//! latches only in that order.

mod ahead;
mod clean;
mod frame;
mod past;
mod queues;
mod snapshot;
mod victims;
mod way;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

pub(crate) use self::ahead::MOST_AHEAD;
use self::frame::{Content, Frame, Pinned, Tallies};
pub(crate) use self::frame::{Latched, Reading, Writing};
use self::queues::Queues;
pub(crate) use self::way::Way;
use crate::error::Error;
use crate::format::{DOUBLE_WRITE_PAGES, Lsn, PageId, lsn};
use crate::log::Log;
use crate::page_file::PageFile;
use crate::poison::Poison;
use crate::sync::Parker;

/// The number of parts of the map from pages to frames.
const PARTS: usize = 64;
/// The memory that a frame takes besides its page, in bytes, including the entry in the map.
const FRAME_BYTES: u64 = 248;
/// The smallest number of frames. It has to suffice for recovery, which works on one thread, without a background
/// thread that keeps frames ready. One step of recovery pins at most the pages of one path down a tree, and the two
/// pages that a split makes. The step also pins a space map for each page that it makes or frees. In a tree of 24
/// levels, that is 50 pages.
///
/// With so small a cache, no tree ever has more levels. An inner page that is split has at least three children. So
/// even with the longest keys and the smallest pages, a tree of 24 levels has at least 2^24 leaves (64 GiB). With keys
/// of 16 bytes, a tree with that much data has 4 levels.
///
/// In an open store, other threads use the remaining frames. Nearly every step pins only one leaf.
const FEWEST_FRAMES: usize = 64;

/// Returns the size in bytes of the smallest cache for pages of this size: the fewest frames, and the page file's
/// buffer.
pub(crate) const fn smallest_cache_bytes(page_bytes: u64) -> u64 {
    FEWEST_FRAMES as u64 * (page_bytes + FRAME_BYTES) + (1 + DOUBLE_WRITE_PAGES as u64) * page_bytes
}

/// A part of the map from pages to frames, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part {
    /// Indexes into [`Pool::frames`].
    frames: FxHashMap<PageId, u32>,
    /// The number of lookups in this part that found their page.
    hits: u64,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Pool {
    /// A number that no other cache in the process has.
    number: u64,
    file: Arc<PageFile>,
    log: Arc<dyn Log>,
    poison: Arc<Poison>,
    frames: Box<[Frame]>,
    map: Box<[Mutex<Part>]>,
    queues: Mutex<Queues>,
    /// The number of pages that have come into the cache so far.
    came: AtomicU32,
    /// Uses of a page are ignored until this many other pages have come into the cache after it.
    moment: u32,
    /// The cleaning mutex, which a thread holds while it writes pages home.
    cleaning: Mutex<()>,
    tallies: Tallies,
    /// The parker on which the keeper sleeps. `is_keeper_woken` says that a thread has woken the keeper since the
    /// keeper last began its work.
    keeper: Parker,
    is_keeper_woken: AtomicBool,
    pub(crate) misses: AtomicU64,
    /// The number of misses that found no ready frame, and had to write dirty pages home first.
    pub(crate) waits: AtomicU64,
    /// The number of inner pages that were evicted.
    pub(crate) inner_left: AtomicU64,
    /// The number of pages that were read ahead, and the number of those that were evicted unused.
    pub(crate) came_ahead: AtomicU64,
    pub(crate) came_in_vain: AtomicU64,
}

impl Pool {
    /// Makes an empty cache. `cache_bytes` includes the buffers of the page file and of the log.
    pub(crate) fn new(file: Arc<PageFile>, log: Arc<dyn Log>, poison: Arc<Poison>, cache_bytes: u64) -> Self {
        let for_pages = cache_bytes.saturating_sub(file.memory_bytes() + log.memory_bytes());
        let frames = ((for_pages / (file.page_bytes() as u64 + FRAME_BYTES)) as usize).max(FEWEST_FRAMES);
        let frames = frames.min(u32::MAX as usize);
        Self {
            number: snapshot::number(),
            file,
            log,
            poison,
            map: (0..PARTS).map(|_| Mutex::default()).collect(),
            queues: Mutex::new(Queues::new(frames)),
            frames: (0..frames).map(|_| Frame::default()).collect(),
            came: AtomicU32::new(0),
            moment: queues::moment(frames),
            cleaning: Mutex::default(),
            tallies: Tallies::default(),
            keeper: Parker::default(),
            is_keeper_woken: AtomicBool::new(false),
            misses: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            inner_left: AtomicU64::new(0),
            came_ahead: AtomicU64::new(0),
            came_in_vain: AtomicU64::new(0),
        }
    }

    pub(crate) fn file(&self) -> &PageFile {
        &self.file
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.file.page_bytes()
    }

    /// Begins a descent of a tree.
    pub(crate) fn way(&self) -> Way<'_> {
        Way::new(self.number, &self.frames)
    }

    fn frame(&self, at: u32) -> &Frame {
        &self.frames[at as usize]
    }

    /// Pins a frame. The caller holds the lock of the page's part of the map.
    fn pinned<'p>(&'p self, frame: &'p Frame) -> Pinned<'p> {
        frame.pins.fetch_add(1, Ordering::Acquire);
        frame.touched(self.came.load(Ordering::Relaxed), self.moment, &self.tallies);
        Pinned { frame, tallies: &self.tallies }
    }

    /// Returns how often a lookup found its page in the cache.
    pub(crate) fn hits(&self) -> u64 {
        self.map.iter().map(|part| part.lock().hits).sum()
    }

    fn part(&self, id: PageId) -> &Mutex<Part> {
        &self.map[(id % PARTS as u64) as usize]
    }

    /// Returns a page, latched for reading.
    ///
    /// # Errors
    /// [`Error::Corrupt`], an error of the medium, or [`Error::Full`] if every frame is in use.
    pub(crate) fn read(&self, id: PageId) -> Result<Reading<'_>, Error> {
        loop {
            let page = self.pin(id, true)?.read();
            if page.guard.is_valid && page.guard.id == id {
                return Ok(page);
            }
        }
    }

    /// Returns a page, latched for writing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn write(&self, id: PageId) -> Result<Writing<'_>, Error> {
        loop {
            let page = self.pin(id, true)?.write();
            if page.guard.is_valid && page.guard.id == id {
                return Ok(page);
            }
        }
    }

    /// Returns a page whose content the caller will replace, latched for writing. The cache does not read the old
    /// content.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn make(&self, id: PageId) -> Result<Writing<'_>, Error> {
        loop {
            let page = self.pin(id, false)?.write();
            if page.guard.is_valid && page.guard.id == id {
                return Ok(page);
            }
        }
    }

    fn pin(&self, id: PageId, load: bool) -> Result<Pinned<'_>, Error> {
        if let Some(found) = self.pin_cached(id) {
            return Ok(found);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.tallies.needed();
        let at = self.vacate()?;
        let frame = self.frame(at);
        // No other thread knows the frame yet, so its latch is free.
        let mut content = frame.content.write();
        {
            let mut part = self.part(id).lock();
            if let Some(other) = part.frames.get(&id) {
                let found = self.pinned(self.frame(*other));
                drop(part);
                drop(content);
                frame.pins.store(0, Ordering::Release);
                self.queues.lock().free.push(at);
                return Ok(found);
            }
            frame.id.store(id, Ordering::SeqCst);
            frame.came(self.came.load(Ordering::Relaxed));
            part.frames.insert(id, at);
        }
        let pin = Pinned { frame, tallies: &self.tallies };
        content.at = at;
        if let Err(error) = self.fill(&mut content, id, load) {
            self.part(id).lock().frames.remove(&id);
            drop(content);
            drop(pin);
            self.give_back(at);
            return Err(error);
        }
        frame.note_kind(&content.bytes, &self.tallies);
        drop(content);
        let now = self.came.fetch_add(1, Ordering::Relaxed);
        self.queues.lock().admit(at, id, now);
        Ok(pin)
    }

    fn pin_cached(&self, id: PageId) -> Option<Pinned<'_>> {
        let mut part = self.part(id).lock();
        let frame = self.frame(*part.frames.get(&id)?);
        part.hits += 1;
        Some(self.pinned(frame))
    }

    /// Prepares a frame for another page. The frame stays invalid until it has that page's content.
    fn empty(&self, content: &mut Content, id: PageId) {
        content.is_valid = false;
        content.id = id;
        content.snapshot.take();
        if content.bytes.len() != self.page_bytes() {
            content.bytes = vec![0; self.page_bytes()].into();
        }
    }

    fn fill(&self, content: &mut Content, id: PageId, load: bool) -> Result<(), Error> {
        self.empty(content, id);
        if load {
            self.file.read_page(id, &mut content.bytes)?;
            if lsn(&content.bytes) >= self.log.next() {
                // The page has the LSN of an object that does not exist. The page could never go home again, because
                // the log would first have to be durable up to that object.
                return Err(Error::Corrupt {
                    what: "a page that is newer than the log".to_owned(),
                    page: Some(id),
                });
            }
        } else {
            content.bytes.fill(0);
        }
        content.is_valid = true;
        Ok(())
    }

    /// Frees a frame that is no longer mapped for a page. A thread that was waiting for the frame's latch finds the
    /// frame invalid, but may keep it pinned for a moment. So this function waits until no pins are left.
    fn give_back(&self, at: u32) {
        while self.frame(at).pins.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        self.queues.lock().free.push(at);
    }

    /// Returns the number of the oldest log object with a change that the page file may lack; `next` if every page is
    /// home. The result may ignore a change that another thread begins during this call. If the caller has read `next`
    /// before the call, the object of such a change has the number `next` or a higher one (see [`Writing::announce`]).
    pub(crate) fn first_change(&self, next: Lsn) -> Lsn {
        let changes = self.frames.iter().map(Frame::first_change).filter(|lsn| *lsn != 0);
        changes.min().map_or(next, |first| first.min(next))
    }

    /// Returns how many pages are dirty.
    pub(crate) fn dirty(&self) -> usize {
        self.tallies.dirty.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
