//! The options of an `nvwal` log, which the settings choose.

use duralite_format::nvwal::Order;

use crate::engine::settings::CACHE_BYTES;
pub use crate::shared::heap::HeapMode;

/// The engine's name in settings.
pub(super) const NAME: &str = "nvwal";

/// When the cache lines of a transaction are flushed, relative to its commit mark (section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Flush and fence after each record.
    Eager,
    /// Store all records, flush each line once and fence, then store the mark, flush and fence: two fences.
    #[default]
    Lazy,
    /// Flush everything under one fence. A checksum reveals a torn transaction.
    Checksum,
    /// Flush only the mark's line (section 4.2). Commits are atomic, but after a power loss the newest ones may be missing.
    Async,
}

impl SyncMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Eager, Self::Lazy, Self::Checksum, Self::Async];

    /// The name in settings.
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
    /// When a transaction's cache lines are flushed.
    pub sync: SyncMode,
    /// Whether to log differences. Otherwise the engine logs whole pages, as figure 7's variants without `Diff`.
    pub diff: bool,
    /// Where the space of records comes from.
    pub heap: HeapMode,
    /// Size of a block in bytes, 0 to choose one.
    pub block_bytes: u32,
    /// Most bytes the log file may take, 0 for as many as the file system has.
    pub limit_bytes: u64,
    /// Bytes of page images kept in memory.
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
