//! The tests of the store as its users see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod ahead;
mod archive;
mod common;
mod compact;
mod copies;
mod crashes;
mod damaged;
mod faults;
mod gaps;
mod golden;
mod idle;
mod killed;
mod kills;
mod load;
mod load_copies;
mod long;
mod middle;
mod model;
mod mutants;
mod power;
mod prune;
mod reads;
mod refused;
mod room;
mod rows;
mod serializable;
mod small_cache;
mod snapshots;
mod tables;
mod typed;
