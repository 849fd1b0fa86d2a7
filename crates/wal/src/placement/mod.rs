//! The log directory: a directory of log files, and the rules by which a log and a database belong together (invariants
//! 3 and 13).
//!
//! `whose` decides to which database a log belongs, and changes nothing. The other modules act on these decisions.
//! `create` makes a log, and `attach` opens one. Both use `names` for the names of its files, `find` to search and
//! clear the directory, and `segment` for its shared memory. `outside` attaches a log for a user who may only read.
//! `deleted` finds and copies a log that was deleted while in use, and `inspect` reads a log for tools.

mod attach;
mod create;
mod deleted;
mod find;
mod inspect;
mod names;
mod outside;
mod segment;
mod whose;

pub use crate::hooks::{FileStep, Hook, Hooked, hook, nvm as hooked_nvm};
pub(crate) use crate::shared::log_file::pause;
pub use crate::shared::log_file::{Pause, pause_for};
pub(crate) use attach::{OpenLog, attach, relation};
pub(crate) use create::{collect_leftovers, create};
pub(crate) use deleted::is_deleted;
pub use deleted::{DeletedLog, find_deleted};
pub use find::made_for;
pub(crate) use find::{remove_unused, where_now};
pub use inspect::{
    About, Glance, Looked, Reading, Watch, describe, look, look_through, open_log_read_only, salvage, walk,
};
pub(crate) use names::segment as segment_path;
pub use names::{is_log_name, sync_names};
pub use outside::Outside;
pub use segment::{
    ACKNOWLEDGED, BEGINS_AFTER, DELETED_LOG_COPIED, DELETION_SEEN, GUARD_CONFIRMED, GUARD_KIND,
    HOME_FAILURES, HOME_SYNCED, HOME_WRITES, LOCKS_BYTES, LOCKS_OFFSET, LOG_DELETED, OVERDUE_BEFORE,
    READABLE, RESTART_UNTIL,
};
pub(crate) use whose::Relation;
pub use whose::{Claim, FoundLog, claim};
