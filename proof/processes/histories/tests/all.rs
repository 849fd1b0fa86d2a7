//! The tests of the checker, with histories written by hand, and with random
//! ones.

mod anomalies;
mod finds;
mod random;
mod told;
mod verdicts;
