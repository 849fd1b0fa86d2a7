//! The guard in the first page of a database whose committed data lives in a Duralite log.
//!
//! Stock SQLite refuses a database whose read version (byte 19) is above 2: "file is not a database". The guard raises
//! the read version, and so stops a program without Duralite before it reads a stale database (invariant 1). The guard
//! does not change the write version (byte 18). If it did, a connection that had read the raised write version would
//! treat the database as read-only until the connection is closed, even after the guard is gone. Earlier builds raised
//! both bytes, and this build still recognises such a guard. The 20 bytes from 72 on, which SQLite reserves and leaves
//! zero, name the log.
//!
//! A guard can be provisional; its check field says so. Duralite writes a provisional guard before the log is durable.
//! Such a log has no commits yet, so a power loss that destroys the log loses nothing. Before the first commit Duralite
//! makes the guard final, durably.
//!
//! There are two kinds of guard, one for a database in WAL mode and one for a database with rollback journals. The kind
//! says which value SQLite wrote into bytes 18 and 19: 2 in WAL mode, 1 with rollback journals. A program that uses a
//! rollback journal holds no lock outside of a transaction, and keeps its cached pages as long as the change counter is
//! unchanged. So a guard of the second kind changes the stored change counter too. Such a program then finds that the
//! counter has changed, reads page 1 again, and stops at the read version (invariant 22).

use std::ops::Range;

use crate::LogId;
use crate::bytes::{array, u32_le};
use xxhash_rust::xxh3::xxh3_64;

/// Size of a database header in bytes.
pub const HEADER_BYTES: usize = 100;
/// The value of byte 19 on disk while a database in WAL mode uses a log.
pub const GUARD: u8 = 0xD7;
/// The value of byte 19 on disk while a database with rollback journals keeps its journal in a log.
pub const ROLLBACK_GUARD: u8 = 0xD8;
/// The end of the bytes that a guard can change. From this offset on, SQLite sees the file's bytes as they are.
pub const MASKED_END: u64 = 92;

/// The bytes of page 1 with the write version and the read version, which say whether the database is in WAL mode. A
/// guard replaces these bytes.
pub const VERSIONS: Range<usize> = 18..20;
/// The bytes of page 1 that name the log: the log's id, then a check.
pub const LOG_ID: Range<usize> = 72..92;
/// The bytes of the change counter. In a database with rollback journals, SQLite checks this counter to find out
/// whether its cached pages are still valid.
pub const COUNTER: Range<usize> = 24..28;
/// The offset, in a database's header, of the field that says how many bytes SQLite leaves unused at the end of each
/// page.
pub const RESERVED_BYTES: usize = 20;
/// Under [`ROLLBACK_GUARD`] the change counter on disk is xored with this mask. The masked value and the true value are
/// so far apart that the counter never counts from one to the other.
const COUNTER_MASK: [u8; 4] = [0xA5, 0x5A, 0xD8, 0xD8];
const ID: usize = LOG_ID.start;
const ID_CHECK: usize = 88;
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The write and read version of a database in WAL mode.
const WAL_VERSION: u8 = 2;
/// The write and read version of a database with rollback journals.
const ROLLBACK_VERSION: u8 = 1;

/// The journal mode of a guarded database, as page 1 shows it without the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalKind {
    /// WAL mode.
    Wal,
    /// A rollback journal.
    Rollback,
}

impl JournalKind {
    /// Returns the journal mode that belongs to these two version bytes, as SQLite wrote them. Returns `None` for other
    /// values, which no guard replaces.
    #[must_use]
    pub fn of_versions(versions: &[u8]) -> Option<Self> {
        match versions {
            [WAL_VERSION, WAL_VERSION] => Some(Self::Wal),
            [ROLLBACK_VERSION, ROLLBACK_VERSION] => Some(Self::Rollback),
            _ => None,
        }
    }

    /// Returns the journal mode of a database with this guard; `None` if these bytes are not a guard.
    #[must_use]
    pub fn of_guard(versions: &[u8]) -> Option<Self> {
        match versions {
            [WAL_VERSION | GUARD, GUARD] => Some(Self::Wal),
            [ROLLBACK_VERSION | ROLLBACK_GUARD, ROLLBACK_GUARD] => Some(Self::Rollback),
            _ => None,
        }
    }

