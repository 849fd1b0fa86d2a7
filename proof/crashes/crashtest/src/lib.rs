//! Explores what a crash may leave of a database and its log, with the code that users run.
//!
//! A workload of SQL runs under [`hook`]s that record every store, flush, fence, write and sync of the
//! engines, of the VFS and of SQLite itself. [`model`] says what is durable at each moment of the recording,
//! and builds the states that a crash may leave. [`memory`] recovers each of these states with the same code
//! that users run. [`oracle`] compares the result with the [`transactions`] of the workload; stock SQLite has
//! computed what the database holds after each of them.

mod crowd_of_many;
#[cfg(test)]
mod errors_of_the_database;
mod event;
mod failure;
mod fault;
mod faults;
mod faults_of_many;
mod hooks;
mod lying;
mod many_transactions;
mod many_writers;
mod memory;
mod model;
mod mutations;
mod oracle;
mod power;
mod recorder;
mod replay;
mod setup;
mod sites;
mod sql;
mod stage;
mod transactions;
mod workers;
mod workload;

pub use crowd_of_many::explore_crowd;
pub use duralite_logdisk::FileSystemKind;
pub use event::Recording;
pub use failure::Violation;
pub use fault::{FaultPlan, FaultTally};
pub use faults::{inject, inject_where_the_guard_is_lifted};
pub use hooks::register;
pub use lying::{LyingPlan, LyingTally, lie};
pub use memory::{Explorer, Limits, Plan, Tally, explore, explore_counting};
pub use mutations::{Mutants, Mutation, Outcome};
pub use power::{PowerPlan, PowerTally, cut, cut_counting, missing_rig};
pub use replay::replay;
pub use setup::{Engine, Setup};
pub use stage::Stage;
pub use workers::Verdict;
pub use workload::{Length, Run, record};
