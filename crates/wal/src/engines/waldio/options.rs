//! The options of a `waldio` log, and the settings that choose them.

use std::time::Duration;

use duralite_format::waldio::{Layout, block_size_is_valid};
use duralite_medium::block::{Access, Durability};

use crate::engine::settings::{CACHE, CACHE_BYTES, LOG_LIMIT, ON_CLOSE};
use crate::engine::settings::{EngineOptions, EngineSetting, Values, name_of};

/// The engine's name in settings.
pub(super) const NAME: &str = "waldio";

/// The options of a `waldio` log. Layout, block size and limit are fixed when a log is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaldioOptions {
    /// Layout of frames; fixed when a log is made.
    pub layout: Layout,
    /// Bytes in a block; 0 lets the device decide. Fixed when a log is made.
    pub block_bytes: u32,
    /// Whether blocks are read and written by direct I/O or through the page cache.
    pub access: Access,
    /// The way in which a commit becomes durable.
    pub durability: Durability,
    /// The number of frames after which a committer waits for a flush under Group Synch (section 4.3). Until then,
    /// commits are acknowledged before they are durable. 0 switches Group Synch off, so that every committer waits.
    pub group_synch: u32,
    /// The longest time that an acknowledged commit stays in memory under Group Synch.
    pub group_interval: Duration,
    /// The most bytes that the log file may take; 0 for all that the file system has. Fixed when a log is made.
    pub limit_bytes: u64,
    /// The number of bytes of page images that the engine keeps in memory.
    pub cache_bytes: usize,
    /// The time for which committers wait for a leader that makes no progress. After that another committer leads instead,
    /// because the leader's process may be stopped.
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
    /// Returns the most bytes that the log file may take.
    #[must_use]
    pub fn limit(&self) -> u64 {
        if self.limit_bytes == 0 { u64::MAX } else { self.limit_bytes }
    }

    /// Encodes the settings on which the processes that use a log have to agree. Equal settings give equal numbers.
    pub(crate) fn fingerprint(&self) -> u64 {
        let durability = match self.durability {
            Durability::Full => 0,
            Durability::Fua => 1,
            Durability::Normal => 2,
        };
        u64::from(self.group_synch) << 8 | durability
    }

    /// Returns whether an acknowledged commit is durable.
    pub(crate) fn waits(&self) -> bool {
        self.group_synch == 0
    }
}

impl WaldioOptions {
    /// Takes this engine's options from those of all engines. A limit or a cache size that is set for all engines takes
    /// precedence.
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
pub(super) static SETTINGS: &[&EngineSetting] = &[
    &LAYOUT,
    &DURABILITY,
    &ACCESS,
    &DEVICE_BLOCK,
    &GROUP_SYNCH,
    &GROUP_INTERVAL,
    &ON_CLOSE,
    &LOG_LIMIT,
    &CACHE,
];

/// Sets an option of this engine to a parsed value. Returns a parse error unchanged.
fn put<T>(
    all: &mut EngineOptions,
    value: Result<T, String>,
    put: impl FnOnce(&mut WaldioOptions, T),
) -> Result<(), String> {
    value.map(|value| all.change(|own| put(own, value)))
}

fn own(all: &EngineOptions) -> WaldioOptions {
    all.own()
}

/// Returns the longest time for which an acknowledged commit may be only in memory. The log needs a background flush at least
/// once in this time. Returns `None` without Group Synch.
pub(super) fn flush_interval(all: &EngineOptions) -> Option<Duration> {
    let options = own(all);
    (!options.waits()).then_some(options.group_interval)
}

/// The values of the setting stand for what the paper calls full synch, persistent direct I/O and normal synch (WALDIO,
/// section 5).
const DURABILITIES: [(&str, Durability); 3] =
    [("full", Durability::Full), ("fua", Durability::Fua), ("normal", Durability::Normal)];
const ACCESSES: [(&str, Access); 3] =
    [("auto", Access::Auto), ("direct", Access::Direct), ("buffered", Access::Buffered)];

static LAYOUT: EngineSetting = EngineSetting::new(
    "layout",
    Values::Fixed("delta or embedded"),
    |all, given| put(all, given.parsed(), |own, value| own.layout = value),
    |all| own(all).layout.as_str().to_owned(),
)
.shared();

static DURABILITY: EngineSetting = EngineSetting::new(
    "durability",
    Values::Fixed("full, fua or normal"),
    |all, given| put(all, given.named(&DURABILITIES), |own, value| own.durability = value),
    |all| name_of(&DURABILITIES, own(all).durability),
)
.shared()
.shown();

static ACCESS: EngineSetting = EngineSetting::new(
    "access",
    Values::Fixed("auto, direct or buffered"),
    |all, given| put(all, given.named(&ACCESSES), |own, value| own.access = value),
    |all| name_of(&ACCESSES, own(all).access),
)
.shared();

static DEVICE_BLOCK: EngineSetting = EngineSetting::new(
    "device_block",
    Values::Fixed("512, 1024, 2048 or 4096, or 0 to let the device decide"),
    |all, given| {
        let bytes = given.size()?;
        if bytes != 0 && !block_size_is_valid(bytes) {
            return Err(given.invalid());
        }
        put(all, Ok(bytes), |own, value| own.block_bytes = value)
    },
    |all| own(all).block_bytes.to_string(),
)
.shared();

static GROUP_SYNCH: EngineSetting = EngineSetting::new(
    "group_synch",
    Values::Fixed("a number of frames, 0 for none"),
    |all, given| put(all, given.parsed(), |own, value| own.group_synch = value),
    |all| own(all).group_synch.to_string(),
)
.shared()
.shown();

static GROUP_INTERVAL: EngineSetting = EngineSetting::new(
    "group_interval_ms",
    Values::Fixed("a number of milliseconds"),
    |all, given| put(all, given.parsed(), |own, value| own.group_interval = Duration::from_millis(value)),
    |all| own(all).group_interval.as_millis().to_string(),
)
.shared();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_needs_flushes_in_the_background_under_group_synch_only() {
        let mut all = EngineOptions::default();
        assert_eq!(flush_interval(&all), None);
        GROUP_INTERVAL.set(&mut all, "7").unwrap();
        assert_eq!(flush_interval(&all), None);
        GROUP_SYNCH.set(&mut all, "4").unwrap();
        assert_eq!(flush_interval(&all), Some(Duration::from_millis(7)));
    }

    #[test]
    fn limits_that_engines_share_win_over_its_own() {
        let mut all = EngineOptions::default();
        assert_eq!(WaldioOptions::of(&all), WaldioOptions::default());
        assert_eq!(WaldioOptions::of(&all).limit(), u64::MAX);
        LOG_LIMIT.set(&mut all, "64m").unwrap();
        CACHE.set(&mut all, "0").unwrap();
        let options = WaldioOptions::of(&all);
        assert_eq!((options.limit(), options.cache_bytes), (64 << 20, 0));
    }
}
