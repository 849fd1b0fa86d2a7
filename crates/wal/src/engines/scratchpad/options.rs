//! The options of a `scratchpad` log, and the settings that choose them.

use crate::engine::media::HomeSync;
use crate::engine::settings::{BYTES, CACHE, CACHE_BYTES, DIFF, LOG_LIMIT, SWITCH};
use crate::engine::settings::{EngineOptions, EngineSetting, on_off};

/// The engine's name in settings.
pub(super) const NAME: &str = "scratchpad";
/// The default size limit of a region in bytes. In the paper, a larger region gains little (figures 15 and 16).
const REGION_BYTES: u64 = 64 << 20;

/// The engine's options. The size of a region is fixed when the region is made. The limit of a log is fixed
/// when the log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchpadOptions {
    /// The most bytes of a new region.
    pub region_bytes: u64,
    /// The most bytes of the region that a new log may use; 0 for the whole region.
    pub limit_bytes: u64,
    /// The number of bytes of page images that the engine keeps in memory.
    pub cache_bytes: usize,
    /// Whether to log differences. The paper logs whole pages.
    pub diff: bool,
    /// The way in which the cache lines of a region become durable, if a store alone does not make them
    /// durable.
    pub sync: HomeSync,
    /// Whether the home stores only those cache lines of a page that differ. The paper stores whole pages.
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

impl ScratchpadOptions {
    /// Returns this engine's part of the options of all engines, with the settings that it shares with other
    /// engines.
    pub(super) fn of(all: &EngineOptions) -> Self {
        let own = all.own::<Self>();
        Self {
            limit_bytes: all.limit_bytes.unwrap_or(own.limit_bytes),
            cache_bytes: all.cache_bytes.unwrap_or(own.cache_bytes),
            diff: all.diff.unwrap_or(own.diff),
            sync: all.media.home_sync,
            ..own
        }
    }
}

/// The engine's settings, in the order in which users see them.
pub(super) static SETTINGS: &[&EngineSetting] = &[&SCRATCHPAD_BYTES, &DIFF, &HOME_DIFF, &LOG_LIMIT, &CACHE];

static SCRATCHPAD_BYTES: EngineSetting = EngineSetting::new(
    "scratchpad_bytes",
    BYTES,
    |all, given| given.size().map(|bytes| all.change(|own: &mut ScratchpadOptions| own.region_bytes = bytes)),
    |all| all.own::<ScratchpadOptions>().region_bytes.to_string(),
);

static HOME_DIFF: EngineSetting = EngineSetting::new(
    "home_diff",
    SWITCH,
    |all, given| given.switch().map(|on| all.change(|own: &mut ScratchpadOptions| own.home_diff = on)),
    |all| on_off(all.own::<ScratchpadOptions>().home_diff),
)
.shared();
