//! A file of blocks on a file system, whose writes bypass the page cache if that is possible and faster.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use super::direct::{Access, Direct, LARGEST_SECTOR, SMALLEST_SECTOR};
use super::extents::is_range_initialised;
use super::{Block, BlockCounters, Durability, Fua, check_filesystem, probe};
use crate::block::AlignedBuf;
use crate::process::OwnFile;
use crate::{Guarantee, MediumError, checked_end};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockOptions {
    /// The number of bytes in a block, a power of two of at least 512; `None` lets the device decide.
    pub block_bytes: Option<u32>,
    /// The way in which blocks are transferred to the device.
    pub access: Access,
    /// Whether the file is only read.
    pub read_only: bool,
}

/// The number of zero bytes that one write stores during preallocation.
const STEP: u64 = 1 << 20;
/// A file of blocks.
///
/// Reads of a few blocks go through the page cache. Large reads, and all writes except those of
/// [`Block::write_later`], bypass the page cache if [`BlockOptions::access`] and the file system allow direct
/// I/O. Local file systems keep cached and direct I/O coherent. Without direct I/O, a block is written with
/// `pwrite` and made durable with `fdatasync`.
///
/// [`len`](Block::len) is the file's size, rounded down to a block.
///
/// # Preallocation
///
/// New blocks are zeroed by writing them. If the file system merely reserved the blocks, the first write to
/// each would have to mark it as initialised in the file system's journal. Only one process at a time may
/// preallocate, and no process may write past [`len`](Block::len) during that call.
///
/// A crash in the middle of a preallocation leaves a longer file, never a shorter one, and changes no byte
/// below the old length. The length grows only as far as zeros were written, so everything beyond the length
/// that the caller recorded is zeros. After such a crash the caller only has to call [`Block::preallocate`]
/// again. If the file is long enough already, that call makes the length durable and writes nothing.
///
/// A preallocation that fails gives back the space that it took. If the file system can reserve space, the
/// preallocation reserves all of it before the length grows. So other processes do not see a length that is
/// reduced later. On a file system that cannot reserve space, they may see such a length.
#[derive(Debug)]
pub struct FileBlock {
    file: OwnFile,
    direct: Option<Direct>,
    block_bytes: u32,
    len: AtomicU64,
    read_only: bool,
    /// Whether the file system is known to lose data at a power loss even after a sync.
    unsynced: bool,
    description: String,
    bounce: Mutex<AlignedBuf>,
    /// The lock that a thread holds while it changes the length.
    resizing: Mutex<()>,
    /// While this object preallocates, the length that the file had before; otherwise `None`. A preallocation
    /// that fails truncates the file to this length.
    sure: Mutex<Option<u64>>,
    /// Whether the file system reported blocks as not initialised even after they were zeroed.
    unsettled: AtomicBool,
    /// Whether the kernel has refused `RWF_DSYNC`, the flag that makes a write durable when it returns.
    no_dsync: AtomicBool,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    preallocated_bytes: AtomicU64,
    read_bytes: AtomicU64,
    path: PathBuf,
}

