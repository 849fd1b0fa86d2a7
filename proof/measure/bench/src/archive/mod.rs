//! Measures the archive in comparison with Litestream, in turns: what a program that replicates costs the
//! writers, how far it lags, what it uploads, what waiting for the archive takes, how fast a database is
//! restored, and how much memory the program has.
//!
//! Both programs replicate into an S3 server on loopback, which keeps its objects as files on the same disk.

mod memory;
mod programs;
mod proxy;
mod reached;
mod restore;
mod run;
mod scale;
mod side;
mod waiting;
mod writers;

pub use restore::restore;
pub use waiting::replicated;
pub use writers::writers;
