//! Primaries, standbys and readers of one archive under a schedule explorer.
//!
//! The actors run the product's code on an object store in memory ([`world`]). Every request waits there
//! until the explorer lets it arrive. A request may be late or repeated, and its answer may be lost. The
//! explorer may kill an actor whenever the actor waits. The actor then begins again with what is on its disk.
//! [`explore`] tries every order for a small scenario, and [`draw`] draws orders for a larger one. After each
//! step the [`judge`] restores the database from the store. No schedule depends on time.

#![forbid(unsafe_code)]
#![allow(clippy::panic)] // a violation fails the test

pub mod actors;
pub mod database;
pub mod explorer;
pub mod judge;
pub mod world;

pub use explorer::{Limits, Scenario, draw, explore};
