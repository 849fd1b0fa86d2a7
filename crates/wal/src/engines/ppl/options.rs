//! The engine's options, which the settings choose.

use crate::engine::settings::CACHE_BYTES;

/// The engine's name in settings.
pub(super) const NAME: &str = "ppl";

/// How the engine works. The sector size and the limit are fixed when a log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PplOptions {
    /// Bytes of a page's log sector: 4096, 8192 or 12288.
    pub sector_bytes: u32,
    /// Bytes of the common pool that a page's log may take beyond its sector before the page is due for a merge. 0 is the
    /// paper's policy.
    pub overflow_bytes: u32,
    /// Most bytes of sectors and pool. 0 stands for 64 MiB, or for 4096 pages where that is more.
    pub limit_bytes: u64,
    /// Bytes of page images kept in memory.
    pub cache_bytes: usize,
}

impl Default for PplOptions {
    fn default() -> Self {
        Self { sector_bytes: 4096, overflow_bytes: 12288, limit_bytes: 0, cache_bytes: CACHE_BYTES }
    }
}
