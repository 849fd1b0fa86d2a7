//! Shared code of the tests of Duralite as a whole. The tests run Duralite in their own process, through the
//! SQLite that rusqlite bundles. If a test needs a second process, it runs the program `duralite-actor`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)] // a failed helper is a failed test

mod above;
mod acks;
mod actor;
mod arguments;
mod disguise;
mod engine;
mod failing;
mod fixture;
mod fork;
mod gate;
mod halts;
mod ledger;
mod loop_disk;
mod register;
mod rig;
mod rng;
mod sessions;
mod side_engine;
mod side_file;
mod sql;
mod steps;
mod thread_end;
mod undo_file;
mod vec_engine;

pub use above::{ABOVE, register_above};
pub use acks::Acks;
pub use actor::Actor;
pub use arguments::{Acknowledge, Arguments, engine_named};
pub use engine::Engine;
pub use failing::{noting_writes, with_stuck_guard, without_space_for_pages};
pub use fixture::{Fixture, GUARD, ROLLBACK_GUARD, VERSIONS, snapshot, stock_shell};
pub use fork::{Ended, Forked, fork};
pub use gate::Gate;
pub use halts::halt_before_lock;
pub use ledger::Ledger;
pub use loop_disk::{DeviceCounts, LoopDisk};
pub use register::register;
pub use rig::{Overlay, TinyDirectory, require_rigs, skip};
pub use rng::{Rng, for_seeds};
pub use sessions::{
    Did, Dids, LISTS_SCHEMA, Reads, SessionPlan, Work, answer, logic_schema, read_lists, run_sessions,
};
pub use side_file::SideFile;
pub use sql::{Outcome, code, connect, dump, integrity, one, run, stock};
pub use steps::{die_at_step, step};
pub use thread_end::when_thread_ends;
