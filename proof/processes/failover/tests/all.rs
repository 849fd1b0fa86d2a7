//! Failovers under explored schedules.
#![allow(clippy::panic)] // a failed helper is a failed test

mod controls;
mod failovers;
mod scenarios;
