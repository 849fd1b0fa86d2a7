//! A model of how fast the store's schemes would be on more cores than this machine has. It simulates threads that
//! share cores, mutexes and cache lines, event by event and with a fixed seed.
//!
//! [`stations`] models cores and queues, and knows nothing of a store. [`rows`] models row locks. [`schemes`] models
//! which of these a transaction uses, and how each scheme of the paper's table 3 makes the transaction durable. The
//! costs are measured elsewhere.

mod rows;
pub(crate) mod schemes;
pub(crate) mod stations;
#[cfg(test)]
mod tests;
