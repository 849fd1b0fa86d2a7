//! Direct I/O, which bypasses the page cache, and the alignment that it requires.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

use super::scratch::scratch;
use crate::block::AlignedBuf;
use crate::process::off_standard_streams;

/// How blocks are transferred to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// The way that a probe chooses for this device.
    #[default]
    Auto,
    /// With direct I/O, which bypasses the page cache (`O_DIRECT`).
    Direct,
    /// Through the page cache.
    Buffered,
}

/// The size in bytes of the largest sectors that are written directly. If a device has larger sectors, blocks
/// are written through the page cache.
pub(super) const LARGEST_SECTOR: u32 = 4096;
pub(super) const SMALLEST_SECTOR: u32 = 512;

/// A second descriptor of the file, for I/O that bypasses the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) file: File,
    /// The alignment in bytes that direct I/O requires of positions in the file and of lengths.
    pub(super) offset_align: u32,
    /// The alignment in bytes that direct I/O requires of buffers in memory.
    pub(super) memory_align: u32,
}

impl Direct {
    /// Opens an open file a second time, for direct I/O. Returns `None` if the file system has no direct I/O.
    /// Kernels before 6.1 do not report the alignment. On those kernels this function finds the alignment by
    /// trial reads of the file itself. If the file is too short for that (shorter than two of the largest
    /// sectors), it reads a temporary file in `dir` instead.
    pub(super) fn open(file: &File, path: &Path, dir: &Path) -> Option<Self> {
        let direct = reopen(file, path, OFlags::DIRECT)?;
        let (offset_align, memory_align) = match told_alignment(&direct) {
            Some(told) => told,
            None if direct.metadata().ok()?.len() >= u64::from(2 * LARGEST_SECTOR) => {
                tried_alignment(&direct)?
            }
            None => match scratch(dir) {
                Some(file) => tried_alignment(&reopen(&file, dir, OFlags::DIRECT)?)?,
                // Without a temporary file, assume the largest alignment, because no device in use requires
                // more.
                None => (LARGEST_SECTOR, LARGEST_SECTOR),
            },
        };
        let usable = |align: u32| align.is_power_of_two() && align <= LARGEST_SECTOR;
        (usable(offset_align) && usable(memory_align)).then_some(Self {
            file: direct,
            offset_align,
            memory_align,
        })
    }
}

/// Returns the alignments of positions and of memory that the kernel reports. Zeros mean that the file has no
/// direct I/O, although the kernel has opened the file for direct I/O.
pub(super) fn told_alignment(direct: &File) -> Option<(u32, u32)> {
    let stat = statx(direct, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    told.then_some((stat.stx_dio_offset_align, stat.stx_dio_mem_align))
}

/// Finds the alignments of positions and of memory by trial reads. The file must be at least as long as two
/// of the largest sectors. Returns `None` if nothing can be read directly.
pub(super) fn tried_alignment(direct: &File) -> Option<(u32, u32)> {
    let mut buffer = AlignedBuf::default();
    buffer.resize(2 * LARGEST_SECTOR as usize);
    let align = [SMALLEST_SECTOR, LARGEST_SECTOR].into_iter().find(|align| {
        let align = *align as usize;
        let read = direct.read_at(&mut buffer.as_mut_slice()[align..2 * align], align as u64);
        read.is_ok_and(|count| count == align)
    })?;
    Some((align, align))
}

/// Opens the same file again, with more flags. Returns `None` if that fails.
fn reopen(file: &File, path: &Path, flags: OFlags) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    let open = |path: &Path| options.open(path).and_then(off_standard_streams).ok();
    if let Some(again) = open(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
        && is_same(file, &again)
    {
        return Some(again);
    }
    open(path).filter(|again| is_same(file, again))
}

fn is_same(one: &File, two: &File) -> bool {
    match (one.metadata(), two.metadata()) {
        (Ok(one), Ok(two)) => (one.dev(), one.ino()) == (two.dev(), two.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_file_is_opened_again_even_after_its_name_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another").unwrap();
        if let Some(again) = reopen(&file, &path, OFlags::empty()) {
            assert!(is_same(&file, &again));
        }
        assert!(!is_same(&file, &File::open(&path).unwrap()));
    }
}
