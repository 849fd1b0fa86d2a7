//! The header line of a page of the region: which log owns the page, and where the page is in its transaction.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{MOST_PAGES, PAGE_BYTES};
use crate::LogId;
use crate::bytes::{put, u32_le, u64_le};

/// Bytes of a page's header: one line.
pub const HEADER_BYTES: u64 = 64;
/// Bytes of a page after its header. They are part of its transaction's stream.
pub const STREAM_BYTES: u64 = PAGE_BYTES - HEADER_BYTES;
/// Offset in a page's header of the link to the transaction's next page.
pub const LINK_AT: u64 = 32;
/// Offset in the header of a transaction's first page: the link to the transaction's last entry, which is counted in
/// lines from the region's beginning.
pub const LAST_AT: u64 = 40;
/// Offset in the header of a transaction's first page: the link to the first page of the next transaction.
pub const FOLLOW_AT: u64 = 48;

/// Low bits of an owner's word that hold the process slot.
const SLOT_BITS: u32 = 8;

/// The log that owns a page. The first word of the page names the owner, and its low byte is the slot of the process
/// that took the page. The word of a free page is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u64);

impl Owner {
    /// The owner that stands for a log.
    #[must_use]
    pub fn of(id: LogId) -> Self {
        Self(((id.seed() >> SLOT_BITS).max(1)) << SLOT_BITS)
    }

    /// The log that a word names; `None` for a free page.
    #[must_use]
    pub fn in_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word >> SLOT_BITS << SLOT_BITS))
    }

    /// The word that the process in a slot stores into a page that it takes.
    #[must_use]
    pub fn word(self, slot: usize) -> u64 {
        self.0 | (slot as u64 & ((1 << SLOT_BITS) - 1))
    }

    /// The process slot in an owner's word.
    #[must_use]
    pub fn slot_in(word: u64) -> usize {
        (word & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// A number below 2^56 that differs between owners.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Entries of a transaction of the write-ahead log.
    Redo,
    /// Bytes of a rollback journal.
    Undo,
}

/// The fields of a page's header other than its owner and its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// What the page holds.
    pub kind: Kind,
    /// The generation of the transaction, or the number of the rollback journal.
    pub generation: u64,
    /// The transaction's number in the generation; 0 for a rollback journal.
    pub transaction: u32,
    /// The page's place in its transaction, from 0.
    pub index: u32,
}

impl PageHeader {
    /// The header of page `page` after the owner's word, without links.
    #[must_use]
    pub fn encode(&self, id: LogId, page: u32) -> [u8; HEADER_BYTES as usize - 8] {
        let mut out = [0; HEADER_BYTES as usize - 8];
        put(&mut out, 0, &self.generation.to_le_bytes());
        put(&mut out, 8, &self.transaction.to_le_bytes());
        put(&mut out, 12, &self.index.to_le_bytes());
        let kind: u32 = match self.kind {
            Kind::Redo => 1,
            Kind::Undo => 2,
        };
        put(&mut out, 16, &kind.to_le_bytes());
        let check = check_of(&out[..20], id, page);
        put(&mut out, 20, &check.to_le_bytes());
        out
    }

    /// Reads the header of page `page` of this log. Also returns the tag of the header's links. `None` if the bytes are
    /// not such a header.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES as usize], id: LogId, page: u32) -> Option<(Self, u32)> {
        let kind = match u32_le(bytes, 24) {
            1 => Kind::Redo,
            2 => Kind::Undo,
            _ => return None,
        };
        let tag = u32_le(bytes, 28);
        let it = Self {
            kind,
            generation: u64_le(bytes, 8),
            transaction: u32_le(bytes, 16),
            index: u32_le(bytes, 20),
        };
        (tag == check_of(&bytes[8..28], id, page)).then_some((it, tag))
    }

    /// The tag of the links in this header.
    #[must_use]
    pub fn tag(&self, id: LogId, page: u32) -> u32 {
        u32_le(&self.encode(id, page), 20)
    }
}

fn check_of(bytes: &[u8], id: LogId, page: u32) -> u32 {
    xxh3_64_with_seed(bytes, id.seed() ^ u64::from(page).rotate_left(32)) as u32
}

/// The tag of the link to a generation's first transaction.
#[must_use]
pub fn first_link_tag(id: LogId, generation: u64) -> u32 {
    xxh3_64_with_seed(&generation.to_le_bytes(), id.seed()) as u32
}

/// The word that links to a page or a line. It is never 0.
#[must_use]
pub fn link_word(target: u32, tag: u32) -> u64 {
    u64::from(target)
        | u64::from(xxh3_64(&(u64::from(target) << 32 | u64::from(tag)).to_le_bytes()) as u32) << 32
}

/// Reads a [`link_word`]. `None` if the word is 0, has another tag, or leads to a target that is not in `1..targets`.
#[must_use]
pub fn read_link(word: u64, tag: u32, targets: u32) -> Option<u32> {
    let target = word as u32;
    (target != 0 && target < targets && word == link_word(target, tag)).then_some(target)
}

const _: () = assert!((MOST_PAGES as u64) * (PAGE_BYTES / HEADER_BYTES) <= u32::MAX as u64);
