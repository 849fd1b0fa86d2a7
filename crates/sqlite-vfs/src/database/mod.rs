//! One open main database, and what SQLite does with it: its file, its locks and its wal-index.

mod concurrent;
mod db;
mod file;
mod home;
mod journal;
pub mod lock;
pub mod replicated;
pub mod restart;
pub mod save;
mod shm;
pub mod strict;
pub mod super_journal;
pub mod waiting;
mod wal_index;

use concurrent::Concurrent;
pub use db::{Db, Names, Prepared, Serving};
pub use file::OpenedFile;
pub use journal::{JournalStore, begins_journal};
