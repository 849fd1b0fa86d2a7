//! The records of the transaction log.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{LAST_TRANSACTION, TRANSACTION_BYTES, TRANSACTIONS, TRANSACTIONS_OFFSET};
use crate::bytes::{put, u32_le, u64_le};
use crate::{FormatError, LogId};

/// The state of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionKind {
    /// The writer is storing the transaction.
    Begin,
    /// The transaction is committed.
    Commit,
    /// The transaction was rolled back.
    Abort,
}

impl TransactionKind {
    const ALL: [Self; 3] = [Self::Begin, Self::Commit, Self::Abort];

    /// The mark of this state in a transaction's record. Each transaction has other marks, so a mark that an earlier
    /// transaction has left in the same place says nothing about this one.
    #[must_use]
    pub fn mark(self, id: LogId, number: u64) -> u64 {
        xxh3_64_with_seed(&number.to_le_bytes(), id.seed().wrapping_add(self as u64 + 1))
    }
}

/// A record of the transaction log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionRecord {
    /// The transaction's number: one more than the number of the transaction before.
    pub number: u64,
    /// The transaction's state.
    pub kind: TransactionKind,
    /// Size of the database in pages after the transaction.
    pub db_pages: u32,
    /// When the transaction was sealed, in milliseconds since 1970.
    pub time_ms: u64,
    /// Whether everything is in the database file, so that the log may be deleted.
    pub retired: bool,
}

impl TransactionRecord {
    /// Where the record of a transaction is.
    #[must_use]
    pub fn offset(number: u64) -> u64 {
        TRANSACTIONS_OFFSET + number % TRANSACTIONS * TRANSACTION_BYTES as u64
    }

    /// Where the mark of a transaction is.
    #[must_use]
    pub fn mark_offset(number: u64) -> u64 {
        Self::offset(number) + 8
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; TRANSACTION_BYTES] {
        let mut out = [0; TRANSACTION_BYTES];
        put(&mut out, 0, &self.number.to_le_bytes());
        put(&mut out, 16, &self.db_pages.to_le_bytes());
        put(&mut out, 20, &u32::from(self.retired).to_le_bytes());
        put(&mut out, 24, &self.time_ms.to_le_bytes());
        let check = xxh3_64_with_seed(&out[..56], id.seed());
        put(&mut out, 8, &self.kind.mark(id, self.number).to_le_bytes());
        put(&mut out, 56, &check.to_le_bytes());
        out
    }

    /// Reads the record at a place. `None` if there is no record, or if the writer never completed it.
    ///
    /// # Errors
    /// `Damaged` if the mark says *commit* but the rest does not match the check: the writer stores that mark only when
    /// the rest is durable.
    pub fn decode(
        bytes: &[u8; TRANSACTION_BYTES],
        id: LogId,
        place: u64,
    ) -> Result<Option<Self>, FormatError> {
        let number = u64_le(bytes, 0);
        let mark = u64_le(bytes, 8);
        let kind = TransactionKind::ALL.into_iter().find(|kind| kind.mark(id, number) == mark);
        let mut checked = *bytes;
        put(&mut checked, 8, &[0; 8]);
        let retired = u32_le(bytes, 20);
        let sound = xxh3_64_with_seed(&checked[..56], id.seed()) == u64_le(bytes, 56)
            && number % TRANSACTIONS == place
            && number <= LAST_TRANSACTION
            && retired <= 1;
        match kind {
            Some(TransactionKind::Commit) if !sound => {
                Err(FormatError::Damaged { what: "a record of the transaction log" })
            }
            Some(kind) if sound => {
                let (db_pages, time_ms) = (u32_le(bytes, 16), u64_le(bytes, 24));
                Ok(Some(Self { number, kind, db_pages, time_ms, retired: retired == 1 }))
            }
            _ => Ok(None),
        }
    }
}
