//! What each process counts of its use of a log, in memory that others can read: commits by how long they took, and what else
//! is counted where it happens anyway.
//!
//! Each process slot has a block of its own, so that no two processes write the same line, and a commit stores in it without a
//! system call. Nobody but its process writes a block, and nothing goes by what is in it: whoever looks reads numbers that a
//! process may have left at any instruction, or made up.
//!
//! **A slot that is used again goes on** where the process before it stopped, so that the sums over all blocks only grow, until
//! the shared memory begins anew. A block names the beginning that it counts from ([`INCARNATION`](crate::directory)); one that
//! names another is of an earlier time and counts for nothing. So nothing has to be cleared when the memory begins anew: each
//! process clears its own block when it joins.
//!
//! The blocks are the end of the segment, behind the engine's part. None of it survives the last process.

mod histogram;
mod layout;
mod read;
mod record;
#[cfg(test)]
mod tests;

pub use histogram::{BUCKETS, Histogram, bucket_of, limit_of};
pub use layout::FIGURES_BYTES;
pub(crate) use read::read_all;
pub use read::{ProcessFigures, fill};
pub use record::{Counter, Figures};
