//! The guard: putting it on when a database's log is opened, taking it off when the log goes.

mod absorb;
pub mod child;
#[cfg(feature = "controls")]
mod controls;
mod gate;
mod header;
pub mod helper;
pub mod journal;
mod lifting;
mod opening;
pub mod places;
mod raising;
mod waits;

pub use header::is_provisional;
pub use lifting::{delete_wal, lift_for_journal, lift_kept, unlock};
pub use opening::{has_wal, lock, open_wal};
pub use raising::{harden, put_again};
