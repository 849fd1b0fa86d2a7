//! Measures the archive, and compares it with Litestream. The measurements alternate between the two. They
//! are: how much replication slows the writers down, how far it lags, what it uploads, how long commits wait
//! for the archive, how fast a database is restored, and how much memory the replicating program uses.
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
