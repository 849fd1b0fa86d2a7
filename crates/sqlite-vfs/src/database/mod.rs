//! One open main database, and what SQLite does with it: its file, its locks and its wal-index.

mod commit_clock;
mod db;
mod first_region;
mod home;
mod index;
mod index_locks;
mod journal;
mod journal_store;
pub mod lock;
mod mappable;
pub mod restart;
pub mod save;
pub mod strict;
pub mod super_journal;
pub mod waiting;

pub use db::{Db, Names, Prepared, Serving, named_file};
pub use journal::begins_journal;
pub use journal_store::JournalStore;
pub use mappable::Mappable;
