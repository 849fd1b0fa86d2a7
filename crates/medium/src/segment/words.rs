//! Words of a segment, for code that uses them often.
#![allow(unsafe_code)] // a slice that lives as long as what it is borrowed from

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Segment;

/// A range of a segment's words. The address of the range is found and checked only once.
///
/// Each operation does the same as the method of [`Segment`] with the same name, and is sequentially
/// consistent. Positions are in bytes, counted from the first of these words. If [`Segment::words`] has
/// returned the words, an operation takes one comparison and one instruction on memory. Otherwise this type
/// calls the segment's operation. So a simulated segment sees every operation, and can decide which process
/// continues and what that process sees.
///
/// # Panics
///
/// Every operation panics on a position that is not aligned, or outside the segment's bounds.
#[derive(Clone)]
pub struct Words {
    segment: Arc<dyn Segment>,
    base: u64,
    /// The words, borrowed from `segment`. Empty if `Segment::words` has returned no words.
    memory: NonNull<[AtomicU64]>,
}

// SAFETY: the fields are a segment and a slice of atomics, both of which threads may share.
unsafe impl Send for Words {}
// SAFETY: threads may share a segment and a slice of atomics.
unsafe impl Sync for Words {}

/// Returns the index of the word at byte `at`. The rotation moves the low three bits of `at` to the top of
/// the index. So if `at` is not a multiple of 8, the index is larger than the length of any slice.
#[inline]
fn number(at: u64) -> usize {
    usize::try_from(at.rotate_right(3)).unwrap_or(usize::MAX)
}

impl Words {
    /// Finds the `count` words from byte `base` of a segment on.
    #[must_use]
    pub fn new(segment: Arc<dyn Segment>, base: u64, count: usize) -> Self {
        let memory = NonNull::from(segment.words(base, count));
        Self { segment, base, memory }
    }

    /// Returns the segment, for everything that is not an operation on a word.
    #[inline]
    #[must_use]
    pub fn segment(&self) -> &dyn Segment {
        &*self.segment
    }

    /// Returns the word at `at`, if it is one of the borrowed words.
    #[inline]
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        // SAFETY: the words are borrowed from the object behind `segment`. That object stays where it is as
        // long as `self` holds its share of it.
        unsafe { self.memory.as_ref() }.get(number(at))
    }

    /// Returns the word at `at`.
    #[inline]
    #[must_use]
    pub fn load(&self, at: u64) -> u64 {
        match self.word(at) {
            Some(word) => word.load(Ordering::SeqCst),
            None => self.segment.load(self.base + at),
        }
    }

    /// Replaces the word at `at`.
    #[inline]
    pub fn store(&self, at: u64, value: u64) {
        match self.word(at) {
            Some(word) => word.store(value, Ordering::SeqCst),
            None => self.segment.store(self.base + at, value),
        }
    }

    /// Replaces the word at `at` by `new` if it is `current`. Returns the previous value.
    ///
    /// # Errors
    /// The word's value, if it was not `current`.
    #[inline]
    pub fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        match self.word(at) {
            Some(word) => word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst),
            None => self.segment.compare_exchange(self.base + at, current, new),
        }
    }

    /// Sets these bits of the word. Returns the previous value.
    #[inline]
    pub fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        match self.word(at) {
            Some(word) => word.fetch_or(bits, Ordering::SeqCst),
            None => self.segment.fetch_or(self.base + at, bits),
        }
    }

    /// Clears all bits of the word except these. Returns the previous value.
    #[inline]
    pub fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        match self.word(at) {
            Some(word) => word.fetch_and(bits, Ordering::SeqCst),
            None => self.segment.fetch_and(self.base + at, bits),
        }
    }

    /// Adds to the word, wrapping. Returns the previous value.
    #[inline]
    pub fn fetch_add(&self, at: u64, value: u64) -> u64 {
        match self.word(at) {
            Some(word) => word.fetch_add(value, Ordering::SeqCst),
            None => self.segment.fetch_add(self.base + at, value),
        }
    }

    /// Sleeps while the low half of the word at `at` is `expected`, as [`Segment::wait`] does.
    pub fn wait(&self, at: u64, expected: u32, limit: Duration) {
        self.segment.wait(self.base + at, expected, limit);
    }

    /// Wakes up to `count` threads that sleep on the word.
    pub fn wake(&self, at: u64, count: u32) {
        self.segment.wake(self.base + at, count);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::process::OwnFile;
    use crate::{FileSegment, LocalSegment};

    fn open(dir: &Path) -> (OwnFile, PathBuf) {
        let path = dir.join("segment");
        let file =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        (file.unwrap().into(), path)
    }

    fn mapped(dir: &Path) -> FileSegment {
        let (file, path) = open(dir);
        FileSegment::join(file, &path, 4096, Some(4096)).unwrap()
    }

    #[test]
    fn operations_are_those_of_the_segment_whether_words_are_memory_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let (mapped, local) = (Arc::new(mapped(dir.path())), Arc::new(LocalSegment::new(4096)));
        assert_eq!((mapped.words(64, 8).len(), local.words(64, 8).len()), (8, 0));
        let segments: [Arc<dyn Segment>; 2] = [mapped, local];
        for segment in segments {
            let words = Words::new(Arc::clone(&segment), 64, 8);
            // At offset 56 is the last of the eight words in `words`. The word at offset 64 is in the
            // segment, but not in `words`.
            for at in [56, 64] {
                words.store(at, 7);
                assert_eq!(segment.load(64 + at), 7);
                assert_eq!(words.compare_exchange(at, 6, 9), Err(7));
                assert_eq!(words.compare_exchange(at, 7, 9), Ok(7));
                assert_eq!(words.fetch_or(at, 2), 9);
                assert_eq!(words.fetch_and(at, 3), 11);
                assert_eq!(words.fetch_add(at, u64::MAX), 3);
                assert_eq!((words.load(at), segment.load(64 + at)), (2, 2));
            }
            assert_eq!((segment.load(56), segment.load(64)), (0, 0));
            words.clone().wait(56, 3, Duration::from_secs(1 << 30));
        }
    }

    #[test]
    fn a_place_between_two_words_or_outside_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let segment = Arc::new(mapped(dir.path()));
        let words = Words::new(segment.clone(), 64, 8);
        for at in [1, 4, 12, 60, 4096, u64::MAX - 64 - 7] {
            assert!(catch_unwind(AssertUnwindSafe(|| words.load(at))).is_err(), "{at}");
        }
        for (base, count) in [(4, 1), (4096, 1), (0, 513)] {
            assert!(catch_unwind(AssertUnwindSafe(|| segment.words(base, count).len())).is_err());
        }
    }

    #[test]
    fn whoever_may_only_read_changes_no_word() {
        let dir = tempfile::tempdir().unwrap();
        let writer = mapped(dir.path());
        writer.store(64, 5);
        let (file, path) = open(dir.path());
        let reader = Arc::new(FileSegment::join_read_only(file, &path, 4096).unwrap());
        let words = Words::new(reader, 64, 8);
        words.store(0, 6);
        assert_eq!(words.compare_exchange(0, 5, 6), Err(5));
        assert_eq!([words.fetch_or(0, 2), words.fetch_and(0, 0), words.fetch_add(0, 1)], [5; 3]);
        assert_eq!(writer.load(64), 5);
    }
}
