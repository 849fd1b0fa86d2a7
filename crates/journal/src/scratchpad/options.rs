//! How the engine works: what the settings choose.

use crate::media::HomeSync;
use crate::settings::common::CACHE_BYTES;

/// The engine's name in settings.
pub(super) const NAME: &str = "scratchpad";
/// Most bytes of a region where nothing else is said: beyond it the paper gains little (figures 15 and 16).
const REGION_BYTES: u64 = 64 << 20;

/// How an engine works; the size of the region is fixed when the region is made, the limit when the log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchpadOptions {
    /// Most bytes of a new region.
    pub region_bytes: u64,
    /// Most bytes of it that a new log may have; 0 for as many as there are.
    pub limit_bytes: u64,
    /// Bytes of page images kept in memory.
    pub cache_bytes: usize,
    /// Whether differences are logged; the paper logs what it writes whole.
    pub diff: bool,
    /// How lines of a region become durable that have to be flushed.
    pub sync: HomeSync,
    /// Whether only those lines of a page are stored in the database that differ; the paper stores pages whole.
    pub home_diff: bool,
}

impl Default for ScratchpadOptions {
    fn default() -> Self {
        Self {
            region_bytes: REGION_BYTES,
            limit_bytes: 0,
            cache_bytes: CACHE_BYTES,
            diff: true,
            sync: HomeSync::default(),
            home_diff: true,
        }
    }
}
