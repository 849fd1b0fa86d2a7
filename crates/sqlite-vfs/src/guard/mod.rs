//! The guard: the mark in a database's header that keeps programs without Duralite out while a log holds
//! commits. This module puts the guard on when a database's log is opened, and takes it off when the log is
//! deleted.
//!
//! [`states`] has the states of a guard and the steps between them. The other modules decide when to take a
//! step:
//!
//! | SQLite | module | the steps |
//! | --- | --- | --- |
//! | opens a database file | [`places`] | none; a log that came along with a copy is written home |
//! | takes SHARED, opens the WAL | [`opening`] | a guard goes on, or a provisional guard without a log comes off |
//! | writes the first frame | `callbacks::wal_file` | the guard is made final, or is written again |
//! | deletes the WAL | [`closing`] | the guard comes off |
//! | writes with a rollback journal, closes the database | [`journal`] | the guard goes on under EXCLUSIVE, and comes off with the last connection |

pub mod child;
mod closing;
#[cfg(feature = "controls")]
mod controls;
pub mod helper;
pub mod journal;
mod line;
mod opening;
pub mod places;
mod states;
mod waits;

pub use closing::{delete_wal, lift_for_journal, lift_kept, unlock};
pub use opening::{has_wal, lock, open_wal};
pub use states::{Guard, sync_lifted};
