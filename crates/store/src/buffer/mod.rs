//! The cache of pages.
//!
//! A page is read once however many want it, under the latch of its own frame and no lock besides, so reads of different
//! pages run beside each other.
//!
//! A page is *pinned* while it is used and *latched* while it is looked at or changed. Latches are taken from parents
//! to children, and of space maps last; whoever holds one waits for no lock and for no other latch out of that order.

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

use duralite_logfmt::store::{DOUBLE_WRITE_PAGES, Lsn, PageId, lsn};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

pub(crate) use self::ahead::MOST_AHEAD;
use self::frame::{Content, Frame, Pinned, Tallies};
pub(crate) use self::frame::{Latched, Reading, Writing};
use self::queues::Queues;
pub(crate) use self::way::Way;
use crate::error::Error;
use crate::log::Log;
use crate::page_file::PageFile;
use crate::poison::Poison;
use crate::sync::Parker;

/// Parts of the map from pages to frames.
const PARTS: usize = 64;
/// Bytes that a frame takes besides its page, with its place in the map.
const FRAME_BYTES: u64 = 248;
/// Fewest frames. Recovery works on one thread, and without the keeper. A step of it pins at most the pages of one way
/// down a tree, the two pages that a split makes, and a space map for each page that is made or given back: 50 in a tree
/// of 24 levels. An inner page that is split has three children or more, so the longest keys in the smallest pages make a
/// tree as high of no fewer than 2^24 leaves, 64 GiB; keys of 16 bytes make 4 levels of that. The other threads of an open
/// store find room beside that because nearly every step pins one leaf.
const FEWEST_FRAMES: usize = 64;

/// Bytes of the smallest cache for pages of so many bytes: the fewest frames, and the page file's buffer.
pub(crate) const fn smallest_cache_bytes(page_bytes: u64) -> u64 {
    FEWEST_FRAMES as u64 * (page_bytes + FRAME_BYTES) + (1 + DOUBLE_WRITE_PAGES as u64) * page_bytes
}

/// A part of the map from pages to frames, on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part {
    /// Places in [`Pool::frames`].
    frames: FxHashMap<PageId, u32>,
    /// How often a page was found.
    hits: u64,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Pool {
    /// No other cache has it.
    number: u64,
    file: Arc<PageFile>,
    log: Arc<dyn Log>,
    poison: Arc<Poison>,
    frames: Box<[Frame]>,
    map: Box<[Mutex<Part>]>,
    queues: Mutex<Queues>,
    /// Pages that have come in.
    came: AtomicU32,
    /// For so many of them a use does not count.
    moment: u32,
    /// Held by whoever writes pages home.
    cleaning: Mutex<()>,
    tallies: Tallies,
    /// Where the keeper sleeps, and whether it was woken.
    keeper: Parker,
    is_keeper_woken: AtomicBool,
    pub(crate) misses: AtomicU64,
    /// Misses that had to wait until pages were home.
    pub(crate) waits: AtomicU64,
    /// Inner pages that have left.
    pub(crate) inner_left: AtomicU64,
    /// Pages that have come in ahead, and those of them that left before anybody used them.
    pub(crate) came_ahead: AtomicU64,
    pub(crate) came_in_vain: AtomicU64,
}

impl Pool {
    /// An empty cache of so many bytes, of which the buffers of the page file and of the log are a part.
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

    /// The beginning of a way down a tree.
    pub(crate) fn way(&self) -> Way<'_> {
        Way::new(self.number, &self.frames)
    }

    fn frame(&self, at: u32) -> &Frame {
        &self.frames[at as usize]
    }

    /// Under the lock of its part of the map.
    fn pinned<'p>(&'p self, frame: &'p Frame) -> Pinned<'p> {
        frame.pins.fetch_add(1, Ordering::Acquire);
        frame.touched(self.came.load(Ordering::Relaxed), self.moment, &self.tallies);
        Pinned { frame, tallies: &self.tallies }
    }

    /// How often a page was found in the cache.
    pub(crate) fn hits(&self) -> u64 {
        self.map.iter().map(|part| part.lock().hits).sum()
    }

    fn part(&self, id: PageId) -> &Mutex<Part> {
        &self.map[(id % PARTS as u64) as usize]
    }

    /// A page, latched for reading.
    ///
    /// # Errors
    /// [`Error::Corrupt`], an error of the medium, [`Error::Full`] if every frame is in use.
    pub(crate) fn read(&self, id: PageId) -> Result<Reading<'_>, Error> {
        loop {
            let page = self.pin(id, true)?.read();
            if page.guard.is_valid && page.guard.id == id {
                return Ok(page);
            }
        }
    }

    /// A page, latched for changes.
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

    /// A page that is to be made anew, latched for that: what it held is not read.
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
        // Nobody else knows the frame.
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

    /// A frame is to have another page, and has nothing of it yet.
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
                // Nothing could ever make the log durable up to there.
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

    /// A frame that is mapped for no page any more. Whoever waits for it finds it invalid, and may hold it for a moment.
    fn give_back(&self, at: u32) {
        while self.frame(at).pins.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        self.queues.lock().free.push(at);
    }

    /// No object before this one is missing at home, if nothing is changed meanwhile: see [`Writing::announce`].
    pub(crate) fn first_change(&self, next: Lsn) -> Lsn {
        let changes = self.frames.iter().map(Frame::first_change).filter(|lsn| *lsn != 0);
        changes.min().map_or(next, |first| first.min(next))
    }

    /// How many pages are not as they are at home.
    pub(crate) fn dirty(&self) -> usize {
        self.tallies.dirty.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
