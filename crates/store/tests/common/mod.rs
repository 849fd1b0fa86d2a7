//! What several tests use.
#![allow(dead_code)] // not each of them everything

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duralite_store::{LogMedium, Options, Scheme};

/// Every scheme on a medium that it can be on.
pub fn schemes() -> [Scheme; 6] {
    Scheme::ALL
}

/// A small store with its log where the scheme wants it.
pub fn options(scheme: Scheme) -> Options {
    let in_memory = matches!(scheme, Scheme::FlushOnInsert | Scheme::FlushOnCommit | Scheme::Distributed);
    let log = if in_memory { LogMedium::Emulated } else { LogMedium::Disk };
    Options::default().log(log).scheme(scheme).log_bytes(8 << 20).cache_bytes(8 << 20)
}

/// Bytes that tell which row they are of.
pub fn value(n: u32, len: usize) -> Vec<u8> {
    n.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Set when it is dropped: also where a test fails, so that its other threads end.
#[derive(Debug, Default)]
pub struct SetAtEnd(pub Arc<AtomicBool>);

impl Drop for SetAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub mod backups;
pub mod crash;
pub mod crowd;
pub mod data;
pub mod explore;
pub mod graph;
pub mod history;
pub mod lists;
pub mod model;
pub mod registers;
pub mod told;
