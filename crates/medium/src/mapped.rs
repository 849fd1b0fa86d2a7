//! A mapped file: NVRAM with direct access, or an emulation of NVRAM.

#![allow(unsafe_code)] // memory mapping, and copies to and from shared memory

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence as memory_fence,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::cacheline::{FlushInstruction, detect_flush_instruction};
use crate::counters::CounterCells;
use crate::cut::Watched;
use crate::latency::LatencyCell;
use crate::options::MapOptions;
use crate::process::OwnFile;
use crate::queue::WriteQueue;
use crate::{
    Counters, Guarantee, LINE_BYTES, Latency, MediumError, Nvm, Persistency, cacheline, checked_end, latency,
    lines_touched, process,
};

/// A shared mapping of a file.
///
/// With [`MapOptions::dax`], flushed and fenced bytes survive a power loss. Without it, the file's pages are
/// ordinary memory, and stored bytes survive only the death of the process.
///
/// No other program may truncate the file while it is mapped: touching the missing part kills the process,
/// unless the mapping is [watched](MapOptions::watched).
pub struct FileNvm {
    views: Views,
    capacity: u64,
    /// How many bytes have storage, as far as this object knows. Only [`Nvm::shrink`] reduces this number.
    len: AtomicU64,
    /// The `SLOW_*` bits of this mapping. If a bit is set, some calls have to do extra work.
    slow: AtomicU8,
    instruction: FlushInstruction,
    persistency: Persistency,
    dax: bool,
    latency: LatencyCell,
    /// The lines that were written back and are still in the emulated write-pending queue.
    queue: Mutex<WriteQueue>,
    /// Whether anything was stored in the current epoch.
    epoch_stored: AtomicBool,
    counters: CounterCells,
    file: Arc<OwnFile>,
    path: PathBuf,
    growing: Mutex<()>,
}

/// The bit for an added latency that is not zero.
const SLOW_LATENCY: u8 = 1;
/// The bit for a persistency model other than the processor's.
const SLOW_MODEL: u8 = 2;
/// The bit for a mapping that may not be stored to.
const SLOW_READ_ONLY: u8 = 4;
/// The bit for a medium in which a store is durable without a flush.
const SLOW_DURABLE_ON_STORE: u8 = 8;

impl FileNvm {
    /// Maps `file`. [`Nvm::describe`] and errors name the file by `path`.
    ///
    /// # Errors
    ///
    /// [`MediumError::NotDax`] if direct access was requested and the file system does not have it.
    /// [`MediumError::Unsupported`] if direct access needs flushes and the machine has no instruction for
    /// them, if direct access was requested with a model other than [`Persistency::X86`], or if the capacity
    /// exceeds the address space. Or an error of the system.
    pub fn map(file: impl Into<OwnFile>, path: &Path, options: &MapOptions) -> Result<Self, MediumError> {
        Self::map_open(Arc::new(file.into()), path, options)
    }

    /// Maps a file that has other handles. The descriptor stays open until the last handle is dropped,
    /// because closing any descriptor of a file releases the POSIX locks that the process has on the file.
    ///
    /// # Errors
    ///
    /// As [`FileNvm::map`].
    pub fn map_open(file: Arc<OwnFile>, path: &Path, options: &MapOptions) -> Result<Self, MediumError> {
        let instruction = detect_flush_instruction();
        options.check(instruction)?;
        if isize::try_from(options.capacity).is_err() {
            return Err(MediumError::Unsupported { what: "a capacity beyond the address space" });
        }
        let first_bytes = options.first_bytes.unwrap_or(options.capacity).min(options.capacity);
        let how = How { read_only: options.read_only, dax: options.dax, watched: options.watched };
        let views = Views::new(&file, first_bytes as usize, how).map_err(|errno| {
            if options.dax && is_dax_refusal(errno) {
                MediumError::NotDax { path: path.to_owned() }
            } else {
                MediumError::from_errno("mmap", errno)
            }
        })?;
        let nvm = Self {
            views,
            capacity: options.capacity,
            len: AtomicU64::new(0),
            slow: AtomicU8::new(slow_reasons(options)),
            instruction,
            persistency: options.persistency,
            dax: options.dax,
            latency: LatencyCell::default(),
            queue: Mutex::default(),
            epoch_stored: AtomicBool::new(false),
            counters: CounterCells::default(),
            file,
            path: path.to_owned(),
            growing: Mutex::new(()),
        };
        nvm.set_latency(options.latency);
        nvm.learn_len()?;
        Ok(nvm)
    }

