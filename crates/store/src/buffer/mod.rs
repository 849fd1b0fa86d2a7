//! The cache of pages.
//!
//! A page is *pinned* while it is used and *latched* while it is looked at or changed. Latches are taken from parents
//! to children, and of space maps last; whoever holds one waits for no lock and for no other latch out of that order.

mod clean;
mod frame;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duralite_logfmt::store::{Lsn, PageId, lsn};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use self::frame::{Content, Frame, Pinned};
pub(crate) use self::frame::{Reading, Writing};
use crate::error::Error;
use crate::log::Log;
use crate::page_file::PageFile;
use crate::poison::Poison;

/// Parts of the map from pages to frames.
const PARTS: usize = 64;
/// Fewest frames: what a few threads use at once.
const FEWEST_FRAMES: usize = 64;
/// For so long a frame is looked for while all are in use.
const PATIENCE: Duration = Duration::from_secs(10);

/// A part of the map from pages to frames.
type Part = FxHashMap<PageId, Arc<Frame>>;

/// The cache.
#[derive(Debug)]
pub(crate) struct Pool {
    file: Arc<PageFile>,
    log: Arc<dyn Log>,
    poison: Arc<Poison>,
    frames: Box<[Arc<Frame>]>,
    map: Box<[Mutex<Part>]>,
    free: Mutex<Vec<Arc<Frame>>>,
    hand: AtomicUsize,
    /// Held by whoever writes pages home.
    cleaning: Mutex<()>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Pool {
    pub(crate) fn new(file: Arc<PageFile>, log: Arc<dyn Log>, poison: Arc<Poison>, cache_bytes: u64) -> Self {
        let frames = ((cache_bytes / file.page_bytes() as u64) as usize).max(FEWEST_FRAMES);
        let frames: Box<[Arc<Frame>]> = (0..frames).map(|_| Arc::default()).collect();
        Self {
            file,
            log,
            poison,
            map: (0..PARTS).map(|_| Mutex::default()).collect(),
            free: Mutex::new(frames.iter().rev().cloned().collect()),
            frames,
            hand: AtomicUsize::new(0),
            cleaning: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    pub(crate) fn file(&self) -> &PageFile {
        &self.file
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.file.page_bytes()
    }

    /// How many pages fit.
    pub(crate) fn capacity(&self) -> usize {
        self.frames.len()
    }

    fn part(&self, id: PageId) -> &Mutex<Part> {
        &self.map[(id % PARTS as u64) as usize]
    }

    /// A page, latched for reading.
    ///
    /// # Errors
    /// [`Error::Corrupt`], an error of the medium, [`Error::Full`] if every frame is in use.
    pub(crate) fn read(&self, id: PageId) -> Result<Reading, Error> {
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
    pub(crate) fn write(&self, id: PageId) -> Result<Writing, Error> {
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
    pub(crate) fn make(&self, id: PageId) -> Result<Writing, Error> {
        loop {
            let page = self.pin(id, false)?.write();
            if page.guard.is_valid && page.guard.id == id {
                return Ok(page);
            }
        }
    }

    fn pin(&self, id: PageId, load: bool) -> Result<Pinned, Error> {
        if let Some(found) = self.pin_cached(id) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let frame = self.vacate()?;
        // Nobody else knows the frame.
        let mut content = RwLock::write_arc(&frame.content);
        {
            let mut part = self.part(id).lock();
            if let Some(other) = part.get(&id) {
                let found = pinned(other);
                drop(part);
                drop(content);
                frame.pins.store(0, Ordering::Release);
                self.free.lock().push(frame);
                return Ok(found);
            }
            frame.id.store(id, Ordering::SeqCst);
            frame.is_used.store(true, Ordering::Relaxed);
            part.insert(id, Arc::clone(&frame));
        }
        let pin = Pinned(frame);
        if let Err(error) = self.fill(&mut content, id, load) {
            self.part(id).lock().remove(&id);
            drop(content);
            // Whoever waits for it finds it invalid, and may still hold it for a moment.
            self.give_back(pin);
            return Err(error);
        }
        drop(content);
        Ok(pin)
    }

    fn pin_cached(&self, id: PageId) -> Option<Pinned> {
        let part = self.part(id).lock();
        let frame = part.get(&id)?;
        Some(pinned(frame))
    }

    fn fill(&self, content: &mut Content, id: PageId, load: bool) -> Result<(), Error> {
        content.is_valid = false;
        content.id = id;
        if content.bytes.len() != self.page_bytes() {
            content.bytes = vec![0; self.page_bytes()].into();
        }
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

    /// A frame that is mapped for no page any more.
    fn give_back(&self, pin: Pinned) {
        let frame = Arc::clone(&pin.0);
        drop(pin);
        while frame.pins.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        self.free.lock().push(frame);
    }

    /// A frame for another page, with one pin.
    fn vacate(&self) -> Result<Arc<Frame>, Error> {
        let begun = Instant::now();
        loop {
            if let Some(frame) = self.free.lock().pop() {
                frame.pins.store(1, Ordering::Release);
                return Ok(frame);
            }
            if let Some(frame) = self.turn() {
                return Ok(frame);
            }
            self.poison.check()?;
            if self.clean_some()? == 0 {
                if begun.elapsed() > PATIENCE {
                    return Err(Error::full("every page of the cache is in use; raise the cache's size"));
                }
                std::thread::yield_now();
            }
        }
    }

    /// Turns the clock's hand until it finds a clean frame that nobody has used since the last time; twice around
    /// at most.
    fn turn(&self) -> Option<Arc<Frame>> {
        for _ in 0..self.frames.len() * 2 {
            let hand = self.hand.fetch_add(1, Ordering::Relaxed) % self.frames.len();
            let frame = &self.frames[hand];
            if frame.pins.load(Ordering::Acquire) != 0
                || frame.is_used.swap(false, Ordering::Relaxed)
                || frame.is_dirty()
            {
                continue;
            }
            let id = frame.id.load(Ordering::SeqCst);
            let mut part = self.part(id).lock();
            let is_mapped = part.get(&id).is_some_and(|mapped| Arc::ptr_eq(mapped, frame));
            if is_mapped && frame.pins.load(Ordering::Acquire) == 0 && !frame.is_dirty() {
                part.remove(&id);
                frame.pins.store(1, Ordering::Release);
                return Some(Arc::clone(frame));
            }
        }
        None
    }

    /// No object before this one is missing at home, if nothing is changed meanwhile: see [`Writing::announce`].
    pub(crate) fn first_change(&self, next: Lsn) -> Lsn {
        let changes = self.frames.iter().map(|frame| frame.first_change()).filter(|lsn| *lsn != 0);
        changes.min().map_or(next, |first| first.min(next))
    }

    /// How many pages are not as they are at home.
    pub(crate) fn dirty(&self) -> usize {
        self.frames.iter().filter(|frame| frame.is_dirty()).count()
    }
}

/// Under the lock of its part of the map.
fn pinned(frame: &Arc<Frame>) -> Pinned {
    frame.pins.fetch_add(1, Ordering::Acquire);
    frame.is_used.store(true, Ordering::Relaxed);
    Pinned(Arc::clone(frame))
}
