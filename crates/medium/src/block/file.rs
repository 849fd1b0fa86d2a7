//! A file on a file system, written directly where that is possible and pays.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, statx};
use rustix::io::{Errno, ReadWriteFlags};

use super::buffer::AlignedBuf;
use super::{Block, BlockCounters, Durability, check_filesystem, is_initialised, probe};
use crate::{Guarantee, MediumError, checked_end};

/// How blocks get to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// As a probe finds better.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`).
    Direct,
    /// Through the page cache.
    Buffered,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockOptions {
    /// Bytes in a block; `None` to let the device decide.
    pub block_bytes: Option<u32>,
    /// How blocks get to the device.
    pub access: Access,
    /// Whether the file is only read.
    pub read_only: bool,
}

/// Zero-filling goes in steps of this many bytes.
const STEP: u64 = 1 << 20;
/// `STATX_DIOALIGN`.
const DIOALIGN: u32 = 0x2000;
const LARGEST_BLOCK: u32 = 4096;

/// A file of blocks.
#[derive(Debug)]
pub struct FileBlock {
    file: File,
    direct: Option<Direct>,
    block_bytes: u32,
    len: AtomicU64,
    volatile: bool,
    description: String,
    bounce: Mutex<AlignedBuf>,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    preallocated_bytes: AtomicU64,
    read_bytes: AtomicU64,
    path: PathBuf,
}

/// A second descriptor of the file, past the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) file: File,
    /// What positions and lengths must be multiples of, in bytes.
    pub(super) offset_align: u32,
    /// What addresses in memory must be multiples of.
    memory_align: u32,
}

impl Direct {
    /// Opens an open file anew for direct I/O; `None` where the file system has none.
    pub(super) fn open(file: &File, path: &Path) -> Option<Self> {
        let direct = reopen(file, path, OFlags::DIRECT)?;
        let flags = StatxFlags::from_bits_retain(DIOALIGN);
        let told = statx(&direct, c"", AtFlags::EMPTY_PATH, flags).ok();
        let told = told.filter(|stat| stat.stx_mask & DIOALIGN != 0);
        let (offset_align, memory_align) = match told {
            Some(stat) if stat.stx_dio_offset_align == 0 => return None,
            Some(stat) => (stat.stx_dio_offset_align, stat.stx_dio_mem_align.max(1)),
            // Kernels before 6.1 do not tell. No device in use wants more than this.
            None => (LARGEST_BLOCK, LARGEST_BLOCK),
        };
        (offset_align <= LARGEST_BLOCK && memory_align <= LARGEST_BLOCK).then_some(Self {
            file: direct,
            offset_align,
            memory_align,
        })
    }
}

/// Opens the very file again, with more flags; `None` when that fails.
fn reopen(file: &File, path: &Path, flags: OFlags) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    if let Ok(again) = options.open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        return Some(again);
    }
    let again = options.open(path).ok()?;
    let (one, two) = (file.metadata().ok()?, again.metadata().ok()?);
    ((one.dev(), one.ino()) == (two.dev(), two.ino())).then_some(again)
}

