//! Tests the claim that stock SQLite and Duralite can use one database at the same time, by attacking it.
//!
//! Processes with stock SQLite (through its `unix` VFS) and with Duralite open the same two databases. They
//! commit, read, change the journal mode, checkpoint and close all the time. Some of them are killed or
//! stopped. Each writer numbers its commits, and records each commit that SQLite has acknowledged. Every
//! reader checks its snapshot against these records. At the end an audit checks the databases.
//!
//! [`run`] carries out one round according to a [`Plan`]. [`run`] starts the processes through a [`Worker`],
//! and each process runs [`worker_main`].

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
