//! A segment in a mapped file.
#![allow(unsafe_code)] // a mapping, and atomic access to it

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use rustix::thread::futex;
use rustix::time::ClockId;

use super::index::Index;
use super::locks::{self, Kind, Use};
use super::{PROCESS_SLOTS, Segment};
use crate::mapped::{map_sparse, write_zeros};
use crate::process::{self, OwnFile};
use crate::{MediumError, checked_end};

/// Returns the offset of the byte whose lock shows that the process in this slot is alive.
fn lock_of(process: usize) -> i64 {
    locks::PROCESSES_AT + process as i64
}

/// Returns the offset of the byte for a mark. An outside reader (one that may not write the segment) holds
/// the mark by locking this byte.
fn lock_of_mark(mark: usize, live: bool) -> i64 {
    locks::READER_AT + 2 * mark as i64 + i64::from(!live)
}

/// The largest number of marks. A mark is a lock by which an outside reader shows other processes that it is
/// reading.
const MARKS: usize = 32;

/// The marks that this process holds, if it is an outside reader.
#[derive(Debug, Default)]
struct Marks {
    /// The marks held, one bit for each mark.
    held: u32,
    /// Whether processes with a slot are using the segment that the reader reads. `false` if the reader reads
    /// a segment that a crash has left. While this is `true`, no process may make a new segment in the file,
    /// because the reader needs the present one.
    live: bool,
}

/// A segment in a mapped file.
///
/// No other program may truncate the file while it is mapped: touching the missing part kills the process.
pub struct FileSegment {
    base: NonNull<u8>,
    bytes: usize,
    /// The file. Its open file description carries the lock that proves this process alive. No mapping uses
    /// this description. If a program such as `ps` is reading about a process while that process dies, the
    /// kernel keeps the process's mappings, and so their descriptions, for a moment longer.
    file: OwnFile,
    /// This process's slot; [`PROCESS_SLOTS`] if the process may only read.
    process: usize,
    index: Index,
    /// Whether some user may read the file but not write it.
    readable: bool,
    marks: Mutex<Marks>,
}

