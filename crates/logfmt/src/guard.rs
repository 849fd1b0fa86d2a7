//! The guard in the first page of a database whose committed data lives in a Duralite log.
//!
//! Stock SQLite refuses a database whose read and write versions (bytes 18 and 19) are above 2:
//! "file is not a database". The guard makes a program without Duralite stop there instead of
//! reading a stale database (invariant 1). The 20 bytes from 72, which SQLite reserves
//! and leaves zero, name the log.

use std::ops::Range;

use crate::LogId;
use crate::bytes::{array, put, u32_le};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a database header.
pub const HEADER_BYTES: usize = 100;
/// What bytes 18 and 19 hold on disk while a log is attached.
pub const GUARD: u8 = 0xD7;
/// The end of the bytes that differ between disk and what SQLite sees.
pub const MASKED_END: u64 = 92;

/// Where page 1 says whether the database is in WAL mode, and where the guard stands instead.
pub const VERSIONS: Range<usize> = 18..20;
/// Where page 1 names the log.
pub const LOG_ID: Range<usize> = 72..92;
const ID: usize = LOG_ID.start;
const ID_CHECK: usize = 88;
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Both versions of a database in WAL mode.
const WAL_VERSION: u8 = 2;

/// What the first bytes of a file say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseHeader {
    /// No bytes at all: SQLite will make a database of it.
    Empty,
    /// Something else than a SQLite database.
    NotSqlite,
    /// An ordinary database.
    Plain {
        /// Page size in bytes.
        page_bytes: u32,
        /// Whether it is in WAL mode.
        wal: bool,
    },
    /// A database whose newest commits are in a log.
    Guarded {
        /// Page size in bytes.
        page_bytes: u32,
        /// The log.
        log_id: LogId,
    },
    /// The guard is there, but what it says does not check.
    Damaged,
}

/// Reads the first bytes (up to [`HEADER_BYTES`]) of a database file.
#[must_use]
pub fn inspect(header: &[u8]) -> DatabaseHeader {
    if header.is_empty() {
        return DatabaseHeader::Empty;
    }
    if header.len() < HEADER_BYTES || !header.starts_with(SQLITE_MAGIC) {
        return DatabaseHeader::NotSqlite;
    }
    let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65536,
        size => u32::from(size),
    };
    match (header[VERSIONS.start], header[VERSIONS.start + 1]) {
        (GUARD, GUARD) => match array(header, ID).map(LogId) {
            Some(id) if u32_le(header, ID_CHECK) == id_check(id) && page_size_is_valid(page_bytes) => {
                DatabaseHeader::Guarded { page_bytes, log_id: id }
            }
            _ => DatabaseHeader::Damaged,
        },
        (GUARD, _) | (_, GUARD) => DatabaseHeader::Damaged,
        (write, read) => {
            DatabaseHeader::Plain { page_bytes, wal: write == WAL_VERSION && read == WAL_VERSION }
        }
    }
}

/// Whether SQLite can have a page of this size: a power of two from 512 to 65536.
#[must_use]
pub fn page_size_is_valid(page_bytes: u32) -> bool {
    page_bytes.is_power_of_two() && (512..=65536).contains(&page_bytes)
}

/// Turns bytes read at `offset` of a guarded database into what SQLite wrote.
pub fn unmask(offset: u64, buf: &mut [u8]) {
    overlay(offset, buf, VERSIONS.start, &[WAL_VERSION; 2]);
    overlay(offset, buf, ID, &[0; 20]);
}

/// Turns bytes that SQLite writes at `offset` into what goes to disk while `id` is attached.
pub fn mask(offset: u64, buf: &mut [u8], id: LogId) {
    overlay(offset, buf, VERSIONS.start, &[GUARD; 2]);
    overlay(offset, buf, ID, &id.0);
    overlay(offset, buf, ID_CHECK, &id_check(id).to_le_bytes());
}

/// Whether `len` bytes from `offset` on have a byte of the guard's own: of [`VERSIONS`] or [`LOG_ID`].
#[must_use]
pub fn touches(offset: u64, len: usize) -> bool {
    let end = offset.saturating_add(len as u64);
    len > 0 && [VERSIONS, LOG_ID].iter().any(|own| offset < own.end as u64 && (own.start as u64) < end)
}

