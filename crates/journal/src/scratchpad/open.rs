//! The transaction being stored.

use duralite_logfmt::scratchpad::TxHash;

use crate::past_cache::Work;

/// The transaction being stored, before it is sealed.
pub(super) struct OpenTransaction {
    /// Its pages, each with the tag of its links.
    pub(super) pages: Vec<(u32, u32)>,
    /// Where its next entry goes in the last of them.
    pub(super) offset: u64,
    pub(super) hash: TxHash,
    pub(super) records: u32,
    /// How its lines become durable.
    pub(super) work: Work,
}

impl OpenTransaction {
    /// Its pages.
    pub(super) fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// The last of them.
    pub(super) fn last(&self) -> u32 {
        self.pages.last().map_or(0, |(page, _)| *page)
    }
}
