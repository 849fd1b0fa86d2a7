//! The VFS that stands between stock SQLite and Duralite's engines.
//!
//! [`register`] wraps the default VFS of the calling SQLite. A main database gets a [`database::Db`]. Its
//! `-wal` gets a [`callbacks::wal_file::Wal`] when an engine serves it. The base VFS serves every other file
//! unchanged. The numbered invariants are those of `docs/invariants.md`.
//!
//! The modules, from the top layer down; each uses those below it:
//!
//! | module | holds |
//! | --- | --- |
//! | [`mod@register`] | the entry point |
//! | [`sql`] | the functions and tables of SQL |
//! | [`callbacks`] | the functions that SQLite calls |
//! | [`registration`] | the databases that are open through one SQLite |
//! | [`guard`] | opening and closing a log: the guard, and when it may be put on |
//! | [`background`] | the thread that checkpoints and flushes in the background |
//! | [`database`] | an open database: its file, its locks, its wal-index, restarts of an outgrown log |
//! | [`attachment`] | the logs that this process has attached |
//! | [`sqlite`] | the calling SQLite, the VFS below this one, the VFS's own connections |
//! | [`settings`] | the settings, and where they come from |
//! | [`status`] | what serves a database, and what was done |
//! | [`account`] | a report of what served the databases that this process opened |
//! | [`mod@version`] | version and build id |

pub mod account;
mod attachment;
mod background;
mod callbacks;
mod database;
mod errors;
mod guard;
mod refusals;
mod register;
mod registration;
mod settings;
mod shield;
mod sql;
mod sqlite;
mod status;
mod version;

pub use refusals::{COUNT, last_error, last_error_text, last_refusal};
pub use register::{Entry, register};
pub use settings::{check as check_setting, set_defaults};
pub use sqlite::{OLDEST_SQLITE, RegisterError, VFS_NAME};
pub use version::{version, version_text};
