//! Duralite's engines: where SQLite's write-ahead log really goes.
//!
//! [`Log`] is what a VFS uses: one attached log, addressed by the byte offsets of the `-wal`
//! file that SQLite believes in. Below it [`stream`] turns bytes into frames and decides when
//! a transaction is sealed, and an [`engine::Engine`] keeps the frames. [`pool`] finds, makes and
//! identifies log files; [`home`] is what stands between pages and the database file; [`offline`] works on them without SQLite.
//!
//! The numbered invariants are those of `docs/invariants.md`.

#![forbid(unsafe_code)]

mod chains;
pub mod engine;
mod error;
pub mod home;
mod log;
pub mod nvwal;
pub mod offline;
pub mod pool;
mod settings;
pub mod stream;
pub mod waldio;
pub mod walk;

pub use error::{ErrorKind, JournalError};
pub use log::Log;
pub use nvwal::{HeapMode, NvwalOptions, SyncMode};
pub use pool::{DatabaseIdentity, PoolConfig, PoolKind};
pub use settings::EngineOptions;
pub use waldio::WaldioOptions;
