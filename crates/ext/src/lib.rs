#![doc = include_str!("../README.md")]

mod entry;
mod linked;
mod run;
mod uri;

pub use duralite_sqlite_vfs::{RegisterError as Error, last_error, last_refusal, version};
pub use entry::{
    duralite_account, duralite_account_begin, duralite_last_error, duralite_last_refusal,
    duralite_refusal_count, duralite_version, sqlite3_duralite_auto, sqlite3_duralite_init,
    sqlite3_duralitedefault_init, sqlite3_extension_init,
};
pub use linked::{register, register_default};
pub use run::{Attempts, run};
pub use uri::uri;
