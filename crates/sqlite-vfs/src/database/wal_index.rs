//! The wal-index as this connection uses it: which parts SQLite has mapped, and which locks SQLite holds.
//!
//! A user who may only read the log sees the first region as a copy. SQLite reads the header, then the
//! readers' marks, and looks for a mark that is not beyond the end of the log in that header. If there is no
//! such mark, a user who may write makes one. A user who may only read cannot make a mark, and SQLite would
//! then act as if there were no index. So such a user must not see a header from before a commit together
//! with marks from after that commit. In the copy that this user gets of the first region, header and marks
//! belong together. This VFS renews the copy when SQLite asks for a barrier. SQLite does so between its two
//! reads of the header. It also does so when it has taken a mark, before it checks that nothing has changed.
#![allow(unsafe_code)] // copies from memory that others change

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_format::wal_index::IndexHeader;
use duralite_locks::Holder;
use duralite_medium::REGION_BYTES;

use super::concurrent::Concurrent;
use crate::attachment::Attachment;

/// A connection's use of the wal-index of its log.
#[derive(Default)]
pub struct Index {
    locks: Mutex<Option<Arc<IndexLocks>>>,
    mapped: Mutex<Option<Mapped>>,
    /// The private wal-index of a concurrent connection, which SQLite uses instead of `mapped`. The pointer
    /// comes from a box, or is null. The pointer is atomic because every call of SQLite loads it.
    concurrent: AtomicPtr<Concurrent>,
    /// SQLite's count of the database's changes, as it was when SQLite last took a read mark.
    seen_changes: AtomicU32,
}

impl Drop for Index {
    fn drop(&mut self) {
        self.set_concurrent(None);
    }
}

/// The wal-index that SQLite has mapped. Its regions stay mapped at their addresses until SQLite unmaps them.
struct Mapped {
    attachment: Arc<Attachment>,
    /// The copy of the first region that SQLite reads, if this user may only read the log.
    first: Option<FirstRegion>,
}

/// A log whose wal-index a connection locks, and the locks that the connection holds.
pub struct IndexLocks {
    pub attachment: Arc<Attachment>,
    pub holder: Arc<Holder>,
}

impl IndexLocks {
    pub fn of(attachment: &Arc<Attachment>) -> Self {
        Self { attachment: Arc::clone(attachment), holder: Arc::new(attachment.locks().holder()) }
    }
}

impl Index {
    fn mapped(&self) -> MutexGuard<'_, Option<Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that SQLite maps a region of the wal-index of this log.
    pub fn map(&self, attachment: Arc<Attachment>) {
        mapping(&mut self.mapped(), attachment);
    }

    /// Maps the first region for a user who may only read the log. Copies the region `shared`, and returns
    /// the address of the copy. SQLite reads the copy instead of the region.
    pub fn map_first(&self, attachment: Arc<Attachment>, shared: NonNull<u8>) -> *mut c_void {
        let mut mapped = self.mapped();
        let first = &mut mapping(&mut mapped, attachment).first;
        if let Some(copy) = first.as_ref().filter(|copy| copy.is_of(shared)) {
            copy.renew();
            return copy.address();
        }
        // SAFETY: the region stays mapped as long as the attachment lives, and the attachment is kept beside
        // the copy.
        first.insert(unsafe { FirstRegion::new(shared) }).address()
    }

    /// Returns whether SQLite has the wal-index mapped.
    pub fn is_mapped(&self) -> bool {
        self.mapped().is_some()
    }

    /// Copies the first region again, if SQLite has a copy.
    pub fn renew_first(&self) {
        if let Some(copy) = self.mapped().as_ref().and_then(|mapped| mapped.first.as_ref()) {
            copy.renew();
        }
    }

    /// Returns whether SQLite has a copy of the first region, and the region's header is whole now.
    pub fn first_is_whole(&self) -> bool {
        let mapped = self.mapped();
        mapped.as_ref().and_then(|mapped| mapped.first.as_ref()).is_some_and(FirstRegion::is_whole)
    }

    /// Returns the connection's private wal-index, if the connection is concurrent.
    #[inline]
    pub fn concurrent(&self) -> Option<&Concurrent> {
        // SAFETY: the pointer comes from `Box::into_raw`. `set_concurrent` frees the box. It is called only
        // when SQLite maps its wal-index and there is none yet, or when SQLite has unmapped the wal-index.
        // SQLite makes one call at a time on a database, and none of those calls comes from within another
        // one. No reference lasts longer than the call that it was made for.
        unsafe { self.concurrent.load(Ordering::Acquire).as_ref() }
    }

    /// Notes that SQLite maps this connection's private wal-index. `None` notes that SQLite has unmapped it.
    pub fn set_concurrent(&self, concurrent: Option<Box<Concurrent>>) {
        let new = concurrent.map_or(ptr::null_mut(), Box::into_raw);
        let old = self.concurrent.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the pointer comes from `Box::into_raw`, and no other code gets it any more.
            drop(unsafe { Box::from_raw(old) });
        }
    }

    /// Forgets the mapping, because SQLite no longer uses the wal-index. Returns whether there was a mapping.
    pub fn unmap(&self) -> bool {
        self.mapped().take().is_some()
    }

    /// Returns the locks that this connection holds, or has held.
    pub fn locks(&self) -> MutexGuard<'_, Option<Arc<IndexLocks>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that SQLite has taken a read mark. `changes` is SQLite's count of the database's changes at that
    /// time.
    pub fn set_seen_changes(&self, changes: u32) {
        self.seen_changes.store(changes, Ordering::Relaxed);
    }

    /// Returns how often the database had been changed when SQLite last took a read mark.
    pub fn seen_changes(&self) -> u32 {
        self.seen_changes.load(Ordering::Relaxed)
    }
}