    /// Returns the instruction that flushes lines of this mapping.
    #[must_use]
    pub fn flush_instruction(&self) -> FlushInstruction {
        self.instruction
    }

    /// Returns the emulated persistency model.
    #[must_use]
    pub fn persistency(&self) -> Persistency {
        self.persistency
    }

    fn learn_len(&self) -> Result<u64, MediumError> {
        let stat = rustix::fs::fstat(&*self.file).map_err(|e| MediumError::from_errno("fstat", e))?;
        let backed = u64::try_from(stat.st_size).unwrap_or(0).min(self.capacity());
        self.cover(backed)?;
        Ok(self.len.fetch_max(backed, Ordering::AcqRel).max(backed))
    }

    /// Maps everything below `end`. The caller publishes the new length only after this has returned.
    fn cover(&self, end: u64) -> Result<(), MediumError> {
        let covered = self.views.cover(&self.file, end as usize, self.capacity as usize);
        covered.map_err(|errno| MediumError::from_errno("mmap", errno))
    }

    /// Returns the address of a range. All bytes of the range must have storage.
    #[inline(always)]
    fn at(&self, at: u64, len: u64) -> *mut u8 {
        let backed = self.len.load(Ordering::Acquire);
        assert!(
            len <= backed && at <= backed - len,
            "{len} bytes at {at} are outside the {backed} bytes of the medium"
        );
        // All backed bytes are mapped by now, so the offset fits into a `usize`.
        self.views.base().wrapping_add(at as usize)
    }

    #[inline(always)]
    fn word_at(&self, at: u64) -> *mut u64 {
        assert!(at.is_multiple_of(8), "the word at {at} is not aligned");
        self.at(at, 8).cast()
    }

    #[inline(always)]
    fn is_slow(&self, reasons: u8) -> bool {
        self.slow.load(Ordering::Relaxed) & reasons != 0
    }

    /// Does what the `SLOW_*` bits require before a store. Does not store anything.
    #[cold]
    fn store_slowly(&self, at: u64, len: u64) {
        assert!(!self.is_slow(SLOW_READ_ONLY), "store to a medium that was mapped for reading only");
        match self.persistency {
            Persistency::X86 => {}
            Persistency::Epoch => self.epoch_stored.store(true, Ordering::Relaxed),
            Persistency::Strict => {
                let write_ns = u64::from(self.latency.get().write_ns);
                latency::spin(write_ns.saturating_mul(lines_touched(at, len)));
            }
        }
    }

    #[inline(always)]
    fn before_store(&self, at: u64, len: u64) {
        if self.is_slow(SLOW_MODEL | SLOW_READ_ONLY) {
            self.store_slowly(at, len);
        }
    }

    fn needs_flush(&self) -> bool {
        !self.is_slow(SLOW_MODEL | SLOW_DURABLE_ON_STORE)
    }

    /// Waits as long as the emulated memory would delay a processor that writes back `lines` lines. `of`
    /// selects the latency of one line.
    #[cold]
    fn wait_for_lines(&self, lines: u64, of: fn(&Latency) -> u32) {
        let latency = self.latency.get();
        let ns = u64::from(of(&latency));
        if latency.queue_lines == 0 {
            latency::spin(ns.saturating_mul(lines));
        } else if ns != 0 {
            let (now, service) = (latency::now(), latency::ticks_of(ns));
            let wait = self.queue().put(now, lines, service, latency.queue_lines);
            latency::spin_from(now, wait);
        }
    }

    /// Waits until the write-pending queue is empty.
    #[cold]
    fn drain_queue(&self) {
        let now = latency::now();
        let wait = self.queue().time_to_drain(now);
        latency::spin_from(now, wait);
    }

