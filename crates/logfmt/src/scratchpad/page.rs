//! The header line of a page of the region: whose it is, and where it stands in its transaction.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{MOST_PAGES, PAGE_BYTES};
use crate::LogId;
use crate::bytes::{put, u32_le, u64_le};

/// Bytes of a page's header: one line.
pub const HEADER_BYTES: u64 = 64;
/// Bytes of a page behind its header, which are part of its transaction's stream.
pub const STREAM_BYTES: u64 = PAGE_BYTES - HEADER_BYTES;
/// In a header: the link to the transaction's next page.
pub const LINK_AT: u64 = 32;
/// In a transaction's first header: where its last entry is, as a number of lines in the region.
pub const LAST_AT: u64 = 40;
/// In a transaction's first header: the link to the first page of the next transaction.
pub const FOLLOW_AT: u64 = 48;

/// Bits of an owner that are the process slot's.
const SLOT_BITS: u32 = 8;

/// The log that owns a page, as the first word of the page says it; in its low byte the slot of the process that took
/// the page. 0 is nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u64);

impl Owner {
    /// A log as an owner.
    #[must_use]
    pub fn of(id: LogId) -> Self {
        Self(((id.seed() >> SLOT_BITS).max(1)) << SLOT_BITS)
    }

    /// The log that a word names; `None` for a free page.
    #[must_use]
    pub fn in_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word >> SLOT_BITS << SLOT_BITS))
    }

    /// The word that the process in a slot stores.
    #[must_use]
    pub fn word(self, slot: usize) -> u64 {
        self.0 | (slot as u64 & ((1 << SLOT_BITS) - 1))
    }

    /// The process slot in a word.
    #[must_use]
    pub fn slot_in(word: u64) -> usize {
        (word & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// A number that tells owners apart, below 2^56.
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

/// What a header says besides its owner and its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// What the page holds.
    pub kind: Kind,
    /// The generation, or for a rollback journal its number.
    pub generation: u64,
    /// The transaction's number in the generation; 0 for a rollback journal.
    pub transaction: u32,
    /// The page's place in its transaction, from 0.
    pub index: u32,
}

impl PageHeader {
    /// The header behind its owner, with no links; for page `page`.
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

    /// Reads the header of page `page` of this log, and the tag of its links; `None` if it is no header of such a page.
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

/// The word that links to a page, or says where an entry is; never 0.
#[must_use]
pub fn link_word(target: u32, tag: u32) -> u64 {
    u64::from(target)
        | u64::from(xxh3_64(&(u64::from(target) << 32 | u64::from(tag)).to_le_bytes()) as u32) << 32
}

/// Reads a [`link_word`]: `None` if it is 0 or no link of this tag to one of so many targets from 1 on.
#[must_use]
pub fn read_link(word: u64, tag: u32, targets: u32) -> Option<u32> {
    let target = word as u32;
    (target != 0 && target < targets && word == link_word(target, tag)).then_some(target)
}

const _: () = assert!((MOST_PAGES as u64) * (PAGE_BYTES / HEADER_BYTES) <= u32::MAX as u64);
