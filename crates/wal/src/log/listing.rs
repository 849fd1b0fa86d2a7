//! Lists the transactions in a log that is in use, as one user of the log sees them at one moment. Stores nothing.

use crate::engine::{Engine, Transaction};
use crate::{Log, LogError};

/// A transaction in a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTransaction {
    /// The transaction, with its frame numbers.
    pub transaction: Transaction,
    /// The position after the transaction, as a [`Follower`](crate::Follower) counts.
    pub position: u64,
    /// Size of the transaction's records in the log in bytes; `None` where the log does not store a record for each
    /// frame.
    pub bytes: Option<u64>,
    /// Whether the transaction would now survive what the log's guarantee says that a commit survives.
    pub durable: bool,
}

/// The transactions that the log's generation holds and that no later one has replaced, oldest first. They are those of
/// all processes, up to the newest transaction that was sealed at that moment. A checkpoint may have written them to
/// the database file already; they stay in the log until it starts over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The transactions, oldest first.
    pub transactions: Vec<ListedTransaction>,
    /// The page of each frame.
    pages: Vec<u32>,
}

impl Listing {
    /// The pages that a transaction has written, in the order of its frames. A page may occur more than once.
    #[must_use]
    pub fn pages_of(&self, listed: &ListedTransaction) -> &[u32] {
        let Transaction { first_frame, last_frame, .. } = listed.transaction;
        let frames = first_frame.saturating_sub(1) as usize..last_frame as usize;
        self.pages.get(frames).unwrap_or_default()
    }
}

impl Log {
    /// Lists what is in the log now. This takes time and memory for each frame, and does not keep the log from starting
    /// over.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`; `Busy` for a user who may only read the log, if another process has recovered it
    /// meanwhile.
    pub fn list(&mut self) -> Result<Listing, LogError> {
        let listing = self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            list(stream.engine())
        });
        self.check_outside()?;
        listing
    }
}

fn list(engine: &dyn Engine) -> Result<Listing, LogError> {
    let missing = LogError::Unexpected("a frame number");
    let frames: Option<Vec<_>> = (1..=engine.committed()).map(|number| engine.frame(number)).collect();
    let frames = frames.ok_or(missing)?;
    let origin = engine.origin().position;
    let mut listing = Listing::default();
    let mut sequence = 0;
    while let Some(transaction) = engine.transaction_after(sequence) {
        sequence = transaction.sequence;
        let numbers = transaction.first_frame.saturating_sub(1) as usize..transaction.last_frame as usize;
        let of_this = frames.get(numbers).unwrap_or_default();
        listing.transactions.push(ListedTransaction {
            position: origin.saturating_add(u64::from(sequence)),
            bytes: of_this.iter().map(|frame| frame.record_bytes.map(u64::from)).sum(),
            durable: engine.is_durable(transaction.last_frame),
            transaction,
        });
    }
    listing.pages = frames.iter().map(|frame| frame.page_number).collect();
    Ok(listing)
}
