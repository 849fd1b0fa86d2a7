//! Counters that many threads increment at once.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::thread_number;

const SHARDS: usize = 16;

/// A word on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

/// A counter in parts. If all threads changed one word, each change would first have to move the word's cache line from
/// another core.
#[derive(Debug, Default)]
pub(crate) struct Counter([Shard; SHARDS]);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0[thread_number() % SHARDS].0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}
