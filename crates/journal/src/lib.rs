//! Duralite's engines: they store SQLite's write-ahead log.
//!
//! A VFS uses [`Log`]: one attached log, addressed by the byte offsets of the `-wal` file that SQLite believes it
//! writes. Below the log, [`stream`] turns bytes into frames and decides when a transaction is sealed, and an
//! [`engine::Engine`] stores the frames. [`engines`] is the registry of engines, each with its [`descriptor`].
//! [`media`] describes the media on which engines keep logs. [`directory`] finds, creates and identifies log files.
//! [`home`] is the layer between pages and the database file, [`rollback`] stores rollback journals, and [`offline`]
//! works on logs and databases without SQLite.
//!
//! The numbered invariants are those of `docs/invariants.md`.

#![forbid(unsafe_code)]

mod checkpoint;
mod delta_chains;
pub mod descriptor;
pub mod directory;
pub mod engine;
pub mod engines;
mod error;
pub mod figures;
pub mod follow;
mod generations;
mod group;
mod heap;
pub mod home;
mod hooks;
mod identity;
mod images;
mod listing;
mod log;
mod log_file;
mod log_memory;
pub mod mapped_home;
pub mod media;
pub mod nvwal;
pub mod offline;
mod past_cache;
pub mod pins;
pub mod ppl;
mod recover;
pub mod rollback;
pub mod salvage;
pub mod scratchpad;
pub mod settings;
pub mod stream;
pub mod waldio;
pub mod walk;

pub use descriptor::{Descriptor, LogDirectory};
pub use error::{ErrorKind, JournalError};
pub use follow::{FollowedTransaction, Follower};
pub use identity::DatabaseIdentity;
pub use listing::{ListedTransaction, Listing};
pub use log::Log;
pub use nvwal::{HeapMode, NvwalOptions, SyncMode};
pub use ppl::PplOptions;
pub use recover::recover;
pub use scratchpad::ScratchpadOptions;
pub use settings::EngineOptions;
pub use waldio::WaldioOptions;
