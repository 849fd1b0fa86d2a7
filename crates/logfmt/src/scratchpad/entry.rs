//! Entries of a transaction of the write-ahead log: changes of pages, and the commit.

use crate::bytes::put;
use crate::record::{RECORD_HEADER_BYTES, RecordHeader};
use crate::transaction::TxHash;

/// Bytes of a line: entries begin at multiples, and the last entry of a transaction is one.
pub const ENTRY_BYTES: u64 = 64;
/// In a change: where the record of the page is.
pub const RECORD_AT: u64 = 16;
/// Bytes of a change before its ranges.
pub const CHANGE_HEADER_BYTES: u64 = RECORD_AT + RECORD_HEADER_BYTES as u64;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Ranges of bytes of a page.
    Change,
    /// The last entry of a transaction that is not committed.
    Committing,
    /// The last entry of a committed transaction.
    Committed,
}

/// The first word of an entry of so many bytes.
#[must_use]
pub fn type_word(kind: EntryKind, size: u32) -> u64 {
    let code = match kind {
        EntryKind::Change => 1,
        EntryKind::Committing => 2,
        EntryKind::Committed => 3,
    };
    u64::from(size) << 32 | u64::from(!size as u16) << 16 | code
}

/// Reads a [`type_word`]; `None` for any other word.
#[must_use]
pub fn read_type_word(word: u64) -> Option<(EntryKind, u32)> {
    let kind = match word & 0xffff {
        1 => EntryKind::Change,
        2 => EntryKind::Committing,
        3 => EntryKind::Committed,
        _ => return None,
    };
    let size = (word >> 32) as u32;
    (type_word(kind, size) == word).then_some((kind, size))
}

/// Bytes that a change takes whose record has so many.
#[must_use]
pub fn entry_bytes(record_bytes: u32) -> u64 {
    (RECORD_AT + u64::from(record_bytes)).next_multiple_of(ENTRY_BYTES)
}

/// The header of a change, its record's included; `hash` is that of the transaction with this record.
#[must_use]
pub fn change_header(
    transaction: u32,
    record: &RecordHeader,
    hash: TxHash,
) -> [u8; CHANGE_HEADER_BYTES as usize] {
    let mut out = [0; CHANGE_HEADER_BYTES as usize];
    let size = RECORD_AT as u32 + record.record_bytes;
    put(&mut out, 0, &type_word(EntryKind::Change, size).to_le_bytes());
    put(&mut out, 8, &transaction.to_le_bytes());
    put(&mut out, 12, &hash.short().to_le_bytes());
    put(&mut out, RECORD_AT as usize, &record.encode());
    out
}
