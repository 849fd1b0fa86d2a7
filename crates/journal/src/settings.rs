//! The settings of every engine together.

use duralite_medium::{Latency, Persistency};

use crate::{NvwalOptions, WaldioOptions};

/// What a limit of so many bytes means: 0 is none.
pub(crate) fn limit_of(bytes: u64) -> u64 {
    if bytes == 0 { u64::MAX } else { bytes }
}

/// How engines work; each takes its own part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Of `nvwal`.
    pub nvwal: NvwalOptions,
    /// Of `waldio`.
    pub waldio: WaldioOptions,
    /// Added latency of memory, for experiments.
    pub latency: Latency,
    /// Persistency model of memory, for experiments.
    pub persistency: Persistency,
}