    /// Locks the write-pending queue. No thread spins for the emulated latency while it holds this lock.
    fn queue(&self) -> MutexGuard<'_, WriteQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    fn flush_now(&self, address: *mut u8, lines: u64) {
        // SAFETY: the callers have checked that the range is backed. A line never crosses the end of a page,
        // so the whole of each line is mapped. The processor has the instruction.
        unsafe { cacheline::flush_lines(self.instruction, address, lines) };
        self.counters.flushed(lines);
        if self.is_slow(SLOW_LATENCY) {
            self.wait_for_lines(lines, |latency| latency.write_ns);
        }
    }

    /// Calls `fallocate`, and repeats the call if a signal interrupts it.
    fn fallocate(&self, mode: FallocateFlags, at: u64, len: u64) -> Result<(), MediumError> {
        loop {
            match rustix::fs::fallocate(&*self.file, mode, at, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(MediumError::from_errno("fallocate", e)),
            }
        }
    }

    /// Reserves storage for `from..to`, makes the file's size durable, and publishes the new length.
    fn back(&self, from: u64, to: u64) -> Result<(), MediumError> {
        let stat = rustix::fs::fstat(&*self.file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
        // Map first, because blocks that cannot be mapped would be of no use.
        self.cover(to)?;
        self.fallocate(FallocateFlags::empty(), from, to - from)?;
        if self.dax {
            // The first store to a block that is allocated but not initialised would commit the file system's
            // journal. So write zeros to the new blocks. Leave everything below the file's present length
            // alone, because another process may have grown the file and be using that part.
            write_zeros(&self.file, from.max(u64::try_from(stat.st_size).unwrap_or(to)), to)?;
            rustix::fs::fsync(&*self.file).map_err(|e| MediumError::from_errno("fsync", e))?;
        }
        self.populate(from, to)?;
        self.len.fetch_max(to, Ordering::AcqRel);
        Ok(())
    }

    /// Causes the page faults of a range now, so that later accesses cause none. With direct access, a page
    /// fault can commit the file system's journal, and that must not happen in the middle of a transaction.
    fn populate(&self, from: u64, to: u64) -> Result<(), MediumError> {
        let page = rustix::param::page_size() as u64;
        let start = from - from % page;
        let address = self.views.base().wrapping_add(start as usize);
        // SAFETY: the range is in the mapping and in the file, so it can be written. Populating changes no
        // byte.
        let populated =
            unsafe { rustix::mm::madvise(address.cast(), (to - start) as usize, Advice::LinuxPopulateWrite) };
        match populated {
            // Kernels before 5.14 do not know this advice. On them, the page faults happen at the first
            // accesses.
            Ok(()) | Err(Errno::INVAL | Errno::FAULT | Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(e) => Err(MediumError::from_errno("madvise", e)),
        }
    }

    fn check_writable(&self) -> Result<(), MediumError> {
        if self.is_slow(SLOW_READ_ONLY) {
            return Err(MediumError::Unsupported {
                what: "changing a medium that was mapped for reading only",
            });
        }
        Ok(())
    }
}

impl Nvm for FileNvm {
    #[inline]
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn grow(&self, len: u64) -> Result<(), MediumError> {
        if len <= self.len() {
            return Ok(());
        }
        checked_end(0, len, self.capacity())?;
        self.check_writable()?;
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let from = self.len();
        if len <= from {
            return Ok(());
        }
        self.back(from, len)
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.check_writable()?;
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let stat = rustix::fs::fstat(&*self.file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
        if u64::try_from(stat.st_size).unwrap_or(0) > len {
            rustix::fs::ftruncate(&*self.file, len)
                .map_err(|errno| MediumError::from_errno("ftruncate", errno))?;
        }
        self.len.fetch_min(len, Ordering::AcqRel);
        Ok(())
    }

    fn check(&self) -> Result<(), MediumError> {
        if self.views.is_cut() {
            return Err(MediumError::Cut { path: self.path.clone() });
        }
        Ok(())
    }

    fn is_durable_on_store(&self) -> bool {
        self.is_slow(SLOW_DURABLE_ON_STORE)
    }

    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        if self.len() >= at_least || self.learn_len()? >= at_least {
            return Ok(());
        }
        Err(MediumError::OutOfBounds { at: 0, len: at_least })
    }

    #[inline]
    fn read(&self, at: u64, buf: &mut [u8]) {
        let len = buf.len() as u64;
        let from = self.at(at, len);
        // SAFETY: `at` has checked that the range is backed. No thread stores into these bytes, because a
        // writer tells readers that bytes are written (by a word that they load with `load_u64`) only after
        // it has stored them.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), buf.as_mut_ptr(), buf.len()) };
        let lines = lines_touched(at, len);
        self.counters.read(len, lines);
        if self.is_slow(SLOW_LATENCY) {
            latency::spin(u64::from(self.latency.get().read_ns).saturating_mul(lines));
        }
    }

    fn next_data(&self, at: u64) -> u64 {
        // Search for data only if the file has holes: then it has fewer blocks than its size needs.
        let sparse = rustix::fs::fstat(&*self.file).is_ok_and(|stat| stat.st_blocks < stat.st_size / 512);
        if !sparse || at >= self.len() {
            return at;
        }
        match rustix::fs::seek(&*self.file, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, self.len()),
            Err(Errno::NXIO) => self.len(),
            Err(_) => at,
        }
    }

    #[inline]
    fn load_u64(&self, at: u64) -> u64 {
        let word = self.word_at(at);
        // SAFETY: `word_at` has checked that the word is backed and aligned (the mapping begins at a page).
        // Words shared with a writer are accessed only atomically. The load is relaxed and followed by a
        // fence, because a read-only mapping allows no other atomic load.
        let value = unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed);
        memory_fence(Ordering::Acquire);
        u64::from_le(value)
    }

    #[inline]
    fn store(&self, at: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let to = self.at(at, len);
        self.before_store(at, len);
        // SAFETY: `at` has checked that the range is backed, and `before_store` that it is writable. The
        // caller is the only writer of these bytes, and no thread reads them during the call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.counters.stored(len);
    }

    #[inline]
    fn store_u64(&self, at: u64, value: u64) {
        let word = self.word_at(at);
        self.before_store(at, 8);
        // SAFETY: as in `load_u64`. Also, `before_store` has checked that the mapping is writable.
        unsafe { AtomicU64::from_ptr(word) }.store(value.to_le(), Ordering::Release);
        self.counters.stored(8);
    }

    #[inline]
    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        let word = self.word_at(at);
        self.before_store(at, 8);
        // SAFETY: as in `store_u64`.
        let word = unsafe { AtomicU64::from_ptr(word) };
        let exchanged =
            word.compare_exchange(current.to_le(), new.to_le(), Ordering::SeqCst, Ordering::SeqCst);
        self.counters.stored(if exchanged.is_ok() { 8 } else { 0 });
        exchanged.map(u64::from_le).map_err(u64::from_le)
    }

    fn stream(&self, at: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let to = self.at(at, len);
        self.before_store(at, len);
        self.counters.stored(len);
        if !self.needs_flush() {
            // SAFETY: as in `store`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            return;
        }
        let head = (at.next_multiple_of(LINE_BYTES) - at).min(len) as usize;
        let (head, rest) = bytes.split_at(head);
        let (body, tail) = rest.split_at(rest.len() - rest.len() % LINE_BYTES as usize);
        let body_to = to.wrapping_add(head.len());
        let tail_to = body_to.wrapping_add(body.len());
        let body_lines = body.len() as u64 / LINE_BYTES;
        // SAFETY: the three parts together are the range that was checked, and the body begins at a line.
        unsafe {
            std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
            cacheline::stream_lines(self.instruction, body_to, body.as_ptr(), body_lines);
            std::ptr::copy_nonoverlapping(tail.as_ptr(), tail_to, tail.len());
        }
        self.counters.streamed(body_lines);
        if self.is_slow(SLOW_LATENCY) {
            self.wait_for_lines(body_lines, Latency::per_streamed_line);
        }
        if !head.is_empty() {
            self.flush_now(to, 1);
        }
        if !tail.is_empty() {
            self.flush_now(tail_to, 1);
        }
    }

    #[inline]
    fn flush(&self, at: u64, len: u64) {
        let first = self.at(at, len);
        if !self.needs_flush() {
            return;
        }
        self.flush_now(first, lines_touched(at, len));
    }

    #[inline]
    fn fence(&self) {
        if self.persistency == Persistency::Strict {
            return;
        }
        cacheline::fence();
        self.counters.fenced();
        if self.is_slow(SLOW_LATENCY) && !self.is_slow(SLOW_DURABLE_ON_STORE) {
            let latency = self.latency.get();
            if latency.queue_lines != 0 {
                self.drain_queue();
            }
            let mut ns = u64::from(latency.fence_ns);
            if self.epoch_stored.load(Ordering::Relaxed) {
                ns += u64::from(latency.write_ns);
            }
            latency::spin(ns);
        }
        if self.persistency == Persistency::Epoch {
            self.epoch_stored.store(false, Ordering::Relaxed);
        }
    }

    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        let end = checked_end(at, len, self.capacity())?;
        self.check_writable()?;
        if len == 0 {
            return Ok(());
        }
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let backed = self.len();
        if end > backed {
            // Everything below the new end must have storage, not only this range.
            self.back(at.min(backed), end)
        } else {
            self.fallocate(FallocateFlags::empty(), at, len)
        }
    }

    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        checked_end(at, len, self.len())?;
        self.check_writable()?;
        if len == 0 {
            return Ok(());
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fallocate(mode, at, len)
    }

    fn restore(&self, at: u64, len: u64) -> Result<(), MediumError> {
        let end = checked_end(at, len, self.capacity())?;
        self.check_writable()?;
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        self.cover(end)?;
        self.fallocate(FallocateFlags::empty(), at, len)?;
        if self.dax {
            // Initialise the blocks, for the reason given in `back`.
            write_zeros(&self.file, at, end)?;
            rustix::fs::fsync(&*self.file).map_err(|e| MediumError::from_errno("fsync", e))?;
        }
        self.populate(at, end)?;
        self.len.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn guarantee(&self) -> Guarantee {
        if self.dax { Guarantee::PowerLoss } else { Guarantee::ProcessCrash }
    }

    fn describe(&self) -> String {
        let kind = if self.dax { "NVRAM" } else { "emulated NVRAM" };
        let how = if self.is_durable_on_store() { "durable on store" } else { self.instruction.as_str() };
        let mut text = format!("{kind}, {} ({how}", self.path.display());
        if self.persistency != Persistency::X86 {
            text += &format!(", {} persistency", self.persistency);
        }
        let latency = self.latency.get();
        let streamed = latency.stream_ns.unwrap_or(0);
        for (ns, per) in [
            (latency.write_ns, "line"),
            (streamed, "line streamed"),
            (latency.fence_ns, "fence"),
            (latency.read_ns, "line read"),
        ] {
            if ns != 0 {
                text += &format!(", +{ns} ns per {per}");
            }
        }
        if latency.queue_lines != 0 && !latency.is_zero() {
            text += &format!(", a queue of {} lines", latency.queue_lines);
        }
        text += ")";
        text
    }

    fn set_latency(&self, latency: Latency) {
        if latency.is_zero() {
            self.slow.fetch_and(!SLOW_LATENCY, Ordering::Relaxed);
            self.latency.set(latency);
        } else {
            latency::calibrate_clock();
            self.latency.set(latency);
            self.slow.fetch_or(SLOW_LATENCY, Ordering::Relaxed);
        }
    }

    fn latency(&self) -> Latency {
        self.latency.get()
    }
}

