//! How a `waldio` log works: what the settings choose.

use std::time::Duration;

use duralite_logfmt::waldio::Layout;
use duralite_medium::block::{Access, Durability};

use crate::settings::common::CACHE_BYTES;

/// The engine's name in settings.
pub(super) const NAME: &str = "waldio";

/// How a log works; layout, block size and limit are fixed when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaldioOptions {
    /// Layout of frames; fixed when a log is made.
    pub layout: Layout,
    /// Bytes in a block, 0 to let the device decide; fixed when a log is made.
    pub block_bytes: u32,
    /// How blocks get to the device.
    pub access: Access,
    /// How a commit becomes durable.
    pub durability: Durability,
    /// Group Synch (section 4.3): a commit is acknowledged before it is durable, and this many
    /// frames are written at once. 0 switches it off: then an acknowledged commit is durable.
    pub group_synch: u32,
    /// The longest that an acknowledged commit stays in memory under Group Synch.
    pub group_interval: Duration,
    /// Most bytes the log file may take, 0 for as many as the file system has; fixed when a log is made.
    pub limit_bytes: u64,
    /// Bytes of page images kept in memory.
    pub cache_bytes: usize,
    /// How long one that leads a group and does not come to its end is waited for, before another leads
    /// in its place: it may be stopped.
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

    /// A number that is the same for processes whose settings agree on what others rely on.
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
