//! The VFS that stands between stock SQLite and Duralite's engines.
//!
//! [`register`] wraps the default VFS of the SQLite that calls. A main database gets a
//! [`db::Db`], its `-wal` a [`wal_file::Wal`] when an engine serves it; every other file is the
//! base VFS's own, untouched. The numbered invariants are those of `docs/invariants.md`.

mod absorb;
mod attachment;
mod base;
mod bound;
mod connection;
mod db;
mod db_file;
mod errors;
mod functions;
mod guard;
mod helper;
mod home;
mod hosts;
mod index;
mod lock;
mod maintenance;
mod opening;
mod outside;
mod patience;
mod places;
mod pragma;
mod refusals;
mod registration;
mod settings;
mod strict;
mod super_journal;
mod vfs;
mod waiting;
mod wal_file;

pub use refusals::{COUNT, last_error, last_error_text, last_refusal};
pub use registration::{Entry, OLDEST_SQLITE, RegisterError, VFS_NAME, register};