impl fmt::Debug for FileNvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileNvm")
            .field("path", &self.path)
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("dax", &self.dax)
            .finish_non_exhaustive()
    }
}

impl Drop for FileNvm {
    fn drop(&mut self) {
        self.views.end(self.file.is_own());
    }
}

/// Returns the `SLOW_*` bits that follow from the options.
fn slow_reasons(options: &MapOptions) -> u8 {
    let reasons = [
        (options.persistency != Persistency::X86, SLOW_MODEL),
        (options.read_only, SLOW_READ_ONLY),
        (options.durable_on_store, SLOW_DURABLE_ON_STORE),
    ];
    reasons.iter().filter(|(given, _)| *given).fold(0, |all, (_, reason)| all | reason)
}

// Mapping files, with and without direct access.

/// Maps the first `bytes` of a file, shared with all processes.
pub(crate) fn map_shared(
    file: &File,
    bytes: usize,
    protection: ProtFlags,
    dax: bool,
) -> Result<NonNull<u8>, Errno> {
    let flags = if dax { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
    map(file, 0, bytes, protection, flags)
}

/// Maps `bytes` of a file from byte `at` on, shared with all processes, for a caller that uses only a few of
/// the pages. Tells the kernel not to read ahead. In a file that was never written, reading ahead would cost
/// a short-lived process more than everything else that the process does with the file.
pub(crate) fn map_sparse(
    file: &File,
    at: u64,
    bytes: usize,
    protection: ProtFlags,
) -> Result<NonNull<u8>, MediumError> {
    let base = map(file, at, bytes, protection, MapFlags::SHARED);
    let base = base.map_err(|errno| MediumError::from_errno("mmap", errno))?;
    // Ignore an error. It only means that the kernel reads ahead.
    // SAFETY: the advice concerns the whole mapping made above, and does not change its content.
    let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::Random) };
    Ok(base)
}

