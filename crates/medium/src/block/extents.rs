//! Where a file's blocks are on the device, and whether they are initialised (FIEMAP).
#![allow(unsafe_code)] // an ioctl that rustix does not have

use std::fs::File;
use std::os::fd::AsRawFd;

/// `FS_IOC_FIEMAP`.
const FIEMAP: libc::c_ulong = 0xC020_660B;
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
const EXTENT_UNKNOWN: u32 = 2;
const EXTENT_DELAYED: u32 = 4;
const EXTENT_ENCODED: u32 = 8;
const EXTENT_NOT_ALIGNED: u32 = 0x100;
const EXTENT_INLINE: u32 = 0x200;
const EXTENT_TAIL: u32 = 0x400;
const EXTENT_UNWRITTEN: u32 = 0x800;
const EXTENT_SHARED: u32 = 0x2000;
/// Flags of blocks that are not written yet, compressed, inside the inode, or shared with another file. A
/// write would have to allocate, initialise or move such blocks.
const EXTENT_UNREADY: u32 =
    EXTENT_UNKNOWN | EXTENT_DELAYED | EXTENT_ENCODED | EXTENT_INLINE | EXTENT_UNWRITTEN | EXTENT_SHARED;
/// Flags of extents that have no offset of their own on the device.
const EXTENT_NOWHERE: u32 =
    EXTENT_UNKNOWN | EXTENT_DELAYED | EXTENT_ENCODED | EXTENT_NOT_ALIGNED | EXTENT_INLINE | EXTENT_TAIL;
const BATCH: usize = 64;

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset in the file of the extent's first byte.
    pub at: u64,
    /// The offset on the device of the extent's first byte. `None` if the extent has no offset of its own on
    /// the device, or has none yet.
    pub device_at: Option<u64>,
    /// The extent's length in bytes.
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

/// Returns the extents that a file's first `len` bytes have now. Does not write back data that is still in
/// the page cache. Returns `None` if the file system does not report extents.
#[must_use]
pub fn extents(file: &File, len: u64) -> Option<Vec<Extent>> {
    extents_between(file, 0, len, 0)
}

/// Writes back the page cache, and returns whether every byte below `len` is then allocated and initialised.
/// Returns `None` if the file system does not report this.
#[must_use]
pub fn is_initialised(file: &File, len: u64) -> Option<bool> {
    is_range_initialised(file, 0, len)
}

/// Does the same as [`is_initialised`], for the bytes `from..to`.
pub(super) fn is_range_initialised(file: &File, from: u64, to: u64) -> Option<bool> {
    Some(covers(&extents_between(file, from, to, FLAG_SYNC)?, from, to))
}

/// Returns whether written extents cover all of `from..to`. `extents` must be sorted by their offsets in the
/// file.
fn covers(extents: &[Extent], from: u64, to: u64) -> bool {
    let mut reached = from;
    for extent in extents {
        if reached >= to {
            break;
        }
        if extent.at > reached || !extent.written {
            return false;
        }
        reached = reached.max(extent.at + extent.len);
    }
    reached >= to
}

fn extents_between(file: &File, from: u64, to: u64, flags: u32) -> Option<Vec<Extent>> {
    let mut found = Vec::new();
    let mut start = from;
    while start < to {
        let mut request = Request {
            start,
            length: to - start,
            flags,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [RawExtent::default(); BATCH],
        };
        // SAFETY: the kernel reads the head and fills at most `count` extents of this structure.
        let code = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut request) };
        if code != 0 {
            return None;
        }
        let mapped = request.extents.get(..request.mapped as usize)?;
        let Some(last) = mapped.last() else { break };
        found.extend(mapped.iter().map(|extent| Extent {
            at: extent.logical,
            device_at: (extent.flags & EXTENT_NOWHERE == 0).then_some(extent.physical),
            len: extent.length,
            written: extent.flags & EXTENT_UNREADY == 0,
        }));
        let end = last.logical.saturating_add(last.length);
        // Stop also if the file system reports no progress, because otherwise this loop would run for ever.
        if last.flags & EXTENT_LAST != 0 || end <= start {
            break;
        }
        start = end;
    }
    Some(found)
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

    #[test]
    fn looking_writes_nothing_out() {
        let file = tempfile::tempfile().unwrap();
        rustix::io::pwrite(&file, &[1; 8192], 0).unwrap();
        let Some(found) = extents(&file, u64::MAX) else {
            return eprintln!("skipped: this file system does not tell where blocks are");
        };
        let placed = |found: &[Extent]| {
            found.iter().filter(|extent| extent.device_at.is_some()).map(|extent| extent.len).sum::<u64>()
        };
        if rustix::fs::fstatfs(&file).unwrap().f_type == 0xEF53 {
            assert_eq!(placed(&found), 0, "ext4 allocates when it writes");
        }
        file.sync_all().unwrap();
        assert_eq!(extents(&file, u64::MAX).map(|found| placed(&found)), Some(8192));
    }

    #[test]
    fn gaps_and_unready_extents_are_noticed() {
        let extent = |at, len, written| Extent { at, device_at: Some(1 << 30), len, written };
        assert!(covers(&[], 5, 5));
        assert!(!covers(&[], 0, 1));
        assert!(covers(&[extent(0, 8, true), extent(8, 8, true)], 0, 16));
        assert!(!covers(&[extent(0, 8, true), extent(8, 8, true)], 0, 17));
        assert!(!covers(&[extent(0, 8, true), extent(9, 8, true)], 0, 16), "a hole");
        assert!(!covers(&[extent(0, 8, true), extent(8, 8, false)], 0, 16));
        assert!(covers(&[extent(0, 8, true), extent(8, 8, false)], 0, 8), "beyond the range");
        assert!(covers(&[extent(0, 16, true)], 4, 12), "an extent that begins before the range");
        assert!(!covers(&[extent(8, 8, true)], 4, 12));
    }

    #[test]
    fn many_extents_take_several_calls() {
        let file = tempfile::tempfile().unwrap();
        let count = 3 * BATCH as u64;
        for i in 0..count {
            rustix::io::pwrite(&file, &[1; 4096], i * 8192).unwrap();
        }
        file.sync_all().unwrap();
        let Some(found) = extents(&file, count * 8192) else {
            eprintln!("skipped: this file system does not tell where blocks are");
            return;
        };
        assert!(found.is_sorted_by_key(|extent| extent.at));
        if found.len() as u64 == count {
            assert_eq!(is_range_initialised(&file, 0, 4096), Some(true));
            assert_eq!(is_range_initialised(&file, 4096, 8192), Some(false));
            assert_eq!(is_range_initialised(&file, 8192 * 100, 8192 * 100 + 4096), Some(true));
        }
    }
}
