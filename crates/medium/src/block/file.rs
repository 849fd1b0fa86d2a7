//! A file on a file system, written directly where that is possible and pays.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use super::buffer::AlignedBuf;
use super::direct::{Access, Direct, LARGEST_SECTOR, SMALLEST_SECTOR};
use super::extents::is_range_initialised;
use super::{Block, BlockCounters, Durability, check_filesystem, probe};
use crate::process::OwnFile;
use crate::{Guarantee, MediumError, checked_end};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockOptions {
    /// Bytes in a block, a power of two from 512 on; `None` to let the device decide.
    pub block_bytes: Option<u32>,
    /// How blocks get to the device.
    pub access: Access,
    /// Whether the file is only read.
    pub read_only: bool,
}

/// Zero-filling goes in steps of this many bytes.
const STEP: u64 = 1 << 20;
/// A file of blocks.
///
/// Reads go through the page cache, writes past it where [`BlockOptions::access`] and the file
/// system allow; local file systems keep the two coherent. Where there is no direct I/O a block is
/// written with `pwrite` and made durable with `fdatasync`.
///
/// [`len`](Block::len) is the file's size, rounded down to a block.
///
/// # Preallocation
///
/// New blocks are zeroed by writing them, since blocks that a file system merely reserves have to
/// be marked as initialised at their first write, in its journal. Only one process at a time may
/// preallocate, and nobody may write past [`len`](Block::len) meanwhile.
///
/// A crash in the middle leaves a longer file, no shorter one, and no byte below the old length is
/// touched. The length grows only as far as zeros were written, so that whatever lies beyond what
/// the caller recorded is zeros, and only has to be preallocated again: [`Block::preallocate`] up to
/// a length that the file has already makes that length durable and writes nothing.
///
/// Preallocation that fails gives back what it took. Space is reserved before the length grows, so
/// that other processes do not learn of a length that is then taken back, except on file systems
/// that cannot reserve.
#[derive(Debug)]
pub struct FileBlock {
    file: OwnFile,
    direct: Option<Direct>,
    block_bytes: u32,
    len: AtomicU64,
    read_only: bool,
    volatile: bool,
    description: String,
    bounce: Mutex<AlignedBuf>,
    /// Held while the length changes.
    resizing: Mutex<()>,
    /// While preallocating, the length before: what lies beyond may yet be taken back.
    sure: Mutex<Option<u64>>,
    /// Whether the file system went on saying that what was zeroed is not initialised.
    unsettled: AtomicBool,
    /// Whether the kernel refused a write that is durable by itself.
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

/// Whether the kernel or the file system does not know an operation.
fn is_unknown(errno: Errno) -> bool {
    errno == Errno::OPNOTSUPP || errno == Errno::NOSYS
}

/// Writes everything through `write(blocks, at)`, which may be interrupted or do less than asked.
/// What is written again begins at a multiple of `unit` bytes.
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

/// Makes the entries of a directory durable: names of files created, renamed or removed in it.
///
/// # Errors
/// An error of the system. File systems that cannot sync directories have none to lose, and give
/// no error.
pub fn sync_directory(dir: &Path) -> Result<(), MediumError> {
    match File::open(dir).map_err(failed("open"))?.sync_all() {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        done => done.map_err(failed("fsync")),
    }
}

impl FileBlock {
    /// Opens a file, which has to be open for reading, and for writing unless `read_only`. `path`
    /// is what errors and [`Block::describe`] call it, and tells the file system. With nothing said
    /// about block size or access the device is probed, once per file system and process, which
    /// takes some milliseconds.
    ///
    /// # Errors
    /// [`MediumError::FileSystem`] for a file system that breaks write-ahead logs,
    /// [`MediumError::Unsupported`] for `Direct` access where there is none, or with blocks smaller
    /// than the device takes, and for a block size that is none; errors of the system.
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
            volatile: kind.volatile,
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