/// Returns the mapping of this log's wal-index. Drops the mapping of an earlier log, which SQLite no longer
/// uses once it maps this one.
fn mapping(mapped: &mut Option<Mapped>, attachment: Arc<Attachment>) -> &mut Mapped {
    drop(mapped.take_if(|mapped| !Arc::ptr_eq(&mapped.attachment, &attachment)));
    mapped.get_or_insert(Mapped { attachment, first: None })
}

/// The number of words, of eight bytes each, in a region.
const WORDS: usize = REGION_BYTES as usize / 8;
/// The number of words of a header. The region has two copies of the header.
const HEADER: usize = 6;
/// The number of words of both headers and the marks.
const HEAD: usize = 17;
/// How many times a reader reads the header if its two copies differ each time. There is a limit because a
/// process that dies while it writes the header leaves the copies different.
const TRIES: u32 = 1000;

/// A copy of the first region.
struct FirstRegion {
    words: Box<[AtomicU64]>,
    /// The region itself. The owner of the copy keeps it mapped.
    shared: NonNull<u8>,
}

// SAFETY: any thread may read the region, and only volatile reads do so.
unsafe impl Send for FirstRegion {}

impl FirstRegion {
    /// # Safety
    /// `shared` is a region that stays mapped as long as the result lives.
    unsafe fn new(shared: NonNull<u8>) -> Self {
        let copy = Self { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(), shared };
        copy.renew();
        copy
    }

    /// Returns whether this is a copy of the region `shared`.
    fn is_of(&self, shared: NonNull<u8>) -> bool {
        self.shared == shared
    }

    /// Returns the address at which SQLite reads the copy.
    fn address(&self) -> *mut c_void {
        self.words.as_ptr().cast_mut().cast()
    }

    fn word(&self, at: usize) -> u64 {
        // SAFETY: the word lies inside the region, and the caller of `new` promised that the region is
        // mapped.
        unsafe { self.shared.cast::<u64>().add(at).read_volatile() }
    }

    fn head(&self) -> [u64; HEAD] {
        std::array::from_fn(|at| self.word(at))
    }

    /// Copies the region's present content.
    fn renew(&self) {
        let mut head = self.head();
        for _ in 0..TRIES {
            fence(Ordering::SeqCst);
            let again = self.head();
            if again == head && head[..HEADER] == head[HEADER..2 * HEADER] {
                break;
            }
            head = again;
            std::hint::spin_loop();
        }
        fence(Ordering::SeqCst);
        // The head was read before these words. A writer stores everything that the head refers to before it
        // stores the head, so these words are at least as new as the head.
        for at in 0..WORDS {
            let word = head.get(at).copied().unwrap_or_else(|| self.word(at));
            self.words[at].store(word, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Returns whether SQLite accepts the header. It does if both copies agree and hold ten numbers with the
    /// right checksum.
    fn is_whole(&self) -> bool {
        let head = self.head();
        let words = std::array::from_fn(|at| {
            // The header has numbers of four bytes, and `head` has words of eight.
            let [a, b, c, d, e, f, g, h] = head[at / 2].to_ne_bytes();
            u32::from_ne_bytes(if at % 2 == 0 { [a, b, c, d] } else { [e, f, g, h] })
        });
        head[..HEADER] == head[HEADER..2 * HEADER] && IndexHeader::of(words).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(words: &mut [u64]) -> FirstRegion {
        // SAFETY: the words outlive the copy in each test.
        unsafe { FirstRegion::new(NonNull::new(words.as_mut_ptr()).unwrap().cast()) }
    }

    #[test]
    fn it_is_a_copy_until_it_is_renewed() {
        let mut words: Vec<u64> =
            (0..WORDS as u64).map(|word| if word < 12 { word % 6 } else { word }).collect();
        let copy = region(&mut words);
        let seen =
            |copy: &FirstRegion| copy.words.iter().map(|w| w.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(seen(&copy), words);
        words[20] = 7;
        assert_eq!(seen(&copy)[20], 20);
        copy.renew();
        assert_eq!(seen(&copy), words);
        // A header that stays half written.
        words[0] = 9;
        copy.renew();
        assert_eq!(seen(&copy), words);
    }

    #[test]
    fn a_header_is_whole_when_both_copies_and_the_checksum_agree() {
        let mut words = vec![0; WORDS];
        assert!(!region(&mut words).is_whole(), "never written");
        let mut numbers = [3_007_000_u32, 0, 5, 1, 12, 3, 7, 8, 9, 10, 0, 0];
        numbers[3] = u32::from_ne_bytes([1, 0, 0, 16]);
        let (mut a, mut b) = (0_u32, 0_u32);
        for pair in numbers[..10].chunks_exact(2) {
            a = a.wrapping_add(pair[0]).wrapping_add(b);
            b = b.wrapping_add(pair[1]).wrapping_add(a);
        }
        numbers[10..].copy_from_slice(&[a, b]);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        for (at, chunk) in bytes.chunks_exact(8).enumerate() {
            words[at] = u64::from_ne_bytes(chunk.try_into().unwrap());
            words[HEADER + at] = words[at];
        }
        assert!(region(&mut words).is_whole());
        words[1] += 1;
        assert!(!region(&mut words).is_whole());
        words[HEADER + 1] += 1;
        assert!(!region(&mut words).is_whole());
    }
}