    /// Returns the two bytes that the guard stores in place of the versions.
    fn guard(self) -> [u8; 2] {
        match self {
            Self::Wal => [WAL_VERSION, GUARD],
            Self::Rollback => [ROLLBACK_VERSION, ROLLBACK_GUARD],
        }
    }

    fn version(self) -> u8 {
        match self {
            Self::Wal => WAL_VERSION,
            Self::Rollback => ROLLBACK_VERSION,
        }
    }
}

/// The kind of a file, according to its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseHeader {
    /// The file is empty. SQLite will make a database of it.
    Empty,
    /// The file is not a SQLite database.
    NotSqlite,
    /// A database without a guard.
    Plain {
        /// Page size in bytes.
        page_bytes: u32,
        /// Whether the database is in WAL mode.
        wal: bool,
    },
    /// A database whose newest commits are in a log.
    Guarded {
        /// Page size in bytes.
        page_bytes: u32,
        /// The identity of the log.
        log_id: LogId,
        /// The journal mode of the database without the guard.
        kind: JournalKind,
        /// Whether the guard is provisional: the log has no commits yet, and perhaps is not durable yet.
        provisional: bool,
    },
    /// A database with a guard whose fields do not match their check.
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
    let versions = &header[VERSIONS];
    if let Some(kind) = JournalKind::of_guard(versions) {
        let Some(log_id) = array(header, ID).map(LogId) else { return DatabaseHeader::Damaged };
        let (check, found) = (id_check(log_id), u32_le(header, ID_CHECK));
        let provisional = found == !check;
        return if (provisional || found == check) && page_size_is_valid(page_bytes) {
            DatabaseHeader::Guarded { page_bytes, log_id, kind, provisional }
        } else {
            DatabaseHeader::Damaged
        };
    }
    // Without a guard, the bytes for the log's id are zero. So a log's id that matches its check comes from a guard. If
    // a version byte is then above the values that SQLite writes, that guard is damaged.
    let names_log = || {
        let check = array(header, ID).map(|id| id_check(LogId(id)));
        check.is_some_and(|check| [check, !check].contains(&u32_le(header, ID_CHECK)))
    };
    let raised = versions.iter().any(|version| *version > WAL_VERSION);
    if versions.contains(&GUARD) || versions.contains(&ROLLBACK_GUARD) || raised && names_log() {
        return DatabaseHeader::Damaged;
    }
    DatabaseHeader::Plain { page_bytes, wal: JournalKind::of_versions(versions) == Some(JournalKind::Wal) }
}

/// Returns whether SQLite can have pages of this size: a power of two from 512 to 65536.
#[must_use]
pub fn page_size_is_valid(page_bytes: u32) -> bool {
    page_bytes.is_power_of_two() && (512..=65536).contains(&page_bytes)
}

/// Turns bytes that were read at `offset` of a guarded database into the bytes that SQLite wrote there. If the bytes
/// contain both version bytes of a guard, the kind of the guard says which values to restore. Otherwise assumes that
/// the database is in WAL mode.
pub fn unmask(offset: u64, buf: &mut [u8]) {
    unmask_as(kind_within(offset, buf, JournalKind::of_guard).unwrap_or(JournalKind::Wal), offset, buf);
}

/// Like [`unmask`], for a guard of a known kind.
pub fn unmask_as(kind: JournalKind, offset: u64, buf: &mut [u8]) {
    overlay(offset, buf, VERSIONS.start, &[kind.version(); 2]);
    overlay(offset, buf, ID, &[0; 20]);
    mask_counter(kind, offset, buf);
}

/// Turns bytes that SQLite writes at `offset` of a database in WAL mode into the bytes to store in the file while the
/// database uses the log `id`.
pub fn mask(offset: u64, buf: &mut [u8], id: LogId) {
    mask_as(JournalKind::Wal, offset, buf, id);
}

/// Like [`mask`], with a guard of a given kind.
pub fn mask_as(kind: JournalKind, offset: u64, buf: &mut [u8], id: LogId) {
    overlay(offset, buf, VERSIONS.start, &kind.guard());
    overlay(offset, buf, ID, &id.0);
    overlay(offset, buf, ID_CHECK, &id_check(id).to_le_bytes());
    mask_counter(kind, offset, buf);
}

