//! Duralite's engines: where SQLite's write-ahead log really goes.
//!
//! [`Log`] is what a VFS uses: one attached log, addressed by the byte offsets of the `-wal`
//! file that SQLite believes in. Below it [`stream`] turns bytes into frames and decides when
//! a transaction is sealed, and an [`engine::Engine`] keeps the frames. [`pool`] finds, makes and
//! identifies log files; [`offline`] works on them without SQLite.
//!
//! The numbered invariants are those of `docs/invariants.md`.

#![forbid(unsafe_code)]

pub mod engine;
mod error;
mod log;
pub mod nvwal;
pub mod offline;
pub mod pool;
pub mod stream;

pub use error::{ErrorKind, JournalError};
pub use log::Log;
pub use nvwal::{HeapMode, NvwalOptions, SyncMode};
pub use pool::{DatabaseIdentity, PoolConfig, PoolKind};
