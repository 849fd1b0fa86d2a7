//! The options of a `waldio` log, which the settings choose.

use std::time::Duration;

use duralite_format::waldio::Layout;
use duralite_medium::block::{Access, Durability};

use crate::engine::settings::CACHE_BYTES;

/// The engine's name in settings.
pub(super) const NAME: &str = "waldio";

/// The options of a `waldio` log. Layout, block size and limit are fixed when a log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaldioOptions {
    /// Layout of frames; fixed when a log is made.
    pub layout: Layout,
    /// Bytes in a block, 0 to let the device decide; fixed when a log is made.
    pub block_bytes: u32,
    /// Whether blocks are read and written by direct I/O or through the page cache.
    pub access: Access,
    /// How a commit becomes durable.
    pub durability: Durability,
    /// Group Synch (section 4.3): commits are acknowledged before they are durable. A committer waits for the flush only once
    /// this many frames have been acknowledged without waiting. 0 switches Group Synch off: then an acknowledged commit is
    /// durable.
    pub group_synch: u32,
    /// The longest time that an acknowledged commit stays in memory under Group Synch.
    pub group_interval: Duration,
    /// Most bytes the log file may take, 0 for as many as the file system has; fixed when a log is made.
    pub limit_bytes: u64,
    /// Bytes of page images kept in memory.
    pub cache_bytes: usize,
    /// How long committers wait for a leader that makes no progress. After that another committer leads in its place, since the
    /// leader's process may be stopped.
    pub leader_patience: Duration,
}

impl Default for WaldioOptions {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            block_bytes: 0,
            access: Access::default(),
            durability: Durability::default(),
            group_synch: 0,
            group_interval: Duration::from_millis(2),
            limit_bytes: 0,
            cache_bytes: CACHE_BYTES,
            leader_patience: Duration::from_secs(1),
        }
    }
}

impl WaldioOptions {
    /// Most bytes the log file may take.
    #[must_use]
    pub fn limit(&self) -> u64 {
        if self.limit_bytes == 0 { u64::MAX } else { self.limit_bytes }
    }

    /// A number that is the same for two processes if they agree on the settings on which other processes rely.
    pub(crate) fn fingerprint(&self) -> u64 {
        let durability = match self.durability {
            Durability::Full => 0,
            Durability::Fua => 1,
            Durability::Normal => 2,
        };
        u64::from(self.group_synch) << 8 | durability
    }

    /// Whether an acknowledged commit is durable.
    pub(crate) fn waits(&self) -> bool {
        self.group_synch == 0
    }
}
