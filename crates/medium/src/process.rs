//! Identifies the calling process. By comparing identities, a handle can recognise that it was made before a
//! fork and is now used in a child.
//!
//! A child has the memory and the descriptors of its parent, but not the parent's locks. What the parent
//! opened before the fork still belongs to the parent. So every handle remembers the [`ProcessId`] of the
//! process that made it, and before each operation compares that id with the current one. The comparison
//! needs no system call, because the process's number is in a page that the kernel clears in every child,
//! even in a child made by a bare `clone`.
//!
//! A lock of an open file description lasts as long as any process has a descriptor of that description. So a
//! child that kept the parent's descriptors would keep the parent's locks after the parent's death. Therefore
//! [`OwnFile`] registers each descriptor that carries locks, and the child closes these descriptors: in a
//! `pthread_atfork` handler, or, if no such handler runs, when it first asks for its `ProcessId`.
//!
//! Mappings keep descriptions open too, so children do not inherit mappings ([`keep_from_children`]). The
//! wal-index is an exception. When SQLite in a child rolls back an inherited transaction, it reads and writes
//! the wal-index without asking the VFS. So the child gets a copy of its own at the same address
//! ([`map_for_this_process`]).

#![allow(unsafe_code)] // a page with special treatment at forks, handlers of forks, and closing of descriptors

#[cfg(test)]
mod tests;

use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{io, ptr};

/// Identifies a process, and distinguishes it from the processes that it was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(u64);

impl ProcessId {
    /// Returns the identity of the calling process.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let word = WORD.load(Ordering::Acquire);
        if !word.is_null() {
            // SAFETY: the pointer is set once, to a page that is never unmapped. All accesses are atomic.
            let number = unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed);
            if number != 0 && !ASKS_KERNEL.load(Ordering::Relaxed) {
                return Self(number);
            }
        }
        look_closely()
    }

    /// Returns whether this is the identity of the calling process, and not of a process from which it was
    /// forked.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// The address of the first word of the page that the kernel clears in a child. Null before the first use.
static WORD: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
/// Whether the kernel cannot clear the page in a child. The code then asks the kernel for the pid each time,
/// and clears the page itself when the pid has changed.
static ASKS_KERNEL: AtomicBool = AtomicBool::new(false);
/// The highest number taken so far, by this process or by a process from which it was forked. A child
/// inherits this value, and takes the next number for itself. So a child's number is larger than its
/// parent's.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The pid of the process whose number is in the page. [`look_closely`] uses this pid only if the kernel does
/// not clear the page.
static KERNEL_PID: AtomicU32 = AtomicU32::new(0);

#[cold]
fn look_closely() -> ProcessId {
    let word = match NonNull::new(WORD.load(Ordering::Acquire)) {
        Some(word) => word,
        None => prepare(),
    };
    // SAFETY: as in `current`.
    let word = unsafe { AtomicU64::from_ptr(word.as_ptr()) };
    if ASKS_KERNEL.load(Ordering::Relaxed) {
        let pid = std::process::id();
        if KERNEL_PID.swap(pid, Ordering::Relaxed) != pid {
            word.store(0, Ordering::Relaxed);
        }
    }
    let number = word.load(Ordering::Relaxed);
    if number != 0 {
        return ProcessId(number);
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            close_inherited(new);
            ProcessId(new)
        }
        Err(other) => ProcessId(other),
    }
}

/// Makes the page, and registers the fork handlers.
fn prepare() -> NonNull<u64> {
    static ONCE: OnceLock<usize> = OnceLock::new();
    let word = *ONCE.get_or_init(|| {
        let bytes = rustix::param::page_size();
        let flags = rustix::mm::MapFlags::PRIVATE;
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: the call makes a new mapping at an address that the kernel chooses.
        let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
        let cleared = page.as_ref().is_ok_and(|page| {
            // SAFETY: the page was just mapped, and nobody uses it yet.
            unsafe { rustix::mm::madvise(*page, bytes, rustix::mm::Advice::LinuxWipeOnFork) }.is_ok()
        });
        if !cleared {
            ASKS_KERNEL.store(true, Ordering::Relaxed);
        }
        // SAFETY: the functions exist as long as the process, and do only what a fork handler may do.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
        page.map_or_else(|_| Box::into_raw(Box::new(0_u64)).addr(), |page| page.expose_provenance())
    });
    let word = ptr::with_exposed_provenance_mut::<u64>(word);
    WORD.store(word, Ordering::Release);
    NonNull::new(word).unwrap_or(NonNull::dangling())
}

