//! Tests of failovers, under schedules that the explorer chooses.
#![allow(clippy::panic)] // a failed helper is a failed test

mod controls;
mod failovers;
mod scenarios;
