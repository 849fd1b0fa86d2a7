//! Runs primaries, standbys and readers of one archive under a schedule explorer.
//!
//! The actors run the product's code on an object store in memory ([`world`]). There, every request waits
//! until the explorer lets it arrive. A request may arrive late or twice, and its answer may be lost. The
//! explorer may kill an actor whenever the actor waits. The actor then begins again with what is on its disk.
//! For a small scenario [`explore`] tries every order, and for a larger one [`draw`] tries random orders.
//! After each step the [`judge`] restores the database from the store. No schedule depends on time.

#![forbid(unsafe_code)]
#![allow(clippy::panic)] // a violation fails the test

pub mod actors;
pub mod database;
pub mod explorer;
pub mod judge;
pub mod world;

pub use explorer::{Limits, Scenario, draw, explore};
