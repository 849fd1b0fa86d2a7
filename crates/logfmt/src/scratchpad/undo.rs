//! The words in a log's file that say which pages are a rollback journal, and how long it is.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::MOST_PAGES;
use crate::generation::{halves, of_halves};
use crate::{FormatError, LogId};

/// Where the word is that names the journal's first page.
pub const JOURNAL_CHAIN_OFFSET: u64 = 1600;
/// Where the word is that says whether there is a journal, and its length. In the line of the other one.
pub const JOURNAL_STATE_OFFSET: u64 = 1608;
/// Where a count is that is odd while somebody changes the journal and has not made all of that durable. In the same line.
pub const JOURNAL_CHANGES_OFFSET: u64 = 1624;
/// A journal is shorter than this.
pub const JOURNAL_LIMIT: u64 = 1 << 47;

const DAMAGED: FormatError = FormatError::Damaged { what: "the state of the rollback journal" };

/// The chain of pages of a rollback journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoChain {
    /// Its first page.
    pub first: u32,
    /// Low half of the journal's number, which is told in the pages.
    pub number: u32,
}

impl UndoChain {
    /// The word that names it.
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

/// Whether there is a rollback journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoState {
    /// There is none.
    Gone,
    /// There is one of so many bytes.
    Bytes(u64),
}

impl UndoState {
    /// The word that says so of the journal in this chain.
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
    /// `Damaged`: it does not belong to this chain.
    pub fn read(word: u64, id: LogId, chain: UndoChain) -> Result<Self, FormatError> {
        if word == 0 {
            return Ok(Self::Gone);
        }
        let it = Self::Bytes(word >> 16);
        let sound = word >> 16 < JOURNAL_LIMIT && it.word(id, chain) == word;
        if sound && (1..MOST_PAGES).contains(&chain.first) { Ok(it) } else { Err(DAMAGED) }
    }
}

/// Not 0, so that no journal's word is.
fn check_of(bytes: u64, id: LogId, chain: UndoChain) -> u16 {
    xxh3_64_with_seed(&bytes.to_le_bytes(), id.seed() ^ chain.word()) as u16 | 1
}
