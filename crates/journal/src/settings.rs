//! The settings of every engine together.

use duralite_medium::{Latency, Persistency};

use crate::{NvwalOptions, WaldioOptions};

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
