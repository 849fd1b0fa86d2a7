//! Tests the sidecar from end to end. The tests run the real program beside databases that are used, killed,
//! moved and taken over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod common;
mod failover;
mod groups;
mod kills;
mod lines;
mod load;
mod memory;
mod moments;
mod storms;
mod trouble;