fn failed(op: &'static str) -> impl Fn(io::Error) -> MediumError {
    move |error| MediumError::from_errno(op, Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns a function that turns an error of the system into the error of a failed flush. The result is never
/// [`MediumError::NoSpace`], even if the file system reports a lack of space. A caller may continue after a
/// lack of space, but must not continue with blocks whose content is unknown.
fn failed_flush(op: &'static str) -> impl Fn(io::Error) -> MediumError {
    move |error| MediumError::Io { op, source: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
}

/// Returns whether the error says that the kernel or the file system does not know the operation.
fn is_unknown(errno: Errno) -> bool {
    errno == Errno::OPNOTSUPP || errno == Errno::NOSYS
}

/// A read of at least this many bytes bypasses the page cache. A direct read of this size takes a third of
/// the time of a read through the page cache. Recovery reads whole logs in pieces of this size.
const LARGE_READ: usize = 64 << 10;
/// The largest number of buffers that one system call fills.
const MOST_PARTS: usize = 1024;

/// Writes all of `blocks` by calling `write(blocks, at)` as often as needed, because one call may be
/// interrupted or write less than asked. After a partial write, the next call begins at a multiple of `unit`
/// bytes.
fn write_fully(
    unit: usize,
    mut at: u64,
    mut blocks: &[u8],
    mut write: impl FnMut(&[u8], u64) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    while !blocks.is_empty() {
        match write(blocks, at) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(count) => {
                let done = if count >= blocks.len() { blocks.len() } else { count - count % unit };
                if done == 0 {
                    return Err(Errno::IO);
                }
                blocks = &blocks[done..];
                at += done as u64;
            }
        }
    }
    Ok(())
}

/// Reads the file from `at` on into `blocks`, at least into its first `end` bytes. Returns `false` if that
/// fails. Each call begins at a multiple of `unit` bytes.
fn read_blocks(file: &File, unit: usize, at: u64, blocks: &mut [u8], end: usize) -> bool {
    let mut done = 0;
    while done < end {
        match rustix::io::pread(file, &mut blocks[done..], at + done as u64) {
            Err(Errno::INTR) => {}
            // The last read may end at the end of the file, which need not be aligned.
            Ok(count) if count > 0 && (count.is_multiple_of(unit) || done + count >= end) => done += count,
            _ => return false,
        }
    }
    true
}

/// Makes the entries of a directory durable: the names of files that were created, renamed or removed in it.
///
/// # Errors
/// An error of the system. If the file system cannot sync directories, it has no entries to lose, so the call
/// succeeds.
pub fn sync_directory(dir: &Path) -> Result<(), MediumError> {
    match File::open(dir).map_err(failed("open"))?.sync_all() {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        done => done.map_err(failed("fsync")),
    }
}

impl FileBlock {
    /// Makes a block file of `file`, whose descriptor must be open for reading and, unless `read_only`, for
    /// writing. Errors and [`Block::describe`] name the file by `path`, which also determines the file
    /// system. If `options` does not say the block size or the access, this function probes the device, at
    /// most once per file system and process. A probe takes some milliseconds.
    ///
    /// # Errors
    /// [`MediumError::FileSystem`] for a file system that breaks write-ahead logs.
    /// [`MediumError::Unsupported`] for `Direct` access where the file system has no direct I/O, for blocks
    /// smaller than the device takes, and for an invalid block size. Errors of the system.
    pub fn open(file: impl Into<OwnFile>, path: &Path, options: &BlockOptions) -> Result<Self, MediumError> {
        let file = file.into();
        if options.block_bytes.is_some_and(|bytes| bytes < SMALLEST_SECTOR || !bytes.is_power_of_two()) {
            return Err(MediumError::Unsupported { what: "this block size" });
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let kind = check_filesystem(dir)?;
        let mut description = kind.name.clone();
        let mut access = options.access;
        let mut block_bytes = options.block_bytes;
        if options.read_only || (kind.volatile && access == Access::Auto) {
            access = Access::Buffered;
        } else if !kind.volatile && (access == Access::Auto || block_bytes.is_none()) {
            let probe = probe(dir);
            access = if access == Access::Auto { probe.access } else { access };
            block_bytes = block_bytes.or(Some(probe.block_bytes));
            description.push_str(": ");
            description.push_str(&probe.reason);
        }
        let block_bytes = block_bytes.unwrap_or(LARGEST_SECTOR);
        let mut direct = match access {
            Access::Buffered => None,
            Access::Auto | Access::Direct => Direct::open(&file, path, dir),
        };
        let too_small = direct.as_ref().is_some_and(|direct| block_bytes < direct.offset_align);
        if options.access == Access::Direct && !options.read_only {
            if direct.is_none() {
                return Err(MediumError::Unsupported { what: "direct I/O" });
            }
            if too_small {
                return Err(MediumError::Unsupported { what: "a block smaller than the device's" });
            }
        }
        if too_small {
            direct = None;
        }
        let how = match &direct {
            _ if options.read_only => "reads",
            Some(_) => "direct writes",
            None => "buffered writes",
        };
        let it = Self {
            description: format!("{how} of {block_bytes}-byte blocks on {description}"),
            direct,
            block_bytes,
            len: AtomicU64::new(0),
            read_only: options.read_only,
            unsynced: kind.unsynced.is_some(),
            bounce: Mutex::default(),
            resizing: Mutex::default(),
            sure: Mutex::default(),
            unsettled: AtomicBool::new(false),
            no_dsync: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            preallocated_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            path: path.to_owned(),
            file,
        };
        it.refresh_len()?;
        Ok(it)
    }

    /// Calls `work` with the descriptor for writing blocks, the alignment in bytes that this descriptor
    /// requires, and the blocks in suitably aligned memory.
    fn through<T>(&self, blocks: &[u8], work: impl FnOnce(&File, usize, &[u8]) -> T) -> T {
        let Some(direct) = &self.direct else { return work(&self.file, 1, blocks) };
        let unit = direct.offset_align.max(direct.memory_align) as usize;
        if blocks.as_ptr().addr().is_multiple_of(direct.memory_align as usize) {
            return work(&direct.file, unit, blocks);
        }
        let mut own = AlignedBuf::default();
        let mut shared = self.bounce.try_lock();
        // If another thread is using the shared buffer, use a new one instead of waiting.
        let buffer = shared.as_deref_mut().unwrap_or(&mut own);
        buffer.resize(blocks.len());
        buffer.as_mut_slice().copy_from_slice(blocks);
        work(&direct.file, unit, buffer.as_slice())
    }

    fn check_writable(&self) -> Result<(), MediumError> {
        if self.read_only {
            return Err(MediumError::Unsupported {
                what: "changing blocks that were opened for reading only",
            });
        }
        Ok(())
    }

    fn begin_write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let len = blocks.len() as u64;
        debug_assert!(
            at.is_multiple_of(self.block_bytes.into()) && len.is_multiple_of(self.block_bytes.into())
        );
        self.check_writable()?;
        checked_end(at, len, self.len())?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    fn write_blocks(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.through(blocks, |file, unit, blocks| {
            write_fully(unit, at, blocks, |blocks, at| rustix::io::pwrite(file, blocks, at))
        })
        .map_err(|errno| MediumError::from_errno("pwrite", errno))
    }

    /// Writes blocks with one call that itself makes them durable, so that no flush is needed. Returns
    /// `false` if the system has no such call. The contents of the file at these blocks are then unknown.
    fn write_through(&self, at: u64, blocks: &[u8]) -> Result<bool, MediumError> {
        if self.direct.is_none() || self.no_dsync.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let written = self.through(blocks, |file, unit, blocks| {
            write_fully(unit, at, blocks, |blocks, at| {
                rustix::io::pwritev2(file, &[io::IoSlice::new(blocks)], at, ReadWriteFlags::DSYNC)
            })
        });
        match written {
            Ok(()) => Ok(true),
            Err(errno) if is_unknown(errno) => {
                self.no_dsync.store(true, Ordering::Relaxed);
                Ok(false)
            }
            // Do not fall back on another kind of write. It might succeed, but would not prove that these
            // blocks are durable.
            Err(errno) => Err(MediumError::from_errno("pwritev2", errno)),
        }
    }

    /// Writes zeros to `from..to`. Writes them directly if `direct` is set, as far as the range is aligned.
    fn write_zeros(&self, from: u64, to: u64, direct: bool) -> Result<(), MediumError> {
        let mut zeros = AlignedBuf::default();
        zeros.resize(STEP.min(to - from) as usize);
        zeros.as_mut_slice().fill(0);
        let sector = u64::from(LARGEST_SECTOR);
        let mut at = from;
        while at < to {
            // Write up to a sector's boundary first, through the page cache, because bytes before `at` share
            // that sector, and the page cache merges them with the zeros.
            let aligned = at.is_multiple_of(sector);
            let end = if aligned { (at + STEP).min(to) } else { at.next_multiple_of(sector).min(to) };
            let step = &zeros.as_slice()[..(end - at) as usize];
            if direct && aligned {
                self.write_blocks(at, step)?;
            } else {
                self.file.write_all_at(step, at).map_err(failed("pwrite"))?;
            }
            at = end;
        }
        Ok(())
    }

    /// Reads directly from the device. Returns `false` if that fails. The contents of `buf` are then
    /// undefined, and the caller reads through the page cache.
    fn read_directly(&self, direct: &Direct, at: u64, buf: &mut [u8]) -> bool {
        let unit = u64::from(direct.offset_align.max(direct.memory_align));
        let start = at - at % unit;
        let (from, end) = ((at - start) as usize, (at - start) as usize + buf.len());
        let is_aligned = buf.as_ptr().addr().is_multiple_of(direct.memory_align as usize);
        if is_aligned && from == 0 && end.is_multiple_of(unit as usize) {
            return read_blocks(&direct.file, unit as usize, start, buf, end);
        }
        let mut own = AlignedBuf::default();
        let mut shared = self.bounce.try_lock();
        let buffer = shared.as_deref_mut().unwrap_or(&mut own);
        buffer.resize(end.next_multiple_of(unit as usize));
        if !read_blocks(&direct.file, unit as usize, start, buffer.as_mut_slice(), end) {
            return false;
        }
        buf.copy_from_slice(&buffer.as_slice()[from..end]);
        true
    }

    fn sync_metadata(&self) -> Result<(), MediumError> {
        self.file.sync_all().map_err(failed_flush("fsync"))
    }

    /// Reserves space in the file system. Returns `false`, without any effect, if the file system cannot
    /// reserve space.
    fn take_space(&self, flags: FallocateFlags, from: u64, to: u64) -> Result<bool, MediumError> {
        loop {
            match rustix::fs::fallocate(&self.file, flags, from, to - from) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(errno) if is_unknown(errno) => return Ok(false),
                Err(errno) => return Err(MediumError::from_errno("fallocate", errno)),
            }
        }
    }

    /// Initialises blocks after the present end of the file.
    fn extend(&self, from: u64, to: u64) -> Result<(), MediumError> {
        // Reserve the space in one piece if the file system can. The reserved blocks are not initialised, so
        // the length does not change yet. The length never covers blocks that were not zeroed.
        self.take_space(FallocateFlags::KEEP_SIZE, from, to)?;
        self.write_zeros(from, to, true)?;
        self.sync_metadata()?;
        if is_range_initialised(&self.file, from, to) == Some(false) {
            // A commit that writes to these blocks would change metadata, because the direct writes have not
            // initialised the blocks on this file system. So write the zeros again, through the page cache.
            self.write_zeros(from, to, false)?;
            self.sync_metadata()?;
            let unsettled = is_range_initialised(&self.file, from, to) == Some(false);
            self.unsettled.fetch_or(unsettled, Ordering::Relaxed);
        }
        self.preallocated_bytes.fetch_add(to - from, Ordering::Relaxed);
        Ok(())
    }

    fn file_len(&self) -> Result<u64, MediumError> {
        Ok(self.file.metadata().map_err(failed("fstat"))?.len())
    }
}

impl Block for FileBlock {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn free_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.file).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        debug_assert!(len.is_multiple_of(self.block_bytes.into()));
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        let length = self.file_len()?;
        let extended = if length < len {
            *self.sure.lock().unwrap_or_else(PoisonError::into_inner) = Some(length);
            let extended = self.extend(length, len);
            if extended.is_err() {
                // Give the space back, because a file that is too short for the log has no use for it.
                let _ = rustix::fs::ftruncate(&self.file, length);
            }
            *self.sure.lock().unwrap_or_else(PoisonError::into_inner) = None;
            extended
        } else {
            // The file is long enough, but the process that extended it may have died before the length was
            // durable. So make the length durable here.
            self.sync_metadata()
        };
        extended?;
        self.refresh_len()
    }

    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        debug_assert!(len.is_multiple_of(self.block_bytes.into()));
        let taken = {
            let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
            self.check_writable()?;
            let length = self.file_len()?;
            if length >= len {
                return self.refresh_len();
            }
            let taken = self.take_space(FallocateFlags::empty(), length, len);
            if taken.is_err() {
                // Give back the part of the space that was reserved before the failure.
                let _ = rustix::fs::ftruncate(&self.file, length);
            }
            taken?
        };
        if taken { self.refresh_len() } else { self.preallocate(len) }
    }

    fn write_later(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.check_writable()?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        // Write through the page cache.
        self.file.write_all_at(blocks, at).map_err(failed("pwrite"))?;
        self.refresh_len()
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        debug_assert!(len.is_multiple_of(self.block_bytes.into()));
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        if self.file_len()? > len {
            rustix::fs::ftruncate(&self.file, len)
                .map_err(|errno| MediumError::from_errno("ftruncate", errno))?;
        }
        self.refresh_len()
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        let unit = u64::from(self.block_bytes);
        let sure = self.sure.lock().unwrap_or_else(PoisonError::into_inner);
        let length = self.file_len()?.min(sure.unwrap_or(u64::MAX));
        // Store the length while holding the lock of `sure`. Otherwise two threads could store their lengths
        // in the wrong order, and an old length would stay.
        self.len.store(length / unit * unit, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        checked_end(at, buf.len() as u64, self.len())?;
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        if buf.len() >= LARGE_READ
            && let Some(direct) = &self.direct
            && self.read_directly(direct, at, buf)
        {
            return Ok(());
        }
        // Read through the page cache, which direct writes keep coherent.
        self.file.read_exact_at(buf, at).map_err(failed("pread"))
    }

    fn read_parts(&self, mut at: u64, parts: &mut [&mut [u8]]) -> Result<(), MediumError> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        checked_end(at, len, self.len())?;
        self.read_bytes.fetch_add(len, Ordering::Relaxed);
        // Read through the page cache, as for single pages, because the kernel then reads ahead.
        let mut slices: Vec<IoSliceMut<'_>> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let now = left.len().min(MOST_PARTS);
            match rustix::io::preadv(&self.file, &mut left[..now], at) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(MediumError::from_errno("preadv", errno)),
                Ok(0) => return Err(MediumError::from_errno("preadv", Errno::IO)),
                Ok(count) => {
                    at += count as u64;
                    IoSliceMut::advance_slices(&mut left, count);
                }
            }
        }
        Ok(())
    }

    fn will_read(&self, at: u64, len: u64) {
        // A length of 0 would mean the rest of the file.
        if let Some(len) = NonZeroU64::new(len) {
            // Ignore an error. It only means that the kernel does not fetch the bytes in advance.
            let _ = rustix::fs::fadvise(&self.file, at, Some(len), Advice::WillNeed);
        }
    }

    fn next_data(&self, at: u64) -> Result<Range<u64>, MediumError> {
        let (stat, len) = (self.file.metadata().map_err(failed("fstat"))?, self.len());
        // Ask the file system about holes only if the file must have some, because it has fewer blocks than
        // its length needs. A log's blocks are all initialised, so for a log this check saves the call.
        if at >= len || stat.blocks().saturating_mul(512) >= stat.len() {
            return Ok(at..len.max(at));
        }
        let seek = |to| match rustix::fs::seek(&self.file, to) {
            Ok(found) => Ok(found.clamp(at, len)),
            Err(Errno::NXIO) => Ok(len),
            Err(errno) => Err(errno),
        };
        let found = seek(SeekFrom::Data(at)).and_then(|data| match data {
            end if end == len => Ok(len..len),
            data => Ok(data..seek(SeekFrom::Hole(data))?),
        });
        Ok(found.unwrap_or(at..len))
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.begin_write(at, blocks)?;
        self.write_blocks(at, blocks)
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.begin_write(at, blocks)?;
        if durability == Durability::Fua && self.write_through(at, blocks)? {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.write_blocks(at, blocks)?;
        if durability == Durability::Normal { Ok(()) } else { self.flush() }
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.file.sync_data().map_err(failed_flush("fdatasync"))
    }

    fn counters(&self) -> BlockCounters {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BlockCounters {
            writes: get(&self.writes),
            written_bytes: get(&self.written_bytes),
            flushes: get(&self.flushes),
            preallocated_bytes: get(&self.preallocated_bytes),
            read_bytes: get(&self.read_bytes),
        }
    }

    fn guarantee(&self) -> Guarantee {
        if self.unsynced { Guarantee::ProcessCrash } else { Guarantee::PowerLoss }
    }

    fn writes_reach_device(&self) -> bool {
        // Direct writes go to the device. But if such a write had to allocate blocks (`unsettled`), a crash
        // of the system could lose the metadata that says where these blocks are.
        self.direct.is_some() && !self.unsettled.load(Ordering::Relaxed)
    }

    fn fua(&self) -> Option<Fua> {
        // Without direct I/O, this object itself writes and flushes.
        if self.direct.is_none() || self.no_dsync.load(Ordering::Relaxed) {
            return Some(Fua::Flush);
        }
        self.file.metadata().ok().and_then(|stat| Fua::of_device(stat.dev()))
    }

    fn describe(&self) -> String {
        let moves = if self.unsettled.load(Ordering::Relaxed) {
            ", which allocates blocks anew when they are written"
        } else {
            ""
        };
        format!("{}, {}{moves}", self.path.display(), self.description)
    }
}

#[cfg(test)]
mod tests;