    /// Runs `work` with the descriptor that blocks are written through, the alignment it wants in
    /// bytes, and the blocks where it takes them from.
    fn through<T>(&self, blocks: &[u8], work: impl FnOnce(&File, usize, &[u8]) -> T) -> T {
        let Some(direct) = &self.direct else { return work(&self.file, 1, blocks) };
        let unit = direct.offset_align.max(direct.memory_align) as usize;
        if blocks.as_ptr().addr().is_multiple_of(direct.memory_align as usize) {
            return work(&direct.file, unit, blocks);
        }
        let mut own = AlignedBuf::default();
        let mut shared = self.bounce.try_lock();
        // Somebody else is writing: not worth waiting for.
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

    /// One write that is durable by itself; `false`, and nothing sure, where there is none.
    fn write_durably(&self, at: u64, blocks: &[u8]) -> Result<bool, MediumError> {
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
            // Writing again might succeed and prove nothing.
            Err(errno) => Err(MediumError::from_errno("pwritev2", errno)),
        }
    }

    /// Writes zeros to `from..to`, directly where `direct` says so and the range is aligned for it.
    fn write_zeros(&self, from: u64, to: u64, direct: bool) -> Result<(), MediumError> {
        let mut zeros = AlignedBuf::default();
        zeros.resize(STEP.min(to - from) as usize);
        zeros.as_mut_slice().fill(0);
        let sector = u64::from(LARGEST_SECTOR);
        let mut at = from;
        while at < to {
            // Up to a sector's boundary first: what shares the sector with older bytes goes
            // through the page cache, which knows them.
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

    fn sync_metadata(&self) -> Result<(), MediumError> {
        self.file.sync_all().map_err(failed("fsync"))
    }

    /// Initialises blocks behind the present end.
    fn extend(&self, from: u64, to: u64) -> Result<(), MediumError> {
        // In one piece if the file system can. It leaves the blocks uninitialised and the length as
        // it was, so that the length never covers blocks that were not zeroed.
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to - from) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) if is_unknown(errno) => break,
                Err(errno) => return Err(MediumError::from_errno("fallocate", errno)),
            }
        }
        self.write_zeros(from, to, true)?;
        self.sync_metadata()?;
        if is_range_initialised(&self.file, from, to) == Some(false) {
            // Direct writes left something behind that a commit would have to change.
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
                // What does not hold the log does not hold space either.
                let _ = rustix::fs::ftruncate(&self.file, length);
            }
            *self.sure.lock().unwrap_or_else(PoisonError::into_inner) = None;
            extended
        } else {
            // Whoever made the file that long may have died before that was durable.
            self.sync_metadata()
        };
        extended?;
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
        // Under the lock of `sure`, so that what was seen last is what stays.
        self.len.store(length / unit * unit, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        checked_end(at, buf.len() as u64, self.len())?;
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        // Through the page cache, which direct writes keep coherent.
        self.file.read_exact_at(buf, at).map_err(failed("pread"))
    }

    fn next_data(&self, at: u64) -> Result<Range<u64>, MediumError> {
        let (stat, len) = (self.file.metadata().map_err(failed("fstat"))?, self.len());
        // What is told of holes is believed only of a file that must have some: a log's own blocks
        // are all initialised.
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

    fn commit(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.begin_write(at, blocks)?;
        if durability == Durability::Fua && self.write_durably(at, blocks)? {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.write_blocks(at, blocks)?;
        if durability == Durability::Normal { Ok(()) } else { self.flush() }
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.file.sync_data().map_err(failed("fdatasync"))
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
        if self.volatile { Guarantee::ProcessCrash } else { Guarantee::PowerLoss }
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
mod tests {
    use super::*;
    use crate::block::direct::{told_alignment, tried_alignment};
    use crate::block::is_initialised;
    use std::fs::OpenOptions;
    use std::process::{Command, Stdio};

    /// Where this test was built: on a disk more likely than the directory for temporary files.
    fn temporary() -> tempfile::TempDir {
        let test = std::env::current_exe().unwrap();
        tempfile::tempdir_in(test.parent().unwrap()).unwrap()
    }

    fn create(path: &Path) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn open(dir: &Path, options: &BlockOptions) -> Result<FileBlock, MediumError> {
        let path = dir.join("log");
        FileBlock::open(create(&path), &path, options)
    }

    fn of(block_bytes: u32, access: Access) -> BlockOptions {
        BlockOptions { block_bytes: Some(block_bytes), access, read_only: false }
    }

    /// A block file with direct I/O, or nothing and a message.
    fn direct(dir: &Path) -> Option<FileBlock> {
        let block = open(dir, &of(4096, Access::Direct));
        if block == Err(MediumError::Unsupported { what: "direct I/O" }) {
            eprintln!("skipped: no direct I/O here");
        }
        block.ok()
    }

    impl PartialEq for FileBlock {
        fn eq(&self, other: &Self) -> bool {
            std::ptr::eq(self, other)
        }
    }

    fn round_trip(dir: &Path, access: Access) {
        let options = of(4096, access);
        let block = open(dir, &options).unwrap();
        assert_eq!(block.len(), 0);
        block.preallocate(1 << 20).unwrap();
        block.preallocate(4096).unwrap();
        assert_eq!(block.len(), 1 << 20);
        assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
        assert_eq!(block.counters().preallocated_bytes, 1 << 20);
        let before = block.counters();
        // At an odd address, so that it has to be copied for direct I/O.
        let data: Vec<u8> = (0..8193u32).map(|i| i as u8).collect();
        for (i, durability) in [Durability::Full, Durability::Fua, Durability::Normal].into_iter().enumerate()
        {
            block.commit(i as u64 * 8192, &data[1..], durability).unwrap();
        }
        block.write(65536, &data[1..]).unwrap();
        let mut back = vec![0; 8192];
        for at in [0, 8192, 16384, 65536] {
            block.read(at, &mut back).unwrap();
            assert_eq!(back, data[1..], "at {at}");
        }
        let after = block.counters();
        assert_eq!(after.writes - before.writes, 4);
        assert_eq!(after.written_bytes - before.written_bytes, 4 * 8192);
        assert_eq!(after.flushes - before.flushes, 2);
        assert_eq!(after.read_bytes - before.read_bytes, 4 * 8192);
        assert_eq!(after.preallocated_bytes, before.preallocated_bytes);
        // Past the end nothing is written, whichever way.
        for durability in [Durability::Full, Durability::Fua, Durability::Normal] {
            for at in [1 << 20, (1 << 20) - 4096, u64::MAX / 4096 * 4096] {
                let refused = block.commit(at, &data[1..], durability);
                assert!(matches!(refused, Err(MediumError::OutOfBounds { .. })), "{refused:?}");
            }
        }
        assert!(matches!(block.write(1 << 20, &data[1..4097]), Err(MediumError::OutOfBounds { .. })));
        assert!(matches!(block.read(u64::MAX, &mut back), Err(MediumError::OutOfBounds { .. })));
        assert_eq!(block.counters(), after, "what is refused is not counted");
        assert_eq!(block.file.metadata().unwrap().len(), 1 << 20);
        // Growing keeps what is there, and another object learns of it.
        let other = open(dir, &options).unwrap();
        block.preallocate(2 << 20).unwrap();
        assert_eq!(other.len(), 1 << 20);
        other.refresh_len().unwrap();
        assert_eq!(other.len(), 2 << 20);
        other.read(65536, &mut back).unwrap();
        assert_eq!(back, data[1..]);
        assert!(!block.describe().is_empty());
    }

    #[test]
    fn what_is_given_back_is_zeros_when_it_comes_back() {
        for access in [Access::Auto, Access::Buffered] {
            let dir = temporary();
            let block = open(dir.path(), &of(4096, access)).unwrap();
            let other = open(dir.path(), &of(4096, access)).unwrap();
            block.preallocate(1 << 20).unwrap();
            block.commit((1 << 20) - 4096, &[9; 4096], Durability::Full).unwrap();
            other.refresh_len().unwrap();
            block.shrink(1 << 19).unwrap();
            block.shrink(1 << 20).unwrap();
            assert_eq!((block.len(), block.file.metadata().unwrap().len()), (1 << 19, 1 << 19));
            // The other knows when it asks, and preallocates what is missing although it had it before.
            other.preallocate(1 << 20).unwrap();
            let mut back = [1; 4096];
            other.read((1 << 20) - 4096, &mut back).unwrap();
            assert_eq!((other.len(), back), (1 << 20, [0; 4096]));
            assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
            other.shrink(1 << 19).unwrap();
            block.refresh_len().unwrap();
            assert_eq!(block.len(), 1 << 19);
        }
    }

    #[test]
    fn holes_are_told_of_files_that_must_have_some() {
        let dir = temporary();
        let block = open(dir.path(), &of(4096, Access::Buffered)).unwrap();
        block.preallocate(1 << 20).unwrap();
        assert_eq!(block.next_data(5).unwrap(), 5..1 << 20);
        block.file.set_len(1 << 32).unwrap();
        block.file.write_all_at(&[1; 4096], 1 << 31).unwrap();
        block.refresh_len().unwrap();
        let far = block.next_data(1 << 24).unwrap();
        if far != (1 << 24..1 << 32) {
            assert!(far.start <= 1 << 31 && far.end < (1 << 31) + (1 << 20), "{far:?}");
            assert_eq!(block.next_data(far.end).unwrap(), 1 << 32..1 << 32);
        }
        assert_eq!(block.next_data(1 << 33).unwrap(), 1 << 33..1 << 33);
    }

    #[test]
    fn blocks_come_back_whichever_way_they_are_written() {
        for access in [Access::Auto, Access::Direct, Access::Buffered] {
            let dir = temporary();
            match open(dir.path(), &BlockOptions { access, ..BlockOptions::default() }) {
                Err(MediumError::Unsupported { .. }) => eprintln!("skipped: no direct I/O here"),
                other => {
                    eprintln!("{}", other.unwrap().describe());
                    round_trip(dir.path(), access);
                }
            }
        }
    }

    #[test]
    fn memory_backed_file_systems_work_and_promise_less() {
        let shm = Path::new("/dev/shm");
        if !shm.is_dir() {
            return;
        }
        let dir = tempfile::tempdir_in(shm).unwrap();
        round_trip(dir.path(), Access::Auto);
        let block = open(dir.path(), &BlockOptions::default()).unwrap();
        assert_eq!(block.guarantee(), Guarantee::ProcessCrash);
        assert!(block.direct.is_none());
    }

    #[test]
    fn a_disk_promises_to_keep_what_is_flushed() {
        let dir = temporary();
        let block = open(dir.path(), &of(4096, Access::Buffered)).unwrap();
        let volatile = check_filesystem(dir.path()).unwrap().volatile;
        assert_eq!(block.guarantee() == Guarantee::PowerLoss, !volatile);
    }

    #[test]
    fn a_read_only_file_is_read() {
        let dir = temporary();
        let path = dir.path().join("log");
        std::fs::write(&path, [5; 8192]).unwrap();
        let file = File::open(&path).unwrap();
        let options = BlockOptions { read_only: true, ..BlockOptions::default() };
        let block = FileBlock::open(file, &path, &options).unwrap();
        let mut byte = [0];
        block.read(8191, &mut byte).unwrap();
        assert_eq!(byte, [5]);
        for refused in [
            block.write(0, &[0; 4096]),
            block.commit(0, &[0; 4096], Durability::Fua),
            block.preallocate(4096),
            block.preallocate(1 << 20),
        ] {
            assert!(matches!(refused, Err(MediumError::Unsupported { .. })), "{refused:?}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), [5; 8192]);
    }

    #[test]
    fn preallocation_zeroes_nothing_that_is_there() {
        for access in [Access::Auto, Access::Buffered] {
            let dir = temporary();
            std::fs::write(dir.path().join("log"), [5; 5000]).unwrap();
            // Auto: with blocks that may be too small for direct I/O.
            let block = open(dir.path(), &of(512, access)).unwrap();
            assert_eq!(block.len(), 4608);
            block.preallocate(3 << 20).unwrap();
            assert_eq!(block.len(), 3 << 20);
            let mut back = vec![1; 3 << 20];
            block.read(0, &mut back).unwrap();
            assert_eq!(back[..5000], [5; 5000]);
            assert!(back[5000..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn what_a_crash_cut_short_is_preallocated_again() {
        let dir = temporary();
        // As after a crash: blocks reserved further than the length, and an odd length.
        let file = create(&dir.path().join("log"));
        let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20);
        file.write_all_at(&[0; 12288], 0).unwrap();
        let block = open(dir.path(), &of(4096, Access::Auto)).unwrap();
        assert_eq!(block.len(), 12288);
        block.preallocate(8192).unwrap();
        assert_eq!((block.len(), block.counters().preallocated_bytes), (12288, 0));
        block.preallocate(1 << 20).unwrap();
        assert_eq!(block.counters().preallocated_bytes, (1 << 20) - 12288);
        assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
    }

    #[test]
    fn no_block_is_left_to_be_initialised_by_a_commit() {
        let dir = temporary();
        let block = open(dir.path(), &of(4096, Access::Auto)).unwrap();
        // Of no step's size.
        for len in [4096, 1 << 20, (3 << 20) + 8192] {
            block.preallocate(len).unwrap();
            match is_initialised(&block.file, len) {
                None => eprintln!("skipped: this file system does not tell where blocks are"),
                initialised => assert_eq!(initialised, Some(true)),
            }
        }
        assert_eq!(block.file.metadata().unwrap().len(), (3 << 20) + 8192);
    }

    #[test]
    fn direct_writes_are_seen_by_buffered_reads_and_after_them() {
        let dir = temporary();
        let Some(block) = direct(dir.path()) else { return };
        block.preallocate(1 << 16).unwrap();
        let mut back = vec![0; 4096];
        let mut aligned = AlignedBuf::default();
        aligned.resize(4096);
        for round in 1..20 {
            aligned.as_mut_slice().fill(round);
            // Into the page cache first, so that it would be stale.
            block.read(8192, &mut back).unwrap();
            let durability = if round % 2 == 0 { Durability::Fua } else { Durability::Full };
            block.commit(8192, aligned.as_slice(), durability).unwrap();
            block.read(8192, &mut back).unwrap();
            assert_eq!(back, [round; 4096]);
        }
    }

    #[test]
    fn small_direct_writes_leave_their_neighbours_alone() {
        let dir = temporary();
        let block = match open(dir.path(), &of(512, Access::Direct)) {
            Err(MediumError::Unsupported { what }) => {
                eprintln!("skipped: {what} here");
                return;
            }
            other => other.unwrap(),
        };
        block.preallocate(8192 + 512).unwrap();
        assert_eq!(block.len(), 8192 + 512);
        for durability in [Durability::Full, Durability::Fua, Durability::Normal] {
            block.commit(0, &[1; 8192], durability).unwrap();
            block.commit(512, &[2; 512], durability).unwrap();
            block.commit(8192, &[3; 512], durability).unwrap();
            let mut back = vec![0; 8192 + 512];
            block.read(0, &mut back).unwrap();
            assert_eq!((&back[..512], &back[512..1024]), (&[1; 512][..], &[2; 512][..]));
            assert_eq!((&back[1024..8192], &back[8192..]), (&[1; 7168][..], &[3; 512][..]));
        }
    }

    #[test]
    fn writers_at_once_do_not_mix_up_what_they_write() {
        let dir = temporary();
        let block = open(dir.path(), &of(4096, Access::Auto)).unwrap();
        block.preallocate(1 << 18).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                let block = &block;
                scope.spawn(move || {
                    let odd = vec![writer + 1; 4097];
                    for i in 0..16 {
                        block.write(u64::from(writer) * 65536 + i * 4096, &odd[1..]).unwrap();
                    }
                });
            }
        });
        let mut back = vec![0; 65536];
        for writer in 0..4_u8 {
            block.read(u64::from(writer) * 65536, &mut back).unwrap();
            assert!(back.iter().all(|byte| *byte == writer + 1));
        }
    }

    #[test]
    fn alignment_is_tried_where_it_is_not_told() {
        let dir = temporary();
        let Some(block) = direct(dir.path()) else { return };
        block.preallocate(1 << 16).unwrap();
        let direct = block.direct.as_ref().unwrap();
        let (offset_align, memory_align) = tried_alignment(&direct.file).unwrap();
        if let Some((told_offset, told_memory)) = told_alignment(&direct.file) {
            // What is tried is coarser than what is told, and so safe.
            assert_eq!(offset_align, told_offset.max(512));
            assert!(memory_align >= told_memory);
        }
        // A file that holds too little to read.
        assert_eq!(tried_alignment(&scratch_of(0)), None);
    }

    fn scratch_of(len: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn block_sizes_that_are_none_are_refused() {
        let dir = temporary();
        for bytes in [0, 1, 256, 513, 4095, 12288] {
            let refused = open(dir.path(), &of(bytes, Access::Buffered));
            assert_eq!(refused, Err(MediumError::Unsupported { what: "this block size" }));
        }
        for bytes in [512, 4096, 65536] {
            let block = open(dir.path(), &of(bytes, Access::Buffered)).unwrap();
            assert_eq!(block.block_bytes(), bytes);
        }
    }

    #[test]
    fn short_and_interrupted_writes_are_finished() {
        let blocks: Vec<u8> = (0..4096_u32).map(|i| (i / 512) as u8).collect();
        let mut file = vec![0xff; 8192];
        let mut replies = [Err(Errno::INTR), Ok(1000), Ok(512), Err(Errno::INTR), Ok(4096)].into_iter();
        let done = write_fully(512, 4096, &blocks, |rest, at| {
            let count = replies.next().unwrap()?.min(rest.len());
            file[at as usize..at as usize + count].copy_from_slice(&rest[..count]);
            assert!(at.is_multiple_of(512), "begins again at a sector");
            Ok(count)
        });
        assert_eq!((done, &file[4096..]), (Ok(()), &blocks[..]));
        assert_eq!(replies.next(), None);
        // One that does not get on would be repeated for ever.
        assert_eq!(write_fully(512, 0, &blocks, |_, _| Ok(0)), Err(Errno::IO));
        assert_eq!(write_fully(512, 0, &blocks, |_, _| Ok(511)), Err(Errno::IO));
        assert_eq!(write_fully(512, 0, &blocks, |_, _| Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(write_fully(512, 0, &[], |_, _| Err(Errno::IO)), Ok(()));
    }

    #[test]
    fn devices_without_durable_writes_get_a_write_and_a_flush() {
        let dir = temporary();
        let Some(block) = direct(dir.path()) else { return };
        block.preallocate(1 << 16).unwrap();
        block.no_dsync.store(true, Ordering::Relaxed);
        let before = block.counters();
        block.commit(4096, &[9; 4096], Durability::Fua).unwrap();
        let after = block.counters();
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
        let mut back = [0; 4096];
        block.read(4096, &mut back).unwrap();
        assert_eq!(back, [9; 4096]);
    }

    #[test]
    fn directories_are_made_durable() {
        let dir = temporary();
        sync_directory(dir.path()).unwrap();
        assert!(matches!(sync_directory(&dir.path().join("none")), Err(MediumError::Io { op: "open", .. })));
    }

    /// A file system of 1 MiB in memory, for as long as this lives.
    struct Tiny(tempfile::TempDir);

    impl Tiny {
        fn mount() -> Option<Self> {
            let dir = temporary();
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).stderr(Stdio::null());
            mount.status().is_ok_and(|status| status.success()).then(|| Self(dir))
        }
    }

    impl Drop for Tiny {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0.path()).status();
        }
    }

    #[test]
    fn a_full_file_system_takes_nothing_and_keeps_what_was_there() {
        let Some(tiny) = Tiny::mount() else {
            eprintln!("skipped: no file system can be mounted");
            return;
        };
        let block = open(tiny.0.path(), &of(4096, Access::Auto)).unwrap();
        block.preallocate(256 << 10).unwrap();
        block.commit(0, &[7; 4096], Durability::Full).unwrap();
        for _ in 0..3 {
            assert_eq!(block.preallocate(4 << 20), Err(MediumError::NoSpace));
            assert_eq!(block.len(), 256 << 10);
            block.refresh_len().unwrap();
            assert_eq!(block.len(), 256 << 10);
            assert_eq!(block.file.metadata().unwrap().len(), 256 << 10);
        }
        // Without reserving, in the middle of the zeros.
        assert_eq!(block.write_zeros(256 << 10, 4 << 20, true), Err(MediumError::NoSpace));
        rustix::fs::ftruncate(&block.file, 256 << 10).unwrap();
        let mut back = [0; 4096];
        block.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
        // The space was given back.
        block.preallocate(768 << 10).unwrap();
        assert_eq!(block.len(), 768 << 10);
    }

    #[test]
    fn a_length_that_may_be_taken_back_is_not_learnt() {
        let dir = temporary();
        let block = open(dir.path(), &of(4096, Access::Buffered)).unwrap();
        block.preallocate(8192).unwrap();
        *block.sure.lock().unwrap() = Some(8192);
        block.file.set_len(1 << 20).unwrap();
        block.refresh_len().unwrap();
        assert_eq!(block.len(), 8192);
        *block.sure.lock().unwrap() = None;
        block.refresh_len().unwrap();
        assert_eq!(block.len(), 1 << 20);
    }
}
