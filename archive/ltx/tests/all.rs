//! Tests of the codec through its public interface.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

mod common;
mod damaged;
mod golden;
mod refused;
mod round_trip;
