//! The functions that SQLite calls: those of the VFS, of a main database, and of a WAL or a rollback journal
//! that is in a log. This module also has the file control that leads from a connection to its database.

pub mod ask;
mod db_file;
mod file;
mod journal_file;
mod pragma;
pub mod vfs;
mod wal_file;