fn map(
    file: &File,
    at: u64,
    bytes: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<NonNull<u8>, Errno> {
    // SAFETY: the kernel chooses the address, so no memory in use is replaced.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, at) };
    let base = base.map_err(|errno| match errno {
        // Valgrind returns this error if it has no address space for the mapping.
        Errno::INVAL if !flags.contains(MapFlags::SYNC) && bytes > 0 => Errno::NOMEM,
        errno => errno,
    })?;
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}

/// Writes zeros to `from..to`, where no process has stored anything.
pub(crate) fn write_zeros(file: &File, from: u64, to: u64) -> Result<(), MediumError> {
    static PIECE: [u8; 1 << 16] = [0; 1 << 16];
    let mut at = from;
    while at < to {
        let piece = &PIECE[..PIECE.len().min((to - at) as usize)];
        let written = rustix::io::pwrite(file, piece, at);
        at += written.map_err(|errno| MediumError::from_errno("pwrite", errno))? as u64;
    }
    Ok(())
}

/// Returns whether this error means that the kernel refuses direct access. Kernels that do not know
/// `MAP_SYNC` return a different error.
pub(crate) fn is_dax_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL)
}

/// Returns whether files in `dir` can be accessed directly. To find out, maps a temporary file without a
/// name. Returns `false` also if such a file cannot be made.
#[must_use]
pub fn is_dax(dir: &Path) -> bool {
    has_dax(dir).unwrap_or(false)
}

