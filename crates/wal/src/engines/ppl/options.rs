//! The options of a `ppl` log, and the settings that choose them.

use duralite_format::ppl::sector_size_is_valid;

use crate::engine::settings::{BYTES, CACHE, CACHE_BYTES, LOG_LIMIT, ON_CLOSE};
use crate::engine::settings::{EngineOptions, EngineSetting, Values};

/// The engine's name in settings.
pub(super) const NAME: &str = "ppl";

/// The engine's options. The sector size, the usual size and the limit are fixed when a log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PplOptions {
    /// The size of a page's log sector in bytes: 4096, 8192 or 12288.
    pub sector_bytes: u32,
    /// How many bytes of the common pool a page's log may take in addition to its sector, before the page is due for a
    /// merge. With 0 the page is due when its sector is full, as in the paper.
    pub overflow_bytes: u32,
    /// The size in bytes of sectors and pool together in a log without a limit. A log becomes larger only if a
    /// transaction needs more. 0 stands for 64 MiB, or for 4096 pages if that is more.
    pub usual_bytes: u64,
    /// The most bytes of sectors and pool together; 0 means no limit.
    pub limit_bytes: u64,
    /// The number of bytes of page images that the engine keeps in memory.
    pub cache_bytes: usize,
}

impl Default for PplOptions {
    fn default() -> Self {
        Self {
            sector_bytes: 4096,
            overflow_bytes: 12288,
            usual_bytes: 0,
            limit_bytes: 0,
            cache_bytes: CACHE_BYTES,
        }
    }
}

impl PplOptions {
    /// Returns this engine's part of the options of all engines, with the settings that it shares with other engines.
    pub(super) fn of(all: &EngineOptions) -> Self {
        let own = all.own::<Self>();
        Self {
            limit_bytes: all.limit_bytes.unwrap_or(own.limit_bytes),
            cache_bytes: all.cache_bytes.unwrap_or(own.cache_bytes),
            ..own
        }
    }
}

/// The engine's settings, in the order in which users see them.
pub(super) static SETTINGS: &[&EngineSetting] =
    &[&SECTOR_BYTES, &OVERFLOW_BYTES, &USUAL_BYTES, &ON_CLOSE, &LOG_LIMIT, &CACHE];

static SECTOR_BYTES: EngineSetting = EngineSetting::new(
    "sector_bytes",
    Values::Fixed("4096, 8192 or 12288"),
    |all, given| {
        let bytes: u32 = given.size()?;
        if !sector_size_is_valid(bytes) {
            return Err(given.invalid());
        }
        all.change(|own: &mut PplOptions| own.sector_bytes = bytes);
        Ok(())
    },
    |all| all.own::<PplOptions>().sector_bytes.to_string(),
);

static OVERFLOW_BYTES: EngineSetting = EngineSetting::new(
    "overflow_bytes",
    BYTES,
    |all, given| given.size().map(|bytes| all.change(|own: &mut PplOptions| own.overflow_bytes = bytes)),
    |all| all.own::<PplOptions>().overflow_bytes.to_string(),
)
.shared();

static USUAL_BYTES: EngineSetting = EngineSetting::new(
    "usual_bytes",
    BYTES,
    |all, given| given.size().map(|bytes| all.change(|own: &mut PplOptions| own.usual_bytes = bytes)),
    |all| all.own::<PplOptions>().usual_bytes.to_string(),
);