fn nanoseconds_of(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

fn length_of(file: &File) -> Result<u64, MediumError> {
    let stat = rustix::fs::fstat(file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Maps the first `bytes` of a file that is at least that long.
fn map(file: &File, bytes: usize, protection: ProtFlags) -> Result<NonNull<u8>, MediumError> {
    let base = map_sparse(file, 0, bytes, protection)?;
    // SAFETY: the range is the whole mapping made above.
    unsafe { process::keep_from_children(base.as_ptr(), bytes) };
    Ok(base)
}

fn addressable(bytes: u64) -> Result<usize, MediumError> {
    usize::try_from(bytes)
        .map_err(|_| MediumError::Unsupported { what: "a segment beyond the address space" })
}

/// Returns whether some class of users may read a file but not write it.
fn some_may_only_read(file: &File) -> Result<bool, MediumError> {
    let stat = rustix::fs::fstat(file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
    Ok([6, 3, 0].into_iter().any(|shift| stat.st_mode >> shift & 6 == 4))
}

// SAFETY: the mapping belongs to this object alone and stays where it is until the drop. All accesses are
// atomic or copies.
unsafe impl Send for FileSegment {}
// SAFETY: all accesses are atomic or copies, also from several threads.
unsafe impl Sync for FileSegment {}

impl FileSegment {
    /// Maps `bytes` of the file and takes a process slot. If `fresh` is given, the file becomes a new
    /// segment: its wal-index and its first `fresh` bytes are zeros, and its other bytes may have any value.
    /// In this case the caller must have made sure that nobody else uses the segment.
    ///
    /// # Errors
    /// [`MediumError::NoSpace`], [`MediumError::Crowded`] if every process slot is taken,
    /// [`MediumError::Unsupported`] if the file is shorter than `bytes`, or an error of the file system.
    pub fn join(file: OwnFile, path: &Path, bytes: u64, fresh: Option<u64>) -> Result<Self, MediumError> {
        let failed = MediumError::from_errno;
        let had = length_of(&file)?;
        if fresh.is_some() {
            // Reserve space for the whole segment now, because on a full file system a store into a hole
            // kills the process. Do not truncate the file first, because a full file system may not give the
            // space again.
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&file, 0, bytes)?,
                Err(errno) => return Err(failed("fallocate", errno)),
            }
        }
        if length_of(&file)? < bytes {
            return Err(MediumError::Unsupported { what: "a shared segment of another size" });
        }
        let index = Index::open(&file, path, bytes, true)?;
        let process = (0..PROCESS_SLOTS)
            .find_map(|process| match locks::set(&file, Kind::Exclusive, lock_of(process)) {
                Ok(true) => Some(Ok(process)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })
            .unwrap_or(Err(MediumError::Crowded { most: PROCESS_SLOTS }))?;
        if fresh.is_some() {
            // Clear the index only after taking a process slot. A reader that finds the index empty then sees
            // that a process is alive, and waits for it.
            index.clear()?;
        }
        let readable = some_may_only_read(&file)? || Self::has_readers(&file)?;
        let bytes = addressable(bytes)?;
        let base = map(index.file(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let segment = Self { base, bytes, file, process, index, readable, marks: Mutex::default() };
        // Bytes that the file did not have before are zeros already.
        if let Some(zeros) = fresh.filter(|_| had > 0) {
            let zeros = segment.bytes.min(usize::try_from(zeros).unwrap_or(usize::MAX));
            // Take all page faults in one call. If the kernel cannot do that, ignore the error: the page
            // faults then come one by one.
            // SAFETY: the range is a part of the mapping. The call does not change its content.
            let _ = unsafe {
                rustix::mm::madvise(segment.base.as_ptr().cast(), zeros, Advice::LinuxPopulateWrite)
            };
            // SAFETY: the range is a part of the mapping that nobody else uses yet.
            unsafe { std::ptr::write_bytes(segment.base.as_ptr(), 0, zeros) };
        }
        Ok(segment)
    }

    /// Maps `bytes` of the file for reading, for a user who may not write it. This process has no process
    /// slot.
    ///
    /// # Errors
    /// [`MediumError::Unsupported`] if the file is shorter, or an error of the file system.
    pub fn join_read_only(file: OwnFile, path: &Path, bytes: u64) -> Result<Self, MediumError> {
        if length_of(&file)? < bytes {
            return Err(MediumError::Unsupported { what: "a shared segment of another size" });
        }
        let index = Index::open(&file, path, bytes, false)?;
        let readable = some_may_only_read(&file)?;
        let bytes = addressable(bytes)?;
        let base = map(index.file(), bytes, ProtFlags::READ)?;
        Ok(Self { base, bytes, file, process: PROCESS_SLOTS, index, readable, marks: Mutex::default() })
    }

    /// Returns whether some user may read the file but not write it.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Returns whether an outside reader holds a live mark. A mark is live if processes with a slot were
    /// using the present segment when the reader began to read. Even if all these processes have died since,
    /// the segment is in use until the reader releases its mark.
    ///
    /// # Errors
    /// If the kernel does not report this.
    pub fn has_live_readers(file: &File) -> Result<bool, MediumError> {
        fence(Ordering::SeqCst);
        if !Self::has_readers(file)? {
            return Ok(false);
        }
        for mark in 0..MARKS {
            if locks::others_hold(file, lock_of_mark(mark, true), 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_readers(file: &File) -> Result<bool, MediumError> {
        locks::others_hold(file, lock_of_mark(0, true), 2 * MARKS)
    }

    /// Returns the segment's file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether the file has a name.
    ///
    /// # Errors
    /// If the kernel does not report this.
    pub fn has_name(&self) -> Result<bool, MediumError> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
        Ok(stat.st_nlink > 0)
    }

    /// Records whether processes with a slot are using the segment that this reader reads. Also changes the
    /// locks of the marks that the reader already holds.
    ///
    /// # Errors
    /// If the kernel refuses this.
    pub fn set_live(&self, live: bool) -> Result<(), MediumError> {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.live = live;
        for mark in (0..MARKS).filter(|mark| marks.held & 1 << mark != 0) {
            locks::set(&self.file, Kind::Shared, lock_of_mark(mark, live))?;
        }
        Ok(())
    }

    /// Returns whether any process has a slot of the segment in this file.
    ///
    /// # Errors
    /// If the kernel does not report this.
    pub fn has_processes(file: &File) -> Result<bool, MediumError> {
        locks::others_hold(file, lock_of(0), PROCESS_SLOTS)
    }

    /// Returns whether any other process has a slot.
    ///
    /// # Errors
    /// If the kernel does not report this.
    pub fn has_other_processes(&self) -> Result<bool, MediumError> {
        Self::has_processes(&self.file)
    }

    /// Announces that this process uses the log for the purpose `kind`. Other processes may do the same.
    /// Returns `false` if another process has reserved this purpose for itself ([`Self::take_use`]).
    ///
    /// # Errors
    /// If the kernel does not report this.
    pub fn share_use(&self, kind: Use) -> Result<bool, MediumError> {
        locks::set(&self.file, Kind::Shared, kind.at())
    }

    /// Makes this process the only one that may use the log for the purpose `kind`. Returns `false`, without
    /// effect, if others use the log for that purpose.
    ///
    /// # Errors
    /// If the kernel does not report this.
    pub fn take_use(&self, kind: Use) -> Result<bool, MediumError> {
        locks::set(&self.file, Kind::Exclusive, kind.at())
    }

    /// Announces that this process no longer uses the log for the purpose `kind`.
    pub fn end_use(&self, kind: Use) {
        locks::clear(&self.file, kind.at());
    }

    /// Returns the address of a region of the wal-index ([`super::REGION_BYTES`] long). The address stays the
    /// same as long as this object exists. Returns `None` if no process has made the region and `extend` is
    /// `false`.
    ///
    /// # Errors
    /// [`MediumError::NoSpace`], or an error of the system.
    pub fn index_region(&self, number: u64, extend: bool) -> Result<Option<NonNull<u8>>, MediumError> {
        self.index.region(number, extend)
    }

    /// Copies bytes from the beginning of the wal-index to `buf`, without mapping anything. Bytes that other
    /// processes are storing may be copied in part. Returns how many bytes were copied.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn read_index(&self, buf: &mut [u8]) -> Result<usize, MediumError> {
        self.index.read(buf)
    }

    fn at(&self, at: u64, len: u64) -> *mut u8 {
        let end = checked_end(at, len, self.bytes as u64);
        assert!(end.is_ok(), "{len} bytes at {at} are outside the segment");
        // SAFETY: the range is inside the mapping, as was just checked.
        unsafe { self.base.as_ptr().add(at as usize) }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "{at} is not the place of a word");
        // SAFETY: the word is aligned and inside the mapping, which exists as long as `self`. Every access to
        // a word is atomic.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    /// Returns the low half of a word.
    fn half(&self, at: u64) -> &AtomicU32 {
        assert!(at.is_multiple_of(8), "{at} is not the place of a word");
        let low = if cfg!(target_endian = "big") { at + 4 } else { at };
        // SAFETY: as for `word`. Only the kernel accesses this half, atomically.
        unsafe { AtomicU32::from_ptr(self.at(low, 4).cast()) }
    }
}

impl Segment for FileSegment {
    fn len(&self) -> u64 {
        self.bytes as u64
    }

    fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::SeqCst)
    }

    fn store(&self, at: u64, value: u64) {
        if !self.is_read_only() {
            self.word(at).store(value, Ordering::SeqCst);
        }
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        if self.is_read_only() {
            return Err(self.load(at));
        }
        self.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        if self.is_read_only() {
            return self.load(at);
        }
        self.word(at).fetch_or(bits, Ordering::SeqCst)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        if self.is_read_only() {
            return self.load(at);
        }
        self.word(at).fetch_and(bits, Ordering::SeqCst)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        if self.is_read_only() {
            return self.load(at);
        }
        self.word(at).fetch_add(value, Ordering::SeqCst)
    }

    fn words(&self, base: u64, count: usize) -> &[AtomicU64] {
        if self.is_read_only() {
            return &[];
        }
        assert!(base.is_multiple_of(8), "{base} is not the place of a word");
        let first = self.at(base, 8 * count as u64);
        // SAFETY: as for `word`, for each of the words.
        unsafe { std::slice::from_raw_parts(first.cast::<AtomicU64>(), count) }
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        let from = self.at(at, buf.len() as u64);
        // SAFETY: the source is inside the mapping and does not overlap `buf`. Bytes that another process
        // stores during the copy may be copied in part, as the trait says.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.at(at, bytes.len() as u64);
        if self.is_read_only() {
            return;
        }
        // SAFETY: the target is inside the mapping and does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        // Ignore the reason for which the sleep ended (a wake-up, another value, a signal or the time limit),
        // because the caller checks the word again in any case.
        let _ = futex::wait(self.half(at), futex::Flags::empty(), expected, Some(&timeout));
    }

    fn wake(&self, at: u64, count: u32) {
        // The call fails only for an address that is not mapped.
        let _ = futex::wake(self.half(at), futex::Flags::empty(), count);
    }

    fn clock_ns(&self) -> u64 {
        nanoseconds_of(ClockId::Monotonic)
    }

    fn coarse_clock_ns(&self) -> u64 {
        nanoseconds_of(ClockId::MonotonicCoarse)
    }

    fn process_slot(&self) -> usize {
        self.process
    }

    fn is_alive(&self, process: usize) -> Result<bool, MediumError> {
        Ok(process == self.process || locks::others_hold(&self.file, lock_of(process), 1)?)
    }

    fn is_read_only(&self) -> bool {
        self.process == PROCESS_SLOTS
    }

    fn can_be_read_only(&self) -> bool {
        true
    }

    fn has_outside_readers(&self, first: usize, count: usize) -> Result<bool, MediumError> {
        // The system call does not order this process's earlier stores, so use a fence.
        fence(Ordering::SeqCst);
        locks::others_hold(&self.file, lock_of_mark(first, true), 2 * count)
    }

    fn hold_mark(&self, mark: usize) -> Result<bool, MediumError> {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let held = locks::set(&self.file, Kind::Shared, lock_of_mark(mark, marks.live))?;
        marks.held |= u32::from(held) << mark;
        fence(Ordering::SeqCst);
        Ok(held)
    }

    fn release_mark(&self, mark: usize) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.held &= !(1 << mark);
        for live in [true, false] {
            locks::clear(&self.file, lock_of_mark(mark, live));
        }
    }
}

impl Drop for FileSegment {
    fn drop(&mut self) {
        if !self.file.is_own() {
            // A child process does not have this mapping, and may have another mapping at the same address.
            return;
        }
        self.index.unmap();
        // SAFETY: this object made the mapping, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for FileSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSegment").field("bytes", &self.bytes).field("process", &self.process).finish()
    }
}

#[cfg(test)]
mod tests;