/// Turns the header that SQLite wrote into the bytes to store in the file while the log `id` is not durable yet: a
/// header with a provisional guard.
pub fn mask_provisionally(kind: JournalKind, header: &mut [u8; HEADER_BYTES], id: LogId) {
    mask_as(kind, 0, header, id);
    overlay(0, header, ID_CHECK, &(!id_check(id)).to_le_bytes());
}

/// Returns the journal mode that the database has after SQLite writes these bytes at `offset`. Returns `None` if the
/// bytes do not contain both version bytes, or if they have other values than those of the two modes.
#[must_use]
pub fn kind_of_page(offset: u64, buf: &[u8]) -> Option<JournalKind> {
    kind_within(offset, buf, JournalKind::of_versions)
}

fn kind_within(
    offset: u64,
    buf: &[u8],
    of: impl FnOnce(&[u8]) -> Option<JournalKind>,
) -> Option<JournalKind> {
    let at = usize::try_from((VERSIONS.start as u64).checked_sub(offset)?).ok()?;
    of(buf.get(at..at.checked_add(VERSIONS.len())?)?)
}

/// Returns whether the `len` bytes from `offset` on contain a byte that a guard changes: one of [`VERSIONS`],
/// [`COUNTER`] or [`LOG_ID`].
#[must_use]
pub fn touches(offset: u64, len: usize) -> bool {
    let end = offset.saturating_add(len as u64);
    len > 0
        && [VERSIONS, COUNTER, LOG_ID].iter().any(|own| offset < own.end as u64 && (own.start as u64) < end)
}

/// Copies the guard from `header`, the first bytes of a file, into `buf`, which holds bytes as SQLite sees them from
/// `offset` on. If the guard is a `ROLLBACK_GUARD`, also masks the change counter. All other bytes of `buf` stay
/// unchanged. If `header` is short, the bytes that it lacks also stay unchanged.
pub fn show(header: &[u8], offset: u64, buf: &mut [u8]) {
    for own in [VERSIONS, LOG_ID] {
        let end = own.end.min(header.len());
        overlay(offset, buf, own.start, header.get(own.start..end).unwrap_or_default());
    }
    if let Some(kind) = header.get(VERSIONS).and_then(JournalKind::of_guard) {
        mask_counter(kind, offset, buf);
    }
}

/// Removes the guard from a header that the caller is about to write back.
pub fn lift(header: &mut [u8; HEADER_BYTES]) {
    unmask(0, header);
}

/// Masks the change counter, or restores it if it is masked already.
fn mask_counter(kind: JournalKind, offset: u64, buf: &mut [u8]) {
    if kind == JournalKind::Rollback {
        each_of(offset, buf, COUNTER.start, &COUNTER_MASK, |byte, mask| *byte ^= mask);
    }
}

fn id_check(id: LogId) -> u32 {
    // Keep only the low half of the hash.
    (xxh3_64(&id.0) & 0xffff_ffff) as u32
}

/// Copies into `buf` the part of `patch` that overlaps it. `buf` is at `offset` of the file, `patch` at `patch_at`.
fn overlay(offset: u64, buf: &mut [u8], patch_at: usize, patch: &[u8]) {
    each_of(offset, buf, patch_at, patch, |byte, new| *byte = new);
}