/// Lays the guard's own bytes, as the first bytes of a file have them, over those that belong at `offset`. Others
/// stay as they are, and so do those that the file is too short for.
pub fn show(header: &[u8], offset: u64, buf: &mut [u8]) {
    for own in [VERSIONS, LOG_ID] {
        let end = own.end.min(header.len());
        overlay(offset, buf, own.start, header.get(own.start..end).unwrap_or_default());
    }
}

/// Takes the guard off a header that is about to be written back.
pub fn lift(header: &mut [u8; HEADER_BYTES]) {
    put(header, VERSIONS.start, &[WAL_VERSION; 2]);
    put(header, ID, &[0; 20]);
}

fn id_check(id: LogId) -> u32 {
    // Truncation is meant: the low half is the check.
    (xxh3_64(&id.0) & 0xffff_ffff) as u32
}

/// Lays `patch`, which belongs at `patch_at` of the file, over the part of it that `buf` holds.
fn overlay(offset: u64, buf: &mut [u8], patch_at: usize, patch: &[u8]) {
    for (i, byte) in patch.iter().enumerate() {
        let at = (patch_at + i) as u64;
        if let Some(i) = at.checked_sub(offset).and_then(|i| usize::try_from(i).ok())
            && let Some(slot) = buf.get_mut(i)
        {
            *slot = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 0, SQLITE_MAGIC);
        put(&mut header, 16, &[0x10, 0, 2, 2]);
        put(&mut header, 92, &[1, 2, 3, 4, 5, 6, 7, 8]);
        header
    }

    #[test]
    fn inv01_masked_header_names_its_log_and_unmasks_to_the_original() {
        let id = LogId([7; 16]);
        let mut header = plain();
        assert_eq!(inspect(&header), DatabaseHeader::Plain { page_bytes: 4096, wal: true });
        mask(0, &mut header, id);
        assert_eq!(inspect(&header), DatabaseHeader::Guarded { page_bytes: 4096, log_id: id });
        let mut lifted = header;
        unmask(0, &mut header);
        lift(&mut lifted);
        assert_eq!(header, plain());
        assert_eq!(lifted, plain());
    }

    #[test]
    fn inv01_partial_reads_are_unmasked_at_every_offset() {
        let mut disk = plain();
        mask(0, &mut disk, LogId([0xAB; 16]));
        for offset in 0..HEADER_BYTES {
            for end in offset..HEADER_BYTES {
                let mut piece = disk[offset..end].to_vec();
                unmask(offset as u64, &mut piece);
                assert_eq!(piece, plain()[offset..end], "{offset}..{end}");
            }
        }
    }

    #[test]
    fn inv01_the_guard_is_shown_over_any_part_of_a_page_and_nothing_else_is() {
        let mut disk = plain();
        mask(0, &mut disk, LogId([0xAB; 16]));
        let newer: Vec<u8> = (0..120).collect();
        for offset in 0..newer.len() {
            for end in offset..newer.len() {
                let mut piece = newer[offset..end].to_vec();
                show(&disk, offset as u64, &mut piece);
                let expected = (offset..end).map(|at| {
                    if VERSIONS.contains(&at) || LOG_ID.contains(&at) { disk[at] } else { newer[at] }
                });
                assert_eq!(piece, expected.collect::<Vec<_>>(), "{offset}..{end}");
                let own = (offset..end).any(|at| VERSIONS.contains(&at) || LOG_ID.contains(&at));
                assert_eq!(touches(offset as u64, end - offset), own, "{offset}..{end}");
            }
        }
        let mut piece = newer[..100].to_vec();
        show(&disk[..80], 0, &mut piece);
        assert_eq!((&piece[72..80], &piece[80..]), (&disk[72..80], &newer[80..100]));
        let mut short = newer[..100].to_vec();
        show(&[], 0, &mut short);
        assert_eq!(short, newer[..100]);
    }

    #[test]
    fn every_flipped_bit_of_the_guard_is_noticed() {
        let mut disk = plain();
        mask(0, &mut disk, LogId([0x5A; 16]));
        for at in [18, 19].into_iter().chain(72..92) {
            for bit in 0..8 {
                let mut bad = disk;
                bad[at] ^= 1 << bit;
                assert_eq!(inspect(&bad), DatabaseHeader::Damaged, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn other_files_are_told_apart() {
        assert_eq!(inspect(&[]), DatabaseHeader::Empty);
        assert_eq!(inspect(&[0; 100]), DatabaseHeader::NotSqlite);
        assert_eq!(inspect(&plain()[..50]), DatabaseHeader::NotSqlite);
    }
}