/// The gate for opening descriptors: a fork waits until every descriptor that is being opened is registered.
static OPENING: Gate = Gate::new(Duration::from_millis(100));
/// The gate for the threads that this library has started without the application's knowledge: a fork waits
/// until none of them is at work.
static WORKING: Gate = Gate::new(Duration::from_secs(2));

extern "C" fn before_fork() {
    // Wait first for the library's own threads, because they may open descriptors.
    WORKING.before_fork();
    OPENING.before_fork();
}

extern "C" fn after_fork() {
    OPENING.after_fork();
    WORKING.after_fork();
}

extern "C" fn after_fork_in_child() {
    OPENING.after_fork_in_child();
    WORKING.after_fork_in_child();
    // Usually the kernel has cleared the word already. But a machine emulator may accept the request to clear
    // the page in children, and then not clear it.
    let word = WORD.load(Ordering::Acquire);
    if !word.is_null() {
        // SAFETY: as in `current`. The child has one thread.
        unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Relaxed);
    }
    let _ = ProcessId::current();
}

/// A list of descriptors that carry locks, or of mappings. Each entry also has the number of the process that
/// registered it. An entry of 0 is free.
struct Registered {
    places: [AtomicU64; 256],
    next: AtomicPtr<Registered>,
}

impl Registered {
    const fn new() -> Self {
        Self { places: [const { AtomicU64::new(0) }; 256], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: the pointer is null, or was leaked by `register`.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static REGISTERED: Registered = Registered::new();
static MAPPINGS: Registered = Registered::new();

fn entry(fd: i32, process: u64) -> u64 {
    (process & 0xffff_ffff) << 32 | u64::from(fd.cast_unsigned())
}

/// The number of low bits of a mapping's entry that hold the process's number. The other bits hold the
/// address, in units of 4 KiB.
const PROCESS_BITS: u32 = 28;
const ADDRESS_UNIT_BITS: u32 = 12;

fn mapping_entry(base: NonNull<u8>, process: u64) -> u64 {
    (base.as_ptr().expose_provenance() as u64 >> ADDRESS_UNIT_BITS) << PROCESS_BITS | of_mapping(process)
}

fn of_mapping(process: u64) -> u64 {
    process & ((1 << PROCESS_BITS) - 1)
}

impl Registered {
    fn chunks(&'static self) -> impl Iterator<Item = &'static Self> {
        std::iter::successors(Some(self), |chunk| chunk.next())
    }

    fn places(&'static self) -> impl Iterator<Item = &'static AtomicU64> {
        self.chunks().flat_map(|chunk| &chunk.places)
    }
}

fn register(table: &'static Registered, entry: u64) {
    loop {
        let free = |place: &&AtomicU64| {
            place.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if table.places().any(|place| free(&place)) {
            return;
        }
        let Some(last) = table.chunks().last() else { return };
        let more = Box::into_raw(Box::new(Registered::new()));
        if last.next.compare_exchange(ptr::null_mut(), more, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the box was made above, and was not published.
            drop(unsafe { Box::from_raw(more) });
        }
    }
}

fn unregister(table: &'static Registered, entry: u64) {
    for place in table.places() {
        if place.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// In the child with this number: closes the inherited descriptors, and replaces the inherited mappings by
/// copies. Does only what is allowed between `fork` and `exec`.
fn close_inherited(number: u64) {
    for place in REGISTERED.places() {
        let found = place.load(Ordering::Acquire);
        if found != 0
            && found >> 32 != number & 0xffff_ffff
            && place.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            // SAFETY: the descriptor belongs to the parent's handles, which are never used or dropped in this
            // process (`OwnFile::drop`).
            unsafe { libc::close((found & 0xffff_ffff) as i32) };
        }
    }
    for place in MAPPINGS.places() {
        let found = place.load(Ordering::Acquire);
        if found != 0
            && of_mapping(found) != of_mapping(number)
            && place.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            let address = ((found >> PROCESS_BITS) << ADDRESS_UNIT_BITS) as usize;
            // SAFETY: `address` is that of an inherited mapping of this size. A mapping is unregistered
            // before it is unmapped.
            unsafe { unshare(ptr::with_exposed_provenance_mut(address)) };
        }
    }
}

/// Returns the size in bytes of every mapping that [`map_for_this_process`] makes.
pub(crate) fn piece_bytes() -> usize {
    const REGION: usize = 32 << 10;
    REGION.max(rustix::param::page_size())
}

/// Makes a mapping of [`piece_bytes`] that is shared with other processes. A child finds a copy of its own at
/// the same address.
///
/// # Errors
/// The errors of `map`.
pub(crate) fn map_for_this_process<E>(
    map: impl FnOnce() -> Result<NonNull<u8>, E>,
) -> Result<NonNull<u8>, E> {
    let _opening = Opening::begin();
    let base = map()?;
    register(&MAPPINGS, mapping_entry(base, ProcessId::current().0));
    Ok(base)
}

/// Unregisters a mapping that this process made and is about to unmap.
pub(crate) fn forget_mapping(base: NonNull<u8>) {
    unregister(&MAPPINGS, mapping_entry(base, ProcessId::current().0));
}

/// Replaces a mapping by a private copy, or by zeros if there is no memory for a copy.
///
/// # Safety
/// `base` is a mapping of [`piece_bytes`], and no other thread uses it.
unsafe fn unshare(base: *mut libc::c_void) {
    let bytes = piece_bytes();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses the address of the new mapping. This code then copies the old mapping into
    // it, and moves it over the old mapping, which the caller permits. Another process may store into the old
    // mapping at the same time, so the copy may have only a part of such a store. Nothing relies on these
    // stores.
    unsafe {
        let copy = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
        if copy != libc::MAP_FAILED {
            ptr::copy_nonoverlapping(base.cast::<u8>().cast_const(), copy.cast(), bytes);
            let moved = libc::mremap(copy, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, base);
            if moved != libc::MAP_FAILED {
                return;
            }
        }
        libc::mmap(base, bytes, protection, flags | libc::MAP_FIXED, -1, 0);
    }
}

/// The first descriptor that is not a standard stream.
pub const FIRST_DESCRIPTOR: i32 = 3;

/// Moves a file away from the descriptors of the standard streams (0 to 2). A program that has closed a
/// standard stream may still print to that descriptor, and would then print into the file. SQLite does the
/// same for its own files.
///
/// # Errors
/// The kernel's error if too many files are open.
pub fn off_standard_streams<F: AsFd + From<OwnedFd>>(file: F) -> io::Result<F> {
    if file.as_fd().as_raw_fd() >= FIRST_DESCRIPTOR {
        return Ok(file);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&file, FIRST_DESCRIPTOR)?.into())
}

/// A file whose locks belong to this process. A child closes the descriptor that it inherits.
///
/// The last handle of an open file releases the file's locks before it closes the file. Closing the file is
/// not enough if another thread is just starting a process (`posix_spawn`, `vfork`). Until the new process
/// executes its program, it has the descriptors too, and no fork handler closes them.
#[derive(Debug)]
pub struct OwnFile {
    file: ManuallyDrop<File>,
    process: ProcessId,
    /// Counts the handles of one open file, all of which share this value. `None` after the drop.
    handles: Option<Arc<()>>,
}

impl OwnFile {
    /// Opens a file. A fork that begins during this call waits until the file is registered, so that the
    /// child can close it.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn open(open: impl FnOnce() -> io::Result<File>) -> io::Result<Self> {
        let _opening = Opening::begin();
        open().and_then(off_standard_streams).map(Self::from)
    }

    /// Returns whether this process opened the file, rather than a process that it was forked from.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.process.is_current()
    }

    /// Makes another handle of the same open file.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn try_clone(&self) -> io::Result<Self> {
        let mut clone = Self::open(|| self.file.try_clone())?;
        clone.handles.clone_from(&self.handles);
        Ok(clone)
    }
}

impl From<File> for OwnFile {
    fn from(file: File) -> Self {
        let process = ProcessId::current();
        register(&REGISTERED, entry(file.as_raw_fd(), process.0));
        Self { file: ManuallyDrop::new(file), process, handles: Some(Arc::default()) }
    }
}

impl Deref for OwnFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl AsFd for OwnFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // SAFETY: the file is taken only once, here.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if self.process.is_current() {
            if self.handles.take().and_then(Arc::into_inner).is_some() {
                give_locks_back(&file);
            }
            unregister(&REGISTERED, entry(file.as_raw_fd(), self.process.0));
        } else {
            // The child has closed the descriptor already, and its number may belong to another file by now.
            let _ = file.into_raw_fd();
        }
    }
}