/// Calls `change` for each byte of `buf` for which `patch` has a byte. `buf` is at `offset` of the file, `patch` at
/// `patch_at`.
fn each_of(offset: u64, buf: &mut [u8], patch_at: usize, patch: &[u8], change: impl Fn(&mut u8, u8)) {
    for (i, byte) in patch.iter().enumerate() {
        let at = (patch_at + i) as u64;
        if let Some(i) = at.checked_sub(offset).and_then(|i| usize::try_from(i).ok())
            && let Some(slot) = buf.get_mut(i)
        {
            change(slot, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put;

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
        assert_eq!(
            inspect(&header),
            DatabaseHeader::Guarded {
                page_bytes: 4096,
                log_id: id,
                kind: JournalKind::Wal,
                provisional: false
            }
        );
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
                let own = (offset..end)
                    .any(|at| VERSIONS.contains(&at) || COUNTER.contains(&at) || LOG_ID.contains(&at));
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

    fn in_rollback_mode() -> [u8; HEADER_BYTES] {
        let mut header = plain();
        put(&mut header, VERSIONS.start, &[1, 1]);
        put(&mut header, COUNTER.start, &[0, 0, 1, 7]);
        header
    }

    #[test]
    fn inv22_the_guard_of_a_rollback_journal_masks_the_counter_in_every_part_of_a_page() {
        let id = LogId([9; 16]);
        let mut disk = in_rollback_mode();
        assert_eq!(inspect(&disk), DatabaseHeader::Plain { page_bytes: 4096, wal: false });
        assert_eq!(kind_of_page(0, &disk), Some(JournalKind::Rollback));
        mask_as(JournalKind::Rollback, 0, &mut disk, id);
        let guarded = DatabaseHeader::Guarded {
            page_bytes: 4096,
            log_id: id,
            kind: JournalKind::Rollback,
            provisional: false,
        };
        assert_eq!(inspect(&disk), guarded);
        assert_ne!(disk[COUNTER], in_rollback_mode()[COUNTER]);
        let mut lifted = disk;
        lift(&mut lifted);
        assert_eq!(lifted, in_rollback_mode());
        for offset in 0..HEADER_BYTES {
            for end in offset..HEADER_BYTES {
                let mut piece = disk[offset..end].to_vec();
                unmask_as(JournalKind::Rollback, offset as u64, &mut piece);
                assert_eq!(piece, in_rollback_mode()[offset..end], "{offset}..{end}");
                show(&disk, offset as u64, &mut piece);
                assert_eq!(piece, disk[offset..end], "{offset}..{end}");
            }
        }
    }

    #[test]
    fn inv01_a_provisional_guard_is_one_that_says_so_until_it_is_put_on_for_good() {
        let id = LogId([0x5A; 16]);
        let mut disk = plain();
        mask_provisionally(JournalKind::Wal, &mut disk, id);
        let guarded = |provisional| DatabaseHeader::Guarded {
            page_bytes: 4096,
            log_id: id,
            kind: JournalKind::Wal,
            provisional,
        };
        assert_eq!(inspect(&disk), guarded(true));
        let mut lifted = disk;
        lift(&mut lifted);
        assert_eq!(lifted, plain());
        mask_as(JournalKind::Wal, 0, &mut disk, id);
        assert_eq!(inspect(&disk), guarded(false));
    }

    #[test]
    fn inv01_the_write_version_stays_and_a_guard_of_earlier_builds_is_one() {
        let id = LogId([0x5A; 16]);
        for (kind, original, raised) in
            [(JournalKind::Wal, plain(), GUARD), (JournalKind::Rollback, in_rollback_mode(), ROLLBACK_GUARD)]
        {
            let mut disk = original;
            mask_as(kind, 0, &mut disk, id);
            assert_eq!(disk[VERSIONS], [original[18], raised]);
            let mut earlier = disk;
            earlier[VERSIONS.start] = raised;
            assert_eq!(inspect(&earlier), inspect(&disk));
            assert!(matches!(inspect(&earlier), DatabaseHeader::Guarded { .. }));
            for offset in 0..HEADER_BYTES {
                for end in offset..HEADER_BYTES {
                    let mut piece = earlier[offset..end].to_vec();
                    unmask_as(kind, offset as u64, &mut piece);
                    assert_eq!(piece, original[offset..end], "{offset}..{end}");
                }
            }
            lift(&mut earlier);
            assert_eq!(earlier, original);
        }
    }

    #[test]
    fn every_flipped_bit_of_the_guard_is_noticed() {
        for (kind, provisional) in
            [(JournalKind::Wal, false), (JournalKind::Rollback, false), (JournalKind::Wal, true)]
        {
            let mut disk = plain();
            if provisional {
                mask_provisionally(kind, &mut disk, LogId([0x5A; 16]));
            } else {
                mask_as(kind, 0, &mut disk, LogId([0x5A; 16]));
            }
            for at in [18, 19].into_iter().chain(72..92) {
                for bit in 0..8 {
                    let mut bad = disk;
                    bad[at] ^= 1 << bit;
                    assert_eq!(inspect(&bad), DatabaseHeader::Damaged, "byte {at} bit {bit}");
                }
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
