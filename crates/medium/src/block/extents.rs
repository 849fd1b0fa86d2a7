//! Where a file's blocks are, and whether they are initialised (FIEMAP).
#![allow(unsafe_code)] // an ioctl that rustix does not have

use std::fs::File;
use std::os::fd::AsRawFd;

/// `FS_IOC_FIEMAP`.
const FIEMAP: libc::c_ulong = 0xC020_660B;
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
const EXTENT_UNKNOWN: u32 = 2;
const EXTENT_DELAYED: u32 = 4;
const EXTENT_UNWRITTEN: u32 = 0x800;
const BATCH: usize = 64;

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub at: u64,
    /// First byte on the device.
    pub device_at: u64,
    /// Bytes.
    pub len: u64,
    /// Whether the blocks are allocated and initialised, so that writing them changes no metadata.
    pub written: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved32: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

/// The extents of a file's first `len` bytes; `None` where the file system does not tell.
#[must_use]
pub fn extents(file: &File, len: u64) -> Option<Vec<Extent>> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < len {
        let mut request = Request {
            start,
            length: len - start,
            flags: FLAG_SYNC,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [RawExtent::default(); BATCH],
        };
        // SAFETY: the kernel reads the head and fills at most `count` extents of this structure.
        let code = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &raw mut request) };
        if code != 0 {
            return None;
        }
        let mapped = request.extents.get(..request.mapped as usize)?;
        let Some(last) = mapped.last() else { break };
        let unready = EXTENT_UNKNOWN | EXTENT_DELAYED | EXTENT_UNWRITTEN;
        found.extend(mapped.iter().map(|extent| Extent {
            at: extent.logical,
            device_at: extent.physical,
            len: extent.length,
            written: extent.flags & unready == 0,
        }));
        start = last.logical + last.length;
        if last.flags & EXTENT_LAST != 0 {
            break;
        }
    }
    Some(found)
}

/// Whether every byte below `len` is allocated and initialised; `None` where the file system does
/// not tell.
#[must_use]
pub fn is_initialised(file: &File, len: u64) -> Option<bool> {
    let mut reached = 0;
    for extent in extents(file, len)? {
        if extent.at > reached || !extent.written {
            return Some(false);
        }
        reached = extent.at + extent.len;
    }
    Some(reached >= len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_written_blocks_from_reserved_ones() {
        let file = tempfile::tempfile().unwrap();
        rustix::io::pwrite(&file, &[1; 8192], 0).unwrap();
        file.sync_all().unwrap();
        match is_initialised(&file, 8192) {
            None => eprintln!("skipped: this file system does not tell where blocks are"),
            Some(initialised) => {
                assert!(initialised);
                assert_eq!(is_initialised(&file, 12288), Some(false));
                let flags = rustix::fs::FallocateFlags::empty();
                if rustix::fs::fallocate(&file, flags, 0, 1 << 20).is_ok() {
                    assert_eq!(is_initialised(&file, 1 << 20), Some(false), "reserved is not initialised");
                }
            }
        }
    }
}
