//! The records of the transaction log.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{LAST_TRANSACTION, TRANSACTION_BYTES, TRANSACTIONS, TRANSACTIONS_OFFSET};
use crate::bytes::{put, u32_le, u64_le};
use crate::{FormatError, LogId};

/// What has become of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionKind {
    /// It is being stored.
    Begin,
    /// It is committed.
    Commit,
    /// It was given up.
    Abort,
}

impl TransactionKind {
    const ALL: [Self; 3] = [Self::Begin, Self::Commit, Self::Abort];

    /// The mark of a transaction's record that says so: it differs for each transaction, so that what an earlier one
    /// has left in its place says nothing of this one.
    #[must_use]
    pub fn mark(self, id: LogId, number: u64) -> u64 {
        xxh3_64_with_seed(&number.to_le_bytes(), id.seed().wrapping_add(self as u64 + 1))
    }
}

/// A record of the transaction log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionRecord {
    /// Its number: every transaction's is one more than that of the one before.
    pub number: u64,
    /// What has become of it.
    pub kind: TransactionKind,
    /// Size of the database in pages after it.
    pub db_pages: u32,
    /// When it was sealed, in milliseconds since 1970.
    pub time_ms: u64,
    /// The log may be deleted: everything is in the database file.
    pub retired: bool,
}

impl TransactionRecord {
    /// Where the record of a transaction is.
    #[must_use]
    pub fn offset(number: u64) -> u64 {
        TRANSACTIONS_OFFSET + number % TRANSACTIONS * TRANSACTION_BYTES as u64
    }

    /// Where its mark is.
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

    /// Reads the record at a place; `None` where none is, or one that was never complete.
    ///
    /// # Errors
    /// `Damaged` where a commit has its mark, which is stored only once the rest is durable, and the rest does not check.
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
