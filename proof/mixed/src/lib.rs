//! Proof by attack that stock SQLite and Duralite can use one database at the same time.
//!
//! Processes of stock SQLite, through its `unix` VFS, and processes of Duralite open the same two databases, commit, read,
//! change the journal mode, checkpoint and close, all the time. Some are killed or stopped. Each writer numbers its commits, and
//! writes down each one that SQLite has acknowledged. Every reader checks what it sees against that; an audit checks what is left.
//!
//! [`run`] carries out one round, as a [`Plan`] says; the processes are started through a [`Worker`] and run [`worker_main`].

mod acks;
mod audit;
mod bank;
mod life;
mod mind;
mod plan;
mod report;
mod round;
mod site;
mod slices;
mod verdict;
mod worker;

pub use duralite_testkit::{Acknowledge, Engine};
pub use plan::Plan;
pub use report::Report;
pub use round::run;
pub use verdict::{Side, Verdict, verdict};
pub use worker::{Worker, worker_main};
