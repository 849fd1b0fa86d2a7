//! The metrics of processes: each process counts its use of a log, in memory that other processes can read. It counts
//! its commits by latency, and other events where they happen.
//!
//! Each process slot has a block of its own. So no two processes write the same cache line, and a commit stores its
//! counts without a system call. Only the slot's process writes to its block, and no decision depends on the contents:
//! a reader may find numbers that a process left at any instruction, or invented.
//!
//! **A slot that is used again continues** the counts of the process before it, so that the sums over all blocks only
//! grow until the segment begins anew. A block names the beginning of the segment from which it counts
//! ([`INCARNATION`](crate::placement)); a block that names another beginning is old and is ignored. So nothing has to
//! be cleared when the segment begins anew: each process clears its own block when it joins.
//!
//! The blocks are at the end of the segment, after the engine's part. They do not outlive the last process.

mod histogram;
mod layout;
mod read;
mod record;
#[cfg(test)]
mod tests;

pub use histogram::{BUCKETS, Histogram, bucket_of, limit_of};
pub use layout::METRICS_BYTES;
pub(crate) use read::read_all;
pub use read::{ProcessMetrics, fill};
pub use record::{Counter, Recorder};
