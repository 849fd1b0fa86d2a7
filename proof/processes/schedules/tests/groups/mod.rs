//! Group commit under explored schedules. The processes seal under the WRITE lock, and one leader at a time
//! writes for all. Any of them may die at any operation, or be stopped.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod commits;
mod leaders;
mod world;
