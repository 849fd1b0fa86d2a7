//! Errors, distinguished by what the caller should do about them.

use std::io;
use std::path::{Path, PathBuf};

use duralite_format::FormatError;
use duralite_medium::MediumError;

use crate::format::{KEY_LIMIT, PageId};

/// The longest value of a row, in bytes: 1 GiB.
pub const VALUE_LIMIT: u64 = 1 << 30;

/// The reason why an operation was refused or failed.
///
/// After [`Deadlock`](Self::Deadlock), [`Timeout`](Self::Timeout) or [`Full`](Self::Full) a transaction can only be
/// rolled back, either completely or to a savepoint.
///
/// ```
/// use duralite_store::Error;
/// assert!(Error::Deadlock.is_retryable());
/// assert!(!Error::Exists.is_retryable());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Transactions waited for each other in a cycle. This transaction, the youngest of them, has to be rolled back.
    #[error("deadlock: transactions wait for each other, and this transaction has to give way; run it again")]
    Deadlock,
    /// The transaction did not get a lock within the lock timeout.
    #[error(
        "the transaction did not get a lock in time; run the transaction again, or raise the lock timeout"
    )]
    Timeout,
    /// Too many rows have changed since the snapshot was opened, and the store no longer keeps all of their old
    /// versions.
    #[error(
        "the snapshot is too old: since it was opened, more rows changed than the store keeps old versions \
         of; open another snapshot, or raise snapshot_bytes"
    )]
    SnapshotTooOld,
    /// There is no room: on the disk, in the log for a transaction of this size, or in the cache.
    #[error("{what}")]
    Full {
        /// What is full, and how to remedy it.
        what: String,
    },
    /// After an earlier failure the store does not know what is durable. It acknowledges no more commits until it is
    /// opened again.
    #[error("the store stopped after a failure ({why}); open it again to recover")]
    Poisoned {
        /// The failure.
        why: String,
    },
    /// The bytes on the medium differ from those that the store wrote there.
    #[error("{what} is damaged{}; restore the store from a backup", page.map_or(String::new(), |page| format!(" (page {page})")))]
    Corrupt {
        /// What is damaged, in words.
        what: String,
        /// The page number, if a page is damaged.
        page: Option<PageId>,
    },
    /// The archive lacks log objects from before the requested moment.
    #[error(
        "{what}; the last moment before this gap is log object {last} (RestoreTo::Lsn({last}), or --to \
         {last}); for a later moment, restore a later backup"
    )]
    Gap {
        /// What is missing, and why.
        what: String,
        /// The last log object to which the store can be restored.
        last: u64,
    },
    /// The store is already open, in another process or in this one.
    #[error("{} is in use by {holder}; close it there", path.display())]
    Locked {
        /// The path of the store.
        path: PathBuf,
        /// The process that has the store open.
        holder: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// A row with this key exists already.
    #[error("a row with this key exists already")]
    Exists,
    /// The table to be bulk-loaded has rows, or an open snapshot still shows some.
    #[error("the table {name:?} has rows, or an open snapshot shows some; load into a table without rows")]
    NotEmpty {
        /// The table's name.
        name: String,
    },
    /// A row of a bulk load has a key that is not above the key of the previous row.
    #[error("a row of a bulk load is out of order; sort the rows by key, and give each key only once")]
    OutOfOrder,
    /// There is no table of this name; it was dropped, or never existed.
    #[error("there is no table {name:?}; it was dropped, or never created")]
    NoTable {
        /// The table's name.
        name: String,
    },
    /// A table of this name exists already.
    #[error("there is a table {name:?} already; drop it first, or choose another name")]
    TableExists {
        /// The table's name.
        name: String,
    },
    /// A row's key or value does not fit the types with which the program reads the table.
    #[error(
        "a row of the table {table:?} is not of the types {key} and {value}; read it with the types that it \
         was written with"
    )]
    NotOfType {
        /// The table's name.
        table: String,
        /// The key type that the caller asked for.
        key: &'static str,
        /// The value type that the caller asked for.
        value: &'static str,
    },
    /// The key is too long.
    #[error("a key of {len} bytes is too long; at most {KEY_LIMIT}")]
    KeyTooLong {
        /// The key's length in bytes.
        len: usize,
    },
    /// The row's value is too long.
    #[error("a row of {len} bytes is too long; at most {VALUE_LIMIT}")]
    RowTooLong {
        /// The value's length in bytes.
        len: u64,
    },
    /// An earlier step of the transaction failed, so the transaction can only be rolled back, as a whole or to a
    /// savepoint.
    #[error("a step of the transaction failed, and it can only be rolled back, as a whole or to a savepoint")]
    Finished,
    /// A savepoint or a table belongs to another transaction or to another store.
    #[error("{what} belongs to another store or transaction")]
    Foreign {
        /// What belongs to another transaction or store.
        what: &'static str,
    },
    /// The options ask for a page size that differs from the store's.
    #[error(
        "the store has pages of {has} bytes, and the options ask for {asked}; the page size of a store \
             cannot be changed"
    )]
    PageSize {
        /// The store's page size in bytes.
        has: u32,
        /// The page size that the options ask for, in bytes.
        asked: u32,
    },
    /// The file has a version of the format that this build cannot read.
    #[error("{} has format version {version}, which this build does not read; use the build that wrote it", path.display())]
    Version {
        /// The path of the file.
        path: PathBuf,
        /// The version that the file has.
        version: u32,
    },
    /// The directory contains something that is not a store.
    #[error("{} is not a store ({why}); name an empty directory, or the directory of a store", path.display())]
    NotAStore {
        /// The path of the directory.
        path: PathBuf,
        /// The reason why it is not a store.
        why: String,
    },
    /// An option is not valid, or options contradict each other.
    #[error("{what}")]
    Invalid {
        /// What is not valid, and what would be valid.
        what: String,
    },
}

impl Error {
    /// Returns whether the same transaction may succeed if it is run again: true for [`Deadlock`](Self::Deadlock) and
    /// [`Timeout`](Self::Timeout).
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Deadlock | Self::Timeout)
    }

    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull {
            return Self::full("the disk is full; free space on it, and try again");
        }
        Self::Io { what: format!("{what} {}", path.display()), source }
    }

    pub(crate) fn full(what: &str) -> Self {
        Self::Full { what: what.to_owned() }
    }

    pub(crate) fn invalid(what: &str) -> Self {
        Self::Invalid { what: what.to_owned() }
    }

    pub(crate) fn corrupt(what: &str) -> Self {
        Self::Corrupt { what: what.to_owned(), page: None }
    }

    /// Returns the error for a page whose content is not valid.
    pub(crate) fn page(page: PageId, error: FormatError) -> Self {
        Self::Corrupt { what: error.to_string(), page: Some(page) }
    }

    /// Returns the error for a failed operation of a medium.
    pub(crate) fn medium(what: &str, error: MediumError) -> Self {
        match error {
            MediumError::NoSpace => {
                Self::Full { what: format!("the disk is full: {what}; free space on it, and try again") }
            }
            error => Self::Io { what: what.to_owned(), source: io::Error::other(error) },
        }
    }
}
