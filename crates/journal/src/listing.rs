//! The transactions in a log that is in use, as one of its users sees them at one moment. Nothing of it is stored.

use crate::engine::{Engine, Transaction};
use crate::{JournalError, Log};

/// A transaction in a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTransaction {
    /// Where its frames are.
    pub transaction: Transaction,
    /// The position after it, as a [`Follower`](crate::Follower) counts.
    pub position: u64,
    /// Size of its records in the log in bytes; `None` where the log does not keep a record for each frame.
    pub bytes: Option<u64>,
    /// Whether it would survive what the log's guarantee says that a commit survives.
    pub durable: bool,
}

/// The transactions that the log's generation holds and that no later one has taken the place of, oldest first: those of all
/// processes, up to the newest one that was sealed at that moment. A checkpoint may have written them to the database file
/// since; they stay until the log starts over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// In order.
    pub transactions: Vec<ListedTransaction>,
    /// The page of each frame.
    pages: Vec<u32>,
}

impl Listing {
    /// The pages that a transaction has written, in the order of its frames: one may be there more than once.
    #[must_use]
    pub fn pages_of(&self, listed: &ListedTransaction) -> &[u32] {
        let Transaction { first_frame, last_frame, .. } = listed.transaction;
        let frames = first_frame.saturating_sub(1) as usize..last_frame as usize;
        self.pages.get(frames).unwrap_or_default()
    }
}

impl Log {
    /// What is in the log now. It takes time and memory for each frame, and nothing of what is listed is held back from
    /// the log's starting over.
    ///
    /// # Errors
    /// `Corrupt`, `Poisoned`; `Busy` for a user who may only read the log, if it has been recovered meanwhile.
    pub fn list(&mut self) -> Result<Listing, JournalError> {
        let listing = self.guarded(|stream| {
            stream.engine_mut().refresh()?;
            list(stream.engine())
        });
        self.check_outside()?;
        listing
    }
}

fn list(engine: &dyn Engine) -> Result<Listing, JournalError> {
    let missing = JournalError::Unexpected("a frame number");
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
