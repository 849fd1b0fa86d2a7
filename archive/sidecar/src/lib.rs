//! The sidecar: copies the commits of databases into archives while programs use them, and archives back into databases.
//!
//! `replicate` is the loop of one database, `replica` a copy that follows an archive, and `promote` makes a primary of one.
//! The loop reads the log by `source`, and has a snapshot held still by `hold`, a child process with SQLite in it.
//! `backlog` reads what closed logs have left. `group` makes LTX files of commits. `uploader` decides when the next group
//! begins, and acknowledges; `upload` uploads a group or a snapshot, and `fetch` fetches an object. `beside` is what is
//! remembered beside the database, and `config` what people say.

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