fn failed(op: &'static str) -> impl Fn(io::Error) -> MediumError {
    move |error| MediumError::from_errno(op, Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

impl FileBlock {
    /// Opens a file. `path` is what errors and [`Block::describe`] call it, and tells the file
    /// system. With nothing said about block size or access the device is probed, once per file
    /// system and process, which takes some milliseconds.
    ///
    /// # Errors
    /// [`MediumError::FileSystem`] for a file system that breaks write-ahead logs,
    /// [`MediumError::Unsupported`] for `direct` access where there is none, or for blocks smaller
    /// than the device takes; errors of the system.
    pub fn open(file: File, path: &Path, options: &BlockOptions) -> Result<Self, MediumError> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let kind = check_filesystem(dir)?;
        let mut description = kind.name.clone();
        let mut access = options.access;
        let mut block_bytes = options.block_bytes;
        if !options.read_only && !kind.volatile && (access == Access::Auto || block_bytes.is_none()) {
            let probe = probe(dir);
            access = if access == Access::Auto { probe.access } else { access };
            block_bytes = block_bytes.or(Some(probe.block_bytes));
            description.push_str(": ");
            description.push_str(&probe.reason);
        }
        let direct = match access {
            _ if options.read_only => None,
            Access::Buffered => None,
            Access::Auto | Access::Direct => Direct::open(&file, path),
        };
        if access == Access::Direct && direct.is_none() && !options.read_only {
            return Err(MediumError::Unsupported { what: "direct I/O" });
        }
        let block_bytes = block_bytes.unwrap_or(LARGEST_BLOCK);
        if direct.as_ref().is_some_and(|direct| block_bytes < direct.offset_align) {
            return Err(MediumError::Unsupported { what: "a block smaller than the device's" });
        }
        let how = if direct.is_some() { "direct" } else { "buffered" };
        let it = Self {
            description: format!("{how} writes of {block_bytes}-byte blocks on {description}"),
            direct,
            block_bytes,
            len: AtomicU64::new(0),
            volatile: kind.volatile,
            bounce: Mutex::default(),
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

    /// Runs `work` with the descriptor that blocks are written through, and with the blocks where
    /// it takes them from.
    fn through<T>(&self, blocks: &[u8], work: impl FnOnce(&File, &[u8]) -> T) -> T {
        match &self.direct {
            None => work(&self.file, blocks),
            Some(direct) if blocks.as_ptr().addr().is_multiple_of(direct.memory_align as usize) => {
                work(&direct.file, blocks)
            }
            Some(direct) => {
                let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
                bounce.resize(blocks.len());
                bounce.as_mut_slice().copy_from_slice(blocks);
                work(&direct.file, bounce.as_slice())
            }
        }
    }

    fn count_write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let len = blocks.len() as u64;
        debug_assert!(
            at.is_multiple_of(self.block_bytes.into()) && len.is_multiple_of(self.block_bytes.into())
        );
        checked_end(at, len, self.len())?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    fn write_zeros(&self, from: u64, to: u64) -> Result<(), MediumError> {
        let mut zeros = AlignedBuf::default();
        zeros.resize(STEP.min(to - from) as usize);
        zeros.as_mut_slice().fill(0);
        let mut at = from;
        while at < to {
            let count = STEP.min(to - at) as usize;
            self.through(&zeros.as_slice()[..count], |file, zeros| file.write_all_at(zeros, at))
                .map_err(failed("pwrite"))?;
            at += count as u64;
            self.preallocated_bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Initialises blocks behind the present end.
    fn extend(&self, from: u64, to: u64) -> Result<(), MediumError> {
        // In one piece if the file system can; it leaves the blocks uninitialised, so nothing is
        // lost where it cannot.
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to - from) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(MediumError::from_errno("fallocate", errno)),
        }
        self.write_zeros(from, to)?;
        self.file.sync_all().map_err(failed("fsync"))?;
        match is_initialised(&self.file, to) {
            Some(false) => {
                // Direct writes left something behind that a commit would have to change.
                self.file.write_all_at(&vec![0; (to - from) as usize], from).map_err(failed("pwrite"))?;
                self.file.sync_all().map_err(failed("fsync"))
            }
            Some(true) | None => Ok(()),
        }
    }
}

impl Block for FileBlock {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        let length = self.file.metadata().map_err(failed("fstat"))?.len();
        let from = length / u64::from(LARGEST_BLOCK) * u64::from(LARGEST_BLOCK);
        if len > from
            && let Err(error) = self.extend(from, len)
        {
            // What does not hold the log does not hold space either.
            let _ = rustix::fs::ftruncate(&self.file, length);
            return Err(error);
        }
        self.refresh_len()
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        let length = self.file.metadata().map_err(failed("fstat"))?.len();
        let unit = u64::from(self.block_bytes);
        self.len.fetch_max(length / unit * unit, Ordering::AcqRel);
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        checked_end(at, buf.len() as u64, self.len())?;
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        // Through the page cache, which direct writes keep coherent.
        self.file.read_exact_at(buf, at).map_err(failed("pread"))
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.count_write(at, blocks)?;
        self.through(blocks, |file, blocks| file.write_all_at(blocks, at)).map_err(failed("pwrite"))
    }

    fn commit(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        if durability == Durability::Fua && self.direct.is_some() {
            let written = self.through(blocks, |file, blocks| {
                rustix::io::pwritev2(file, &[io::IoSlice::new(blocks)], at, ReadWriteFlags::DSYNC)
            });
            if written == Ok(blocks.len()) {
                self.count_write(at, blocks)?;
                self.flushes.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            // Short, interrupted, or not supported: in two steps.
        }
        self.write(at, blocks)?;
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
        format!("{}, {}", self.path.display(), self.description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path, options: &BlockOptions) -> Result<FileBlock, MediumError> {
        let path = dir.join("log");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        FileBlock::open(file, &path, options)
    }

    fn round_trip(dir: &Path, access: Access) {
        let options = BlockOptions { block_bytes: Some(4096), access, read_only: false };
        let block = open(dir, &options).unwrap();
        assert_eq!(block.len(), 0);
        block.preallocate(1 << 20).unwrap();
        block.preallocate(4096).unwrap();
        assert_eq!(block.len(), 1 << 20);
        assert_ne!(is_initialised(&block.file, 1 << 20), Some(false));
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
        assert!(matches!(block.write(1 << 20, &data[1..4097]), Err(MediumError::OutOfBounds { .. })));
        assert!(matches!(block.read(u64::MAX, &mut back), Err(MediumError::OutOfBounds { .. })));
        // Growing keeps what is there, and another object learns of it.
        let other = open(dir, &options).unwrap();
        block.preallocate(2 << 20).unwrap();
        other.refresh_len().unwrap();
        assert_eq!(other.len(), 2 << 20);
        other.read(65536, &mut back).unwrap();
        assert_eq!(back, data[1..]);
        assert!(!block.describe().is_empty());
    }

    #[test]
    fn blocks_come_back_whichever_way_they_are_written() {
        for access in [Access::Auto, Access::Direct, Access::Buffered] {
            let dir = tempfile::tempdir().unwrap();
            match open(dir.path(), &BlockOptions { access, ..BlockOptions::default() }) {
                Err(MediumError::Unsupported { .. }) => eprintln!("skipped: no direct I/O here"),
                other => {
                    drop(other.unwrap());
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
        assert_eq!(open(dir.path(), &BlockOptions::default()).unwrap().guarantee(), Guarantee::ProcessCrash);
    }

    #[test]
    fn a_read_only_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, [5; 8192]).unwrap();
        let file = File::open(&path).unwrap();
        let options = BlockOptions { read_only: true, ..BlockOptions::default() };
        let block = FileBlock::open(file, &path, &options).unwrap();
        let mut byte = [0];
        block.read(8191, &mut byte).unwrap();
        assert_eq!(byte, [5]);
        assert!(block.write(0, &[0; 4096]).is_err());
    }

    #[test]
    fn preallocation_zeroes_nothing_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, [5; 5000]).unwrap();
        let block = open(dir.path(), &BlockOptions { block_bytes: Some(512), ..Default::default() }).unwrap();
        assert_eq!(block.len(), 4608);
        block.preallocate(8192).unwrap();
        let mut back = [0; 8192];
        block.file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back[..4096], [5; 4096]);
    }
}
