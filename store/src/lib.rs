//! A transactional store for Rust programs. Tables are ordered by key, and many threads can run serializable
//! transactions at once. The log is designed for persistent memory, and works well on any disk (NV-Logging, VLDB 2014).
//!
//! ```
//! use duralite_store::{Error, Options, Store, Transaction};
//! # let dir = tempfile::tempdir()?;
//! let store = Store::open(dir.path().join("bank"), Options::default())?;
//! let accounts = store.table("accounts")?;
//! store.run(|tx: &mut Transaction| -> Result<(), Error> {
//!     tx.put(&accounts, b"alice", b"100")?;
//!     tx.put(&accounts, b"bob", b"50")
//! })?;
//! let mut tx = store.begin();
//! for row in tx.scan(&accounts, ..) {
//!     let (key, value) = row?;
//!     println!("{key:?} has {value:?}");
//! }
//! tx.commit()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! - After a commit has returned, it survives whatever the log's medium survives: a power loss if the log is on a disk
//!   or in NVRAM, the death of the process if it is in emulated memory.
//! - Transactions are serializable. A transaction holds its row locks until it ends, and no other transaction can
//!   insert a row into a range that this transaction has scanned.
//! - A transaction that does not commit leaves nothing behind.
//! - After a failure the store may not know what is durable. It then stops ([`Error::Poisoned`]). Opening it again
//!   recovers it.
//!
//! `docs/invariants.md` lists the numbered invariants, and `docs/store/format.md` describes the bytes.

#![forbid(unsafe_code)]

/// The beginners' guide, whose code blocks run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/store/guide.md")]
struct Guide;

mod active;
mod admission;
mod archive;
mod backup;
mod buffer;
mod codec;
mod compact;
mod controls;
mod counter;
mod engine;
mod error;
pub mod format;
mod forward;
mod free;
mod keeper;
mod load;
mod locks;
// This file is not in the module `locks`. The schedule explorer compiles that module too, but without these tests.
#[cfg(test)]
#[path = "locks/tests.rs"]
mod locks_tests;
mod log;
#[cfg(test)]
#[path = "log/tests/mod.rs"]
mod log_tests;
mod media;
mod metrics;
mod noting;
mod opening;
mod options;
mod page_file;
mod pager;
mod poison;
mod range;
mod reader;
mod reap;
mod recovery;
mod restore;
mod running;
mod salvage;
mod snapshot;
mod space;
mod steps;
mod store;
mod sync;
mod table;
mod transaction;
mod tree;
mod typed;
mod undo;
mod value_reader;
mod verify;
mod versions;
mod waiters;

pub use archive::{Keep, Pruned};
pub use codec::{Key, Value};
pub use compact::Compacted;
#[cfg(feature = "controls")]
#[doc(hidden)]
pub use controls::Rule;
pub use error::{Error, VALUE_LIMIT};
pub use load::BulkLoad;
pub use media::{Media, WhichLog};
pub use metrics::Metrics;
pub use options::{Durability, LogMedium, Options, Scheme};
pub use reader::{Reader, Row};
pub use restore::{RestoreTo, Restored};
pub use salvage::Salvaged;
pub use snapshot::{Snapshot, SnapshotScan};
pub use store::Store;
pub use table::Table;
pub use transaction::{Savepoint, Scan, Ticket, Transaction};
pub use typed::{TypedRows, TypedTable};
pub use value_reader::ValueReader;
pub use verify::Verified;
