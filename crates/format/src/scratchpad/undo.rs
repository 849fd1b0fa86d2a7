//! The words in a log's file that name the pages of a rollback journal and give its length.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::MOST_PAGES;
use crate::generation::{halves, of_halves};
use crate::{FormatError, LogId};

/// Offset of the word that names the journal's first page.
pub const JOURNAL_CHAIN_OFFSET: u64 = 1600;
/// Offset of the word that says whether a journal exists, and how long it is. Both words are in the same cache line.
pub const JOURNAL_STATE_OFFSET: u64 = 1608;
/// Offset of a count, in the same cache line. The count is odd from the first store of a change of the journal on,
/// until the process has made the whole change durable.
pub const JOURNAL_CHANGES_OFFSET: u64 = 1624;
/// Every journal is shorter than this number of bytes.
pub const JOURNAL_LIMIT: u64 = 1 << 47;

const DAMAGED: FormatError = FormatError::Damaged { what: "the state of the rollback journal" };

/// The chain of pages of a rollback journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoChain {
    /// The first page of the chain.
    pub first: u32,
    /// Low half of the journal's number; the headers of its pages hold the whole number.
    pub number: u32,
}

impl UndoChain {
    /// The word that names the chain.
    #[must_use]
    pub fn word(self) -> u64 {
        of_halves(self.first, self.number)
    }

    /// Reads the word.
    #[must_use]
    pub fn read(word: u64) -> Self {
        let [first, number] = halves(word);
        Self { first, number }
    }
}

/// Whether a rollback journal exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoState {
    /// No journal exists.
    Gone,
    /// A journal of this many bytes exists.
    Bytes(u64),
}

impl UndoState {
    /// The word that stores this state of the journal in `chain`.
    #[must_use]
    pub fn word(self, id: LogId, chain: UndoChain) -> u64 {
        match self {
            Self::Gone => 0,
            Self::Bytes(bytes) => (bytes % JOURNAL_LIMIT) << 16 | u64::from(check_of(bytes, id, chain)),
        }
    }

    /// Reads the word.
    ///
    /// # Errors
    /// `Damaged` if the word does not belong to this chain.
    pub fn read(word: u64, id: LogId, chain: UndoChain) -> Result<Self, FormatError> {
        if word == 0 {
            return Ok(Self::Gone);
        }
        let it = Self::Bytes(word >> 16);
        let sound = word >> 16 < JOURNAL_LIMIT && it.word(id, chain) == word;
        if sound && (1..MOST_PAGES).contains(&chain.first) { Ok(it) } else { Err(DAMAGED) }
    }
}

/// The check of a journal's word. It is never 0, so neither is the word.
fn check_of(bytes: u64, id: LogId, chain: UndoChain) -> u16 {
    xxh3_64_with_seed(&bytes.to_le_bytes(), id.seed() ^ chain.word()) as u16 | 1
}