/// Does the same as [`is_dax`], but returns an error if the temporary file cannot be made.
///
/// # Errors
/// The system's error if the temporary file cannot be made.
pub fn has_dax(dir: &Path) -> std::io::Result<bool> {
    const PROBE_BYTES: u16 = 4096;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let descriptor = match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(descriptor) => descriptor,
        // This file system cannot make files without a name. Every file system with direct access can.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    let file = File::from(descriptor);
    file.set_len(PROBE_BYTES.into())?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    match map_shared(&file, PROBE_BYTES.into(), protection, true) {
        Ok(base) => {
            // SAFETY: the mapping was just made and was never used.
            let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), PROBE_BYTES.into()) };
            Ok(true)
        }
        Err(_) => Ok(false),
    }
}

// The views of a file. A view is a mapping of the file from its first byte on. When a caller needs more of
// the file than the longest view has, this code makes a longer view at another address.

/// The largest number of views of a file. This is enough if the address space has room: then each view,
/// except the last, is at least twice as long as the previous one.
const MOST_VIEWS: usize = 48;

/// How views are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) read_only: bool,
    pub(crate) dax: bool,
    pub(crate) watched: bool,
}

/// One mapping of the file, beginning with the file's first byte.
struct View {
    base: NonNull<u8>,
    bytes: usize,
    watched: Option<Watched>,
}

