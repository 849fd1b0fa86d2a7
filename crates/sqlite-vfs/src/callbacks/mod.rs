//! What SQLite calls: the VFS, a main database, and a WAL or a rollback journal that lives in a log. Besides,
//! the way from a connection to its database.

pub mod ask;
mod db_file;
mod file;
mod journal_file;
mod pragma;
pub mod vfs;
mod wal_file;
