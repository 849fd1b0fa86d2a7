//! What the store's schemes would do on more cores than this machine has: an event simulation, with a fixed
//! seed, of threads that share cores, mutexes and cache lines.
//!
//! [`stations`] models cores and queues and knows nothing of a store. [`rows`] models row locks. [`schemes`]
//! models what a transaction asks of them, and how each scheme of the paper's table 3 makes it durable. The
//! costs are measured elsewhere.

mod rows;
pub(crate) mod schemes;
pub(crate) mod stations;
#[cfg(test)]
mod tests;