// SAFETY: the mapping belongs to this object alone and stays where it is until the drop. No reference points
// into it.
unsafe impl Send for View {}
// SAFETY: the mapping is accessed only by copies and atomic operations, also from several threads.
unsafe impl Sync for View {}

impl View {
    fn map(file: &File, bytes: usize, how: How) -> Result<Self, Errno> {
        let protection = if how.read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let base = map_shared(file, bytes, protection, how.dax)?;
        // SAFETY: the range is the whole mapping made above.
        unsafe { process::keep_from_children(base.as_ptr(), bytes) };
        Ok(Self { base, bytes, watched: how.watched.then(|| Watched::new(base.as_ptr(), bytes)) })
    }
}

/// The mappings of a file. All views show the same pages of memory, so a read, a store or a flush may go
/// through any of them. New accesses use the longest view. The others are kept as long as this object exists,
/// because another thread may still be using an address in them. If the address space has room, all views
/// together are at most three times as long as the longest one.
pub(crate) struct Views {
    how: How,
    /// The address of the longest view.
    base: AtomicPtr<u8>,
    bytes: AtomicUsize,
    all: [OnceLock<View>; MOST_VIEWS],
    widening: Mutex<()>,
}

impl Views {
    /// Maps the first `bytes` of the file.
    pub(crate) fn new(file: &File, bytes: usize, how: How) -> Result<Self, Errno> {
        let first = View::map(file, bytes, how)?;
        let (base, bytes) = (AtomicPtr::new(first.base.as_ptr()), AtomicUsize::new(first.bytes));
        let all = [const { OnceLock::new() }; MOST_VIEWS];
        let widening = Mutex::new(());
        let views = Self { how, base, bytes, all, widening };
        let _ = views.all[0].set(first);
        Ok(views)
    }

    /// Returns the address at which the file's first byte is mapped. A thread that knows the published length
    /// finds at least that many bytes here, because a caller must call [`Views::cover`] for a length before
    /// it publishes that length.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.load(Ordering::Acquire)
    }

    /// Returns the number of the file's bytes that are mapped at [`Views::base`].
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Maps at least `bytes` bytes, and at most `most`.
    pub(crate) fn cover(&self, file: &File, bytes: usize, most: usize) -> Result<(), Errno> {
        if bytes <= self.bytes() {
            return Ok(());
        }
        let _one_at_a_time = self.widening.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= self.bytes() {
            return Ok(());
        }
        let free = self.all.iter().find(|view| view.get().is_none()).ok_or(Errno::NOMEM)?;
        let wide = bytes.saturating_mul(2).min(most).max(bytes);
        let view = match View::map(file, wide, self.how) {
            Err(Errno::NOMEM) => View::map(file, bytes, self.how)?,
            mapped => mapped?,
        };
        let (base, mapped) = (view.base.as_ptr(), view.bytes);
        // Register the view before any thread can touch a missing page in it.
        let _ = free.set(view);
        self.base.store(base, Ordering::Release);
        self.bytes.store(mapped, Ordering::Release);
        Ok(())
    }

    /// Returns whether an access through one of the views has found that a page of the file is missing.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        let mut all = self.all.iter().map_while(OnceLock::get);
        self.how.watched && all.any(|view| view.watched.as_ref().is_some_and(Watched::is_cut))
    }

    /// Removes the views from this object, and unmaps them if this process has made them. A child must not
    /// unmap them, because it has not inherited these mappings, and may have other mappings at their
    /// addresses.
    pub(crate) fn end(&mut self, is_own: bool) {
        for mut view in self.all.iter_mut().filter_map(OnceLock::take) {
            // Stop watching first, because another mapping may soon be at this address.
            view.watched = None;
            if is_own {
                // SAFETY: this object made the mapping and nothing refers to it any more. An error would only
                // leave the address space reserved.
                let _ = unsafe { rustix::mm::munmap(view.base.as_ptr().cast(), view.bytes) };
            }
        }
    }
}
