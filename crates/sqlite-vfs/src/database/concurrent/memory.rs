//! The memory of a wal-index, which all connections share or which is private to one connection.
#![allow(unsafe_code)] // memory that SQLite, or other processes, change

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use duralite_format::wal_index::{HASH_OFFSET, HASH_SLOTS, HEADER_WORDS, IndexHeader, Place};
use duralite_medium::{MediumError, REGION_BYTES};

use crate::attachment::Attachment;

/// The number of words, of four bytes each, in a region.
const WORDS: usize = REGION_BYTES as usize / 4;

/// One region, which stays at its address for `'a`.
#[derive(Clone, Copy)]
pub struct Region<'a>(&'a [AtomicU32; WORDS]);

impl Region<'_> {
    #[inline]
    pub fn load(self, word: usize) -> u32 {
        self.0.get(word).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    #[inline]
    pub fn store(self, word: usize, value: u32) {
        if let Some(word) = self.0.get(word) {
            word.store(value, Ordering::Release);
        }
    }

    #[inline]
    fn slots(&self) -> &[AtomicU16; HASH_SLOTS] {
        const { assert!(HASH_OFFSET + 2 * HASH_SLOTS == 4 * WORDS) };
        // SAFETY: the hash table is the second half of the region, which lives as long as `self`.
        unsafe { &*self.0.as_ptr().byte_add(HASH_OFFSET).cast() }
    }

    #[inline]
    pub fn slot(self, slot: usize) -> u16 {
        self.slots().get(slot).map_or(0, |slot| slot.load(Ordering::Acquire))
    }

    #[inline]
    pub fn set_slot(self, slot: usize, value: u16) {
        if let Some(slot) = self.slots().get(slot) {
            slot.store(value, Ordering::Release);
        }
    }

    /// Returns the first (`copy` is 0) or the second (1) of the two copies of the header.
    #[inline]
    fn copy(self, copy: usize) -> [u32; HEADER_WORDS] {
        let mut words = [0; HEADER_WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.load(copy * HEADER_WORDS + at);
        }
        words
    }

    /// Returns the header. Returns `None` while a connection writes the header, or if a connection died while
    /// it wrote the header.
    pub fn header(self) -> Option<IndexHeader> {
        let first = self.copy(0);
        fence(Ordering::Acquire);
        IndexHeader::of(first).filter(|_| self.copy(1) == first)
    }

    /// Returns whether both copies of the header are equal to `header`.
    #[inline]
    pub fn is_header(self, header: &IndexHeader) -> bool {
        let same =
            |(at, word): (usize, &u32)| self.load(at) == *word && self.load(HEADER_WORDS + at) == *word;
        header.words().iter().enumerate().all(same)
    }

    /// Removes all frames of the region but the first `kept`.
    pub fn forget(self, place: Place, kept: u32) {
        for slot in (0..HASH_SLOTS).filter(|slot| u32::from(self.slot(*slot)) > kept) {
            self.set_slot(slot, 0);
        }
        // Clear these words from the last to the first. If this process dies in between, the first word still
        // shows the next writer that there are frames to remove.
        (place.first_word + kept as usize..HASH_OFFSET / 4).rev().for_each(|word| self.store(word, 0));
    }

    /// Writes both copies of the header in the order in which SQLite writes them. So a reader that sees the
    /// new first copy also sees the new second copy.
    pub fn set_header(self, header: &IndexHeader) {
        for copy in [1, 0] {
            for (at, word) in header.words().iter().enumerate() {
                self.store(copy * HEADER_WORDS + at, *word);
            }
            fence(Ordering::Release);
        }
    }
}

/// The first region of a log's wal-index, which almost every operation needs.
pub struct First {
    /// Keeps the region mapped.
    _attachment: Arc<Attachment>,
    region: Option<NonNull<[AtomicU32; WORDS]>>,
}

// SAFETY: any thread may use the region, because every access is atomic.
unsafe impl Send for First {}
// SAFETY: as above.
unsafe impl Sync for First {}

impl First {
    pub fn of(attachment: Arc<Attachment>) -> Self {
        let region = attachment.index_region(0, true).ok().flatten();
        Self { region: region.map(NonNull::cast), _attachment: attachment }
    }

    /// Returns the region, if it could be mapped.
    pub fn region(&self) -> Option<Region<'_>> {
        // SAFETY: as for `shared`. The attachment lives as long as `self`.
        self.region.map(|region| Region(unsafe { region.as_ref() }))
    }
}

/// Returns a region of the wal-index of this log. Returns `None` if the region does not exist and `extend`
/// does not ask to make it.
pub fn shared(attachment: &Attachment, number: u32, extend: bool) -> Result<Option<Region<'_>>, MediumError> {
    let region = attachment.index_region(u64::from(number), extend)?;
    // SAFETY: the region stays mapped as long as the attachment lives, and is aligned to its size. Every
    // access from here is atomic, and SQLite's own accesses follow its protocol.
    Ok(region.map(|region: NonNull<u8>| Region(unsafe { region.cast().as_ref() })))
}

/// The regions of a wal-index that belongs to one connection alone. A region stays at its address until this
/// value is dropped.
#[derive(Default)]
pub struct Private(Vec<Arc<[AtomicU32; WORDS]>>);

impl Private {
    /// Returns the address of a region, for SQLite. Returns `None` if the region does not exist and `extend`
    /// does not ask to make it.
    pub fn address(&mut self, number: usize, extend: bool) -> Option<*mut c_void> {
        while extend && self.0.len() <= number {
            self.0.push(Arc::new([const { AtomicU32::new(0) }; WORDS]));
        }
        self.0.get(number).map(|region| region.as_ptr().cast_mut().cast())
    }

    /// Returns the page of a frame, or `None` where there is no such frame.
    pub fn page_of(&self, frame: u32) -> Option<u32> {
        let place = Place::of(frame);
        let region = self.0.get(place.region as usize)?;
        let page = Region(region).load(place.first_word + (frame - place.before) as usize - 1);
        (page > 0).then_some(page)
    }

    /// Removes all frames after this one.
    pub fn forget_after(&self, frame: u32) {
        let last = Place::of(frame.max(1));
        for number in last.region..u32::try_from(self.0.len()).unwrap_or(u32::MAX) {
            let place = Place::of_region(number);
            if let Some(region) = self.0.get(number as usize) {
                Region(region).forget(place, frame.saturating_sub(place.before));
            }
        }
    }

    /// Returns the first region, which exists once a caller has asked for its address.
    pub fn first(&self) -> Option<Region<'_>> {
        self.0.first().map(|region| Region(region))
    }
}
