//! The sidecar copies the commits of databases into archives while programs use the databases. It also makes
//! databases of archives.
//!
//! `replicate` is the loop of one database. `replica` is a copy that follows an archive, and `promote` makes a
//! primary of such a copy. The loop reads the log by `source`. `hold` holds a snapshot, in a child process that runs
//! SQLite. `backlog` reads what closed logs have left. `group` makes LTX files of commits. `uploader` decides when
//! the next group begins, and acknowledges commits. `upload` uploads a group or a snapshot, and `fetch` fetches an
//! object. `beside` is the file beside the database, and `config` has what users have configured.

#![forbid(unsafe_code)]

pub mod backlog;
pub mod beside;
pub mod config;
mod fetch;
pub mod group;
pub mod hold;
pub mod promote;
pub mod replica;
pub mod replicate;
pub mod source;
pub mod upload;
pub mod uploader;
