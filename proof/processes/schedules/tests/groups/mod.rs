//! Tests group commit under explored schedules. The processes seal their transactions under the WRITE lock,
//! and one leader at a time writes for all of them. Any process may die or be stopped at any operation.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod commits;
mod leaders;
mod world;
