//! Logs for Duralite, and the engines that store them.
//!
//! A VFS uses [`Log`], an attached log. SQLite believes that the log is a `-wal` file, so [`Log`] takes byte offsets in
//! that file. Below the log, [`log::stream`] turns bytes into frames and decides when a transaction is sealed, and an
//! [`engine::Engine`] stores the frames. [`engines`] is the registry of engines, each with its [`engine::descriptor`].
//! [`engine::media`] describes the media on which engines keep logs. [`placement`] finds, creates and identifies log
//! files. [`engine::home`] is the layer between pages and the database file, [`engine::rollback`] stores rollback
//! journals, and [`log::offline`] works on logs and databases without SQLite.
//!
//! `invariant N` in a comment refers to `docs/invariants.md`.

#![forbid(unsafe_code)]

pub mod archive;
pub mod engine;
pub mod engines;
mod error;
mod hooks;
pub mod log;
pub mod metrics;
pub mod placement;
pub mod shared;

pub use engine::descriptor::{Descriptor, LogPlacement};
pub use engine::settings::EngineOptions;
pub use engines::nvwal::{HeapMode, NvwalOptions, SyncMode};
pub use engines::ppl::PplOptions;
pub use engines::scratchpad::ScratchpadOptions;
pub use engines::waldio::WaldioOptions;
pub use error::{ErrorKind, LogError};
pub use log::follow::{FollowedTransaction, Follower, ListedTransaction, Listing};
pub use log::{Log, recover};
pub use shared::identity::DatabaseIdentity;
