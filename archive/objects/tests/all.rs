//! Tests of the archive through its public interface.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod common;
mod damaged;
mod judges;
mod network;
mod restore;
mod straddled;
