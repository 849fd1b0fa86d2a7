//! Tests of the checker. Some histories are written by hand, and others are random.

mod anomalies;
mod finds;
mod random;
mod told;
mod verdicts;
