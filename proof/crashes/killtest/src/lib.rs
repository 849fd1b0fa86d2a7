//! Attacks Duralite to show that the death of any process at any instruction loses nothing (invariant 7).
//!
//! Processes of several roles share one database. The run kills one, some or all of them at once with SIGKILL
//! at random moments. Each transaction takes its number from a counter in the database, so the numbers follow
//! the order of commits across all processes. A file holds the acknowledgements. An auditor, which is a
//! separate process, compares the database with that file. The run replaces a killed process while the others
//! continue.
//!
//! [`run`] carries out a [`Plan`]. It starts the processes through a [`Worker`]. Each process runs
//! [`worker_main`].

mod acks;
mod board;
mod crowd;
mod lanes;
mod ledger;
mod plan;
mod report;
mod role;
mod run;
mod schedule;
mod site;
mod soak;
mod stacks;
mod worker;

pub use duralite_testkit::{Acknowledge, Engine};
pub use plan::Plan;
pub use report::Report;
pub use role::{Phase, Role};
pub use run::run;
pub use schedule::{Check, Schedule, Step, Stop};
pub use soak::{Outcome, Soak, has_two_users, plan as soak_plan, soak, table as soak_table};
pub use worker::{Worker, worker_main};
