//! What the store's schemes would do on more cores than this machine has: an event simulation, with a fixed seed, of
//! threads that share cores, mutexes and lines of memory.
//!
//! [`stations`] knows cores and queues and nothing of a store, [`rows`] locks; [`schemes`] knows what a transaction asks of them, and
//! how each scheme of the paper's table 3 makes it durable. What things cost is measured, elsewhere.

mod rows;
pub(crate) mod schemes;
pub(crate) mod stations;
#[cfg(test)]
mod tests;
