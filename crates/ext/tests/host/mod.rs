//! Tests of the library in the system's `sqlite3` shell.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

mod engine;
mod pass_through;
mod refusals;
mod shell;
mod strict;
mod tables;