/// Releases all locks of an open file. Ignores errors, because a release of all locks does not fail.
fn give_locks_back(file: &File) {
    let _ = file.unlock();
    // SAFETY: the structure holds only numbers, for which zeros are valid. They mean a range from the
    // beginning to the end.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = libc::F_UNLCK as libc::c_short;
    all.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the file is open, and `all` is a complete lock description.
    let _ = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const all) };
}

/// A value that exists while a thread opens a descriptor. A fork waits until this value is dropped.
struct Opening;

impl Opening {
    fn begin() -> Self {
        // Make sure that the fork handlers are registered before the first descriptor is opened.
        let _ = ProcessId::current();
        OPENING.enter();
        Self
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.leave();
    }
}

/// A value that a thread holds while it works, if this library has started the thread without the
/// application's knowledge. A `fork` by the application waits until this value is dropped, for at most two
/// seconds. Otherwise a lock that the thread holds, such as the lock of SQLite's allocator, would never be
/// released in the child.
#[derive(Debug)]
#[must_use]
pub struct ForksWait(());

impl ForksWait {
    /// Begins the work. Waits if a fork is in progress.
    pub fn begin() -> Self {
        let _ = ProcessId::current();
        WORKING.enter();
        Self(())
    }
}

impl Drop for ForksWait {
    fn drop(&mut self) {
        WORKING.leave();
    }
}

