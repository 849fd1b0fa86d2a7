//! What SQLite calls: the VFS, a main database, and a WAL that lives in a log.

mod db_file;
mod journal_file;
mod pragma;
pub mod vfs;
mod wal_file;
