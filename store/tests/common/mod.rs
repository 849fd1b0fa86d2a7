//! Code shared by several tests.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duralite_store::{LogMedium, Options, Scheme};

/// Returns all schemes.
pub fn schemes() -> [Scheme; 6] {
    Scheme::ALL
}

/// Returns options of a small store, whose log is on a medium that suits the scheme.
pub fn options(scheme: Scheme) -> Options {
    let in_memory = matches!(scheme, Scheme::FlushOnInsert | Scheme::FlushOnCommit | Scheme::Distributed);
    let log = if in_memory { LogMedium::Emulated } else { LogMedium::Disk };
    Options::default().log(log).scheme(scheme).log_bytes(8 << 20).cache_bytes(8 << 20)
}

/// Returns a value that repeats the bytes of `n`, so that a test can tell which row it belongs to.
pub fn value(n: u32, len: usize) -> Vec<u8> {
    n.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// A guard that sets its flag when it is dropped. So the other threads of a test end even if the test panics.
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
pub mod lists;
pub mod model;