/// Prevents children from inheriting a mapping. An inherited mapping would keep the open file description
/// alive, and so would keep its locks.
///
/// # Safety
/// `base` and `bytes` are a mapping, or whole pages of one.
pub(crate) unsafe fn keep_from_children(base: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that the range is a mapping, or whole pages of one. If the kernel does not
    // know this advice, children inherit the mapping.
    let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, rustix::mm::Advice::LinuxDontFork) };
}

/// State that belongs to one process. A child gets a new state of its own, because in a copy of the parent's
/// state a lock may be held by a thread that does not exist in the child.
pub struct PerProcess<T> {
    current: AtomicPtr<(ProcessId, T)>,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// Makes a value without a state.
    #[must_use]
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the state of this process.
    pub fn get(&self) -> &'static T {
        self.get_after(|_| ())
    }

    /// Returns the state of this process. In a child that has no state yet, first calls `inherit` with the
    /// parent's state. `inherit` must not wait for a lock in that state, because a thread that does not exist
    /// in the child may hold the lock.
    pub fn get_after(&self, inherit: impl FnOnce(&'static T)) -> &'static T {
        let process = ProcessId::current();
        loop {
            let found = self.current.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or was leaked below. What is stored there is never freed.
            if let Some((owner, state)) = unsafe { found.as_ref() }
                && *owner == process
            {
                return state;
            }
            let new = Box::into_raw(Box::new((process, T::default())));
            match self.current.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: the pointer is null, or was leaked by this function in the parent.
                    if let Some((_, parents)) = unsafe { found.as_ref() } {
                        inherit(parents);
                    }
                    // SAFETY: `new` was leaked by this function.
                    return unsafe { &(*new).1 };
                }
                // SAFETY: the box was made above, and was not published.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }
}

impl<T: Default + Send + Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

// The gate makes forks wait for certain work, and makes that work wait for forks.

/// The value of `inside` while a fork is in progress.
const FORKING: i32 = i32::MIN;
const PAUSE: Duration = Duration::from_micros(50);

/// Counts the threads that do work which a fork must not interrupt. A fork waits until no thread does such
/// work, and a thread that wants to begin it during a fork waits until the fork is over. Both wait only for a
/// limited time, because the other side may hang.
struct Gate {
    inside: AtomicI32,
    /// How often a thread sleeps for [`PAUSE`] before it stops waiting.
    patience: u32,
}

impl Gate {
    const fn new(patience: Duration) -> Self {
        Self { inside: AtomicI32::new(0), patience: (patience.as_micros() / PAUSE.as_micros()) as u32 }
    }

    /// Begins work that a fork must not interrupt. Forks wait until the calling thread calls [`Gate::leave`].
    fn enter(&self) {
        let mut patience = self.patience;
        loop {
            let count = self.inside.load(Ordering::Relaxed);
            let inside = (count >= 0 || patience == 0).then_some(count.max(0) + 1);
            match inside {
                Some(new)
                    if self
                        .inside
                        .compare_exchange(count, new, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok() =>
                {
                    return;
                }
                Some(_) => {}
                None => {
                    patience -= 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::Release);
    }

    /// Before a fork: waits until no thread is inside the gate, and then keeps threads from entering. Does
    /// only what a fork handler may do.
    fn before_fork(&self) {
        for _ in 0..self.patience {
            if self.inside.compare_exchange(0, FORKING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// After a fork, in the parent: lets threads enter the gate again.
    fn after_fork(&self) {
        let _ = self.inside.compare_exchange(FORKING, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// After a fork, in the child: lets threads enter the gate. The parent's other threads do not exist here.
    fn after_fork_in_child(&self) {
        self.inside.store(0, Ordering::Release);
    }
}
