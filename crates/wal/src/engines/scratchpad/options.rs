//! The engine's options, which the settings choose.

use crate::engine::media::HomeSync;
use crate::engine::settings::CACHE_BYTES;

/// The engine's name in settings.
pub(super) const NAME: &str = "scratchpad";
/// The default for the most bytes of a region. Beyond that the paper gains little (figures 15 and 16).
const REGION_BYTES: u64 = 64 << 20;

/// How the engine works. The size of the region is fixed when the region is made, and the limit when the log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchpadOptions {
    /// Most bytes of a new region.
    pub region_bytes: u64,
    /// Most bytes of the region that a new log may have; 0 for the whole region.
    pub limit_bytes: u64,
    /// Bytes of page images kept in memory.
    pub cache_bytes: usize,
    /// Whether differences are logged; the paper logs whole what it writes.
    pub diff: bool,
    /// How lines of a region become durable if they have to be flushed.
    pub sync: HomeSync,
    /// Whether the home stores only those lines of a page that differ; the paper stores whole pages.
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
