//! Memory that the processes of one database share: words to agree by, bytes to pass on.
//!
//! Nothing in it is durable. What has to outlive the last process is on another medium.
#![allow(unsafe_code)] // a mapping, atomic access to it, and locks of open file descriptions

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::mapped::write_zeros;
use crate::{MediumError, checked_end};

/// Most processes that can be members of a segment at once.
pub const MEMBERS: usize = 128;

/// A shared segment of fixed length, and a register of the processes that use it.
///
/// Words are 8 bytes, in the machine's order, at multiples of 8. Every operation on a word is sequentially
/// consistent, so that two members that each announce and then look cannot both see nothing.
///
/// A member is a slot below [`MEMBERS`] that a living process holds. The kernel frees it when the
/// process dies, however it dies, so a slot found free proves that its last holder is gone.
///
/// # Panics
///
/// Every method panics on a position that is out of bounds or not aligned: positions come from
/// the layout, never from the content.
pub trait Segment: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at `at`.
    fn load(&self, at: u64) -> u64;

    /// Replaces the word at `at`.
    fn store(&self, at: u64, value: u64);

    /// Replaces the word at `at` by `new` if it is `current`.
    ///
    /// # Errors
    /// What the word was, when it was something else.
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Sets bits; returns the word before.
    fn fetch_or(&self, at: u64, bits: u64) -> u64;

    /// Keeps only the bits given; returns the word before.
    fn fetch_and(&self, at: u64, bits: u64) -> u64;

    /// Adds, wrapping; returns the word before.
    fn fetch_add(&self, at: u64, value: u64) -> u64;

    /// Copies bytes out. What another member writes meanwhile may be seen in part.
    fn read(&self, at: u64, buf: &mut [u8]);

    /// Copies bytes in.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Sleeps while the low half of the word at `at` is `expected`, until woken or for at most
    /// `limit`. May return early for no reason.
    fn wait(&self, at: u64, expected: u32, limit: Duration);

    /// Wakes up to `count` sleepers at the word.
    fn wake(&self, at: u64, count: u32);

    /// Nanoseconds of a clock that never goes back and is the same for every member.
    fn clock_ns(&self) -> u64;

    /// This process's member slot.
    fn member(&self) -> usize;

    /// Whether a process holds the slot. This process's own is alive.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn is_alive(&self, member: usize) -> Result<bool, MediumError>;
}

/// Where the lock bytes of the members are in the file: far behind its content.
const MEMBER_LOCKS: i64 = 1 << 40;

/// A segment in a mapped file.
///
/// Nothing else may shorten the file while it is mapped: touching what is gone kills the process.
pub struct FileSegment {
    base: NonNull<u8>,
    bytes: usize,
    /// Holds the lock that proves this member alive.
    file: File,
    member: usize,
}

// SAFETY: the mapping belongs to this object alone and stays where it is until the drop; all
// accesses are atomic or copies.
unsafe impl Send for FileSegment {}
// SAFETY: as above.
unsafe impl Sync for FileSegment {}

impl FileSegment {
    /// Maps `bytes` of the file and joins as a member. With `fresh` it becomes a new segment, of which
    /// the first so many bytes are zeros and the others may be anything: the caller has made sure
    /// that nobody else uses it.
    ///
    /// # Errors
    /// [`MediumError::NoSpace`], [`MediumError::Unsupported`] when every member slot is taken or
    /// the file is shorter than it should be, or an error of the file system.
    pub fn join(file: File, bytes: u64, fresh: Option<u64>) -> Result<Self, MediumError> {
        let failed = MediumError::from_errno;
        let length_of = || rustix::fs::fstat(&file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
        let had = length_of().map_err(|errno| failed("fstat", errno))?;
        if fresh.is_some() {
            // Backed by space from the start: a store into a hole of a full file system kills. What
            // the file has already is kept, since a full file system may not give it back.
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&file, 0, bytes)?,
                Err(errno) => return Err(failed("fallocate", errno)),
            }
        }
        if length_of().map_err(|errno| failed("fstat", errno))? < bytes {
            return Err(MediumError::Unsupported { what: "a shared segment of another size" });
        }
        let member = (0..MEMBERS)
            .find_map(|member| match set_lock(&file, member) {
                Ok(true) => Some(Ok(member)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })
            .unwrap_or(Err(MediumError::Unsupported { what: "one more process on this database" }))?;
        let bytes = usize::try_from(bytes)
            .map_err(|_| MediumError::Unsupported { what: "a segment beyond the address space" })?;
        // SAFETY: a new mapping where the kernel likes, of a range that the file has.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        };
        let base = base.map_err(|errno| failed("mmap", errno))?;
        let base = NonNull::new(base.cast()).ok_or(failed("mmap", Errno::NOMEM))?;
        let segment = Self { base, bytes, file, member };
        // What the file did not have is zeros already.
        if let Some(zeros) = fresh.filter(|_| had > 0) {
            let zeros = segment.bytes.min(usize::try_from(zeros).unwrap_or(usize::MAX));
            // All pages in one call, where the kernel can do that; else one by one as they are touched.
            // SAFETY: a part of the mapping, whose content stays as it is.
            let _ = unsafe {
                rustix::mm::madvise(segment.base.as_ptr().cast(), zeros, Advice::LinuxPopulateWrite)
            };
            // SAFETY: a part of the mapping, which nobody else uses yet.
            unsafe { std::ptr::write_bytes(segment.base.as_ptr(), 0, zeros) };
        }
        Ok(segment)
    }

