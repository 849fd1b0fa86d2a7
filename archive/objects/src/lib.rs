//! The archive of a database in an object store: which objects it has, and what can be restored from them.
//!
//! An archive has *generations*, one for each primary that the database has had. Each generation has a snapshot of the
//! database and the transactions after it, as LTX files in the layout that Litestream 0.5 reads. This crate knows
//! nothing of SQLite's log.

#![forbid(unsafe_code)]

mod archive;
mod chain;
mod claims;
mod client;
mod compaction;
mod confirm;
mod controls;
mod error;
mod fetch;
mod keys;
mod list;
mod location;
mod owner;
mod plan;
mod primary;
mod prune;
mod records;
mod restore;
mod retry;
mod settled;
mod verify;

pub use archive::{Archive, Created};
pub use chain::Missing;
pub use claims::{Begin, Claimed, Inherited, Resumed};
pub use compaction::{SPANS, Times};
#[cfg(feature = "controls")]
pub use controls::{Rule, break_rule};
pub use error::ArchiveError;
pub use fetch::{Progress, Report};
pub use keys::{Generation, Key, LEVELS, Layout, Object, Replica, SNAPSHOTS};
pub use list::{Level, Listed};
pub use location::Location;
pub use owner::{Owner, random_token};
pub use plan::{Moment, Plan, Step, Target};
pub use primary::Primary;
pub use prune::{Policy, Pruned, now_ms};
pub use records::{Base, Claim, Line, Start};
pub use restore::{RestoreOptions, Restored};
pub use retry::{Backoff, Pauses, Retry};
pub use settled::{Next, Settled};
pub use verify::{Finding, Intact, Verified};
