//! The sidecar copies the commits of databases into archives while programs use the databases. It also restores
//! databases from archives.
//!
//! `replicate` is the loop that archives one database. `replica` is a copy of a database that follows an archive, and
//! `promote` turns such a copy into a primary. The loop reads the log through `source`. `hold` holds a snapshot, in a
//! child process that runs SQLite. `backlog` reads the commits that closed logs have left behind. `group` makes LTX
//! files from commits. `uploader` decides when the next group of commits begins, and acknowledges commits. `upload`
//! uploads a group or a snapshot, and `fetch` fetches an object. `beside` is the file beside the database, and `config`
//! has the users' configuration.

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
