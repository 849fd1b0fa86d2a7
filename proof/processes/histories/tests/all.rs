//! The tests of the checker: histories written by hand, and random ones.

mod anomalies;
mod finds;
mod random;
mod told;
mod verdicts;
