//! The transaction that is being stored.

use duralite_format::scratchpad::TxHash;

use crate::shared::past_cache::Work;

/// The transaction that is being stored, until it is sealed.
pub(super) struct OpenTransaction {
    /// The pages of the transaction, each with the tag of its links.
    pub(super) pages: Vec<(u32, u32)>,
    /// The offset of the next entry in the last page.
    pub(super) offset: u64,
    pub(super) hash: TxHash,
    pub(super) records: u32,
    /// How the lines of the transaction become durable.
    pub(super) work: Work,
}

impl OpenTransaction {
    /// The pages of the transaction, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// The last page of the transaction.
    pub(super) fn last(&self) -> u32 {
        self.pages.last().map_or(0, |(page, _)| *page)
    }
}