    /// Whether any process is a member of the segment in this file.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn has_members(file: &File) -> Result<bool, MediumError> {
        has_others_lock(file, 0, MEMBERS)
    }

    fn at(&self, at: u64, len: u64) -> *mut u8 {
        let end = checked_end(at, len, self.bytes as u64);
        assert!(end.is_ok(), "{len} bytes at {at} are outside the segment");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.as_ptr().add(at as usize) }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "{at} is not the place of a word");
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; every access to
        // words is atomic.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    /// The low half of a word.
    fn half(&self, at: u64) -> &AtomicU32 {
        assert!(at.is_multiple_of(8), "{at} is not the place of a word");
        let low = if cfg!(target_endian = "big") { at + 4 } else { at };
        // SAFETY: as for `word`; only the kernel looks at it, and the load that precedes.
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
        self.word(at).store(value, Ordering::SeqCst);
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.word(at).fetch_or(bits, Ordering::SeqCst)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.word(at).fetch_and(bits, Ordering::SeqCst)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        self.word(at).fetch_add(value, Ordering::SeqCst)
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        let from = self.at(at, buf.len() as u64);
        // SAFETY: the source is inside the mapping and apart from `buf`. What another process
        // stores meanwhile may be copied in part, as the trait says.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.at(at, bytes.len() as u64);
        // SAFETY: the target is inside the mapping and apart from `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        // Woken, another value, interrupted or too late: the caller looks again in any case.
        let _ = futex::wait(self.half(at), futex::Flags::empty(), expected, Some(&timeout));
    }

    fn wake(&self, at: u64, count: u32) {
        // It fails only for an address that is not mapped.
        let _ = futex::wake(self.half(at), futex::Flags::empty(), count);
    }

    fn clock_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
        u64::try_from(nanoseconds).unwrap_or(0)
    }

    fn member(&self) -> usize {
        self.member
    }

    fn is_alive(&self, member: usize) -> Result<bool, MediumError> {
        Ok(member == self.member || has_others_lock(&self.file, member, 1)?)
    }
}

impl Drop for FileSegment {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for FileSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSegment").field("bytes", &self.bytes).field("member", &self.member).finish()
    }
}

/// A segment that one process has for itself: to look at a log without joining those that use it,
/// and for tests. Every slot but the first is free.
#[derive(Debug)]
pub struct LocalSegment {
    bytes: Mutex<Vec<u8>>,
    changed: Condvar,
    started: Instant,
}

impl LocalSegment {
    /// A segment of zeros.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes: Mutex::new(vec![0; bytes as usize]), changed: Condvar::new(), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, at: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut bytes = self.lock();
        let before = word_in(&bytes, at);
        bytes[at as usize..at as usize + 8].copy_from_slice(&change(before).to_le_bytes());
        before
    }
}

