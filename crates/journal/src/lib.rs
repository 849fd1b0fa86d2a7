//! Duralite's engines: where SQLite's write-ahead log really goes.
//!
//! [`Log`] is what a VFS uses: one attached log, addressed by the byte offsets of the `-wal`
//! file that SQLite believes in. Below it [`stream`] turns bytes into frames and decides when
//! a transaction is sealed, and an [`engine::Engine`] keeps the frames. [`engines`] is the registry of them,
//! each by its [`descriptor`], and [`media`] what they keep logs in. [`directory`] finds, makes and identifies log
//! files; [`home`] is what stands between pages and the database file, [`rollback`] what keeps its rollback journals; [`offline`] works on them without SQLite.
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
