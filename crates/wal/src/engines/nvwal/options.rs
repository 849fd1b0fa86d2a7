//! The options of an `nvwal` log, and the settings that choose them.

use duralite_format::nvwal::Order;

use crate::engine::settings::{BYTES, CACHE, CACHE_BYTES, DIFF, LOG_LIMIT, ON_CLOSE};
use crate::engine::settings::{EngineOptions, EngineSetting, Values};
pub use crate::shared::heap::HeapMode;

/// The engine's name in settings.
pub(super) const NAME: &str = "nvwal";

/// The points at which the writer flushes the cache lines of a transaction, relative to its commit mark (section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Flush and fence after each record.
    Eager,
    /// Store all records, flush each line once and fence. Then store the mark, flush it and fence. That is two fences.
    #[default]
    Lazy,
    /// Flush everything before one fence. A checksum reveals a torn transaction.
    Checksum,
    /// Flush only the mark's line (section 4.2). Commits are atomic, but after a power loss the newest commits may be
    /// missing.
    Async,
}

impl SyncMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Eager, Self::Lazy, Self::Checksum, Self::Async];

    /// Returns the name of this mode in settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Checksum => "checksum",
            Self::Async => "async",
        }
    }

    pub(super) fn order(self) -> Order {
        match self {
            Self::Eager | Self::Lazy => Order::Ordered,
            Self::Checksum => Order::Fenced,
            Self::Async => Order::Async,
        }
    }
}

impl std::str::FromStr for SyncMode {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name).ok_or(())
    }
}

/// The options of an `nvwal` log. Block size and limit are fixed when a log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvwalOptions {
    /// When the writer flushes a transaction's cache lines.
    pub sync: SyncMode,
    /// Whether to log differences. Otherwise the engine logs whole pages, like the variants without `Diff` in figure 7.
    pub diff: bool,
    /// The source of the space for a record.
    pub heap: HeapMode,
    /// Size of a block in bytes; 0 lets the engine choose it.
    pub block_bytes: u32,
    /// The most bytes that the log file may take; 0 for all that the file system has.
    pub limit_bytes: u64,
    /// The number of bytes of page images that the engine keeps in memory.
    pub cache_bytes: usize,
}

impl Default for NvwalOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::default(),
            diff: true,
            heap: HeapMode::default(),
            block_bytes: 0,
            limit_bytes: 0,
            cache_bytes: CACHE_BYTES,
        }
    }
}

impl NvwalOptions {
    /// Takes this engine's options from those of all engines. An option that is set for all engines takes precedence.
    pub(super) fn of(all: &EngineOptions) -> Self {
        let own = all.own::<Self>();
        Self {
            limit_bytes: all.limit_bytes.unwrap_or(own.limit_bytes),
            cache_bytes: all.cache_bytes.unwrap_or(own.cache_bytes),
            diff: all.diff.unwrap_or(own.diff),
            ..own
        }
    }
}

/// The engine's settings, in the order in which users see them.
pub(super) static SETTINGS: &[&EngineSetting] =
    &[&SYNC, &DIFF, &HEAP, &BLOCK_BYTES, &ON_CLOSE, &LOG_LIMIT, &CACHE];

/// Sets an option of this engine to a parsed value. Returns a parse error unchanged.
fn put<T>(
    all: &mut EngineOptions,
    value: Result<T, String>,
    put: impl FnOnce(&mut NvwalOptions, T),
) -> Result<(), String> {
    value.map(|value| all.change(|own| put(own, value)))
}

fn own(all: &EngineOptions) -> NvwalOptions {
    all.own()
}

static SYNC: EngineSetting = EngineSetting::new(
    "sync",
    Values::Fixed("lazy, eager, checksum or async"),
    |all, given| put(all, given.parsed(), |own, value| own.sync = value),
    |all| own(all).sync.as_str().to_owned(),
)
.shared()
.changeable();

static HEAP: EngineSetting = EngineSetting::new(
    "heap",
    Values::Fixed("user or system"),
    |all, given| put(all, given.parsed(), |own, value| own.heap = value),
    |all| own(all).heap.as_str().to_owned(),
)
.shared();

static BLOCK_BYTES: EngineSetting = EngineSetting::new(
    "block_bytes",
    BYTES,
    |all, given| put(all, given.size(), |own, value| own.block_bytes = value),
    |all| own(all).block_bytes.to_string(),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_engines_share_win_over_its_own() {
        let own = NvwalOptions { limit_bytes: 5, cache_bytes: 6, ..Default::default() };
        let mut all = EngineOptions::default().with(own.clone());
        assert_eq!(NvwalOptions::of(&all), own);
        LOG_LIMIT.set(&mut all, "1k").unwrap();
        CACHE.set(&mut all, "0").unwrap();
        assert_eq!(NvwalOptions::of(&all), NvwalOptions { limit_bytes: 1024, cache_bytes: 0, ..own });
        assert_eq!(NvwalOptions::of(&EngineOptions::default()), NvwalOptions::default());
    }
}