fn word_in(bytes: &[u8], at: u64) -> u64 {
    assert!(at.is_multiple_of(8), "{at} is not the place of a word");
    bytes[at as usize..at as usize + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl Segment for LocalSegment {
    fn len(&self) -> u64 {
        self.lock().len() as u64
    }

    fn load(&self, at: u64) -> u64 {
        word_in(&self.lock(), at)
    }

    fn store(&self, at: u64, value: u64) {
        self.update(at, |_| value);
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        let before = self.update(at, |word| if word == current { new } else { word });
        if before == current { Ok(before) } else { Err(before) }
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.update(at, |word| word | bits)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.update(at, |word| word & bits)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        self.update(at, |word| word.wrapping_add(value))
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        buf.copy_from_slice(&self.lock()[at as usize..at as usize + buf.len()]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.lock()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        let bytes = self.lock();
        let same = |bytes: &mut Vec<u8>| word_in(bytes, at) & 0xffff_ffff == u64::from(expected);
        drop(self.changed.wait_timeout_while(bytes, limit, same));
    }

    fn wake(&self, _at: u64, _count: u32) {
        drop(self.lock());
        self.changed.notify_all();
    }

    fn clock_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn member(&self) -> usize {
        0
    }

    fn is_alive(&self, member: usize) -> Result<bool, MediumError> {
        Ok(member == 0)
    }
}

/// The locks of `count` members from the first on.
fn lock_of(first: usize, count: usize) -> libc::flock {
    // SAFETY: a plain structure of numbers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = MEMBER_LOCKS + first as i64;
    lock.l_len = count as i64;
    lock
}

/// Takes the member's lock; `false` when somebody has it.
fn set_lock(file: &File, member: usize) -> Result<bool, MediumError> {
    let lock = lock_of(member, 1);
    // SAFETY: an open file and a complete lock description.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match last_errno() {
        _ if code == 0 => Ok(true),
        Errno::AGAIN | Errno::ACCESS => Ok(false),
        errno => Err(MediumError::from_errno("fcntl(F_OFD_SETLK)", errno)),
    }
}

/// Whether any of these members' locks is held through another opening of the file than this one.
fn has_others_lock(file: &File, first: usize, count: usize) -> Result<bool, MediumError> {
    let mut lock = lock_of(first, count);
    // SAFETY: an open file and a complete lock description, which the kernel changes.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(MediumError::from_errno("fcntl(F_OFD_GETLK)", last_errno()));
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir) -> File {
        let path = dir.path().join("segment");
        std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn members_see_each_others_words_and_deaths() {
        let dir = tempfile::tempdir().unwrap();
        let one = FileSegment::join(file(&dir), 4096, Some(4096)).unwrap();
        let two = FileSegment::join(file(&dir), 4096, None).unwrap();
        assert_eq!((one.member(), two.member()), (0, 1));
        one.store(8, 7);
        assert_eq!(two.compare_exchange(8, 6, 9), Err(7));
        assert_eq!(two.compare_exchange(8, 7, 9), Ok(7));
        assert_eq!(one.fetch_or(8, 2), 9);
        assert_eq!(one.fetch_and(8, 3), 11);
        assert_eq!(one.fetch_add(8, 1), 3);
        assert_eq!(two.load(8), 4);
        two.write(100, b"bytes");
        let mut seen = [0; 5];
        one.read(100, &mut seen);
        assert_eq!(&seen, b"bytes");
        assert!(one.is_alive(0).unwrap() && one.is_alive(1).unwrap() && !one.is_alive(2).unwrap());
        drop(two);
        assert!(!one.is_alive(1).unwrap());
        let three = FileSegment::join(file(&dir), 4096, None).unwrap();
        assert_eq!(three.member(), 1);
        assert_eq!(three.load(8), 4);
    }

    #[test]
    fn a_fresh_segment_is_zero_and_a_short_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(FileSegment::join(file(&dir), 4096, None).is_err());
        FileSegment::join(file(&dir), 4096, Some(4096)).unwrap().store(0, 1);
        assert_eq!(FileSegment::join(file(&dir), 4096, Some(0)).unwrap().load(0), 1);
        assert_eq!(FileSegment::join(file(&dir), 4096, Some(8)).unwrap().load(0), 0);
    }

    #[test]
    fn a_sleeper_is_woken_and_does_not_sleep_on_another_value() {
        let dir = tempfile::tempdir().unwrap();
        let segment = FileSegment::join(file(&dir), 4096, Some(4096)).unwrap();
        segment.store(16, 1 << 32 | 5);
        segment.wait(16, 4, Duration::from_secs(60));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while segment.load(16) & 0xffff_ffff == 5 {
                    segment.wait(16, 5, Duration::from_secs(60));
                }
            });
            segment.store(16, 6);
            segment.wake(16, 1);
        });
    }

    #[test]
    #[should_panic(expected = "outside the segment")]
    fn positions_outside_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _ = FileSegment::join(file(&dir), 4096, Some(4096)).unwrap().load(4096);
    }
}
