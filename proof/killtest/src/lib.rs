//! Proof by attack that the death of any process at any instruction loses nothing (invariant 7).
//!
//! Processes of several roles share one database and are killed with SIGKILL at random moments,
//! one, some, or all at once. Each transaction has a number, which it takes from a counter in the
//! database, so that the order of commits is the order of the numbers whoever makes them. What was
//! acknowledged stands in a file; an auditor, a process of its own, compares. A process that was
//! killed is replaced, the others go on.
//!
//! [`run`] carries out a [`Plan`]; the processes are started through a [`Worker`] and run
//! [`worker_main`].

mod acks;
mod board;
mod crowd;
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
