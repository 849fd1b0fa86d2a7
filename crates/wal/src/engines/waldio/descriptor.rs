//! The descriptor of the `waldio` engine for the registry, and the engine's settings.

use std::time::Duration;

use duralite_format::waldio::{MAGIC, block_size_is_valid};
use duralite_medium::block::{Access, Durability};

use super::options::{NAME, WaldioOptions};
use crate::engine::descriptor::{Descriptor, SharedBytes};
use crate::engine::media::Medium;
use crate::engine::settings::{CACHE, EngineOptions, EngineSetting, LOG_LIMIT, ON_CLOSE, Values, name_of};
use crate::engines::waldio::{SHARED_BYTES, STATE_BYTES, files, salvage};

/// The engine for disks.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogBlocks],
    settings: &[
        &LAYOUT,
        &DURABILITY,
        &ACCESS,
        &DEVICE_BLOCK,
        &GROUP_SYNCH,
        &GROUP_INTERVAL,
        &ON_CLOSE,
        &LOG_LIMIT,
        &CACHE,
    ],
    rollback_journals: false,
    writes_home: false,
    shared: SharedBytes { zeroed: STATE_BYTES, all: SHARED_BYTES },
    format: files::format,
    attach: files::attach,
    attach_outside: files::attach_outside,
    open_read_only: |log| Ok(Box::new(files::look_at(log)?)),
    inspect: files::inspect,
    is_empty: files::is_empty,
    walk: |log, database, visit| {
        let (block, superblock) = files::blocks_read_only(log)?;
        salvage::walk(block, superblock, log.path, database, visit)
    },
    salvage: |log, _, later| salvage::salvage(log, later),
    release: |_| Ok(()),
    flush_interval: |all| {
        let options = own(all);
        (!options.waits()).then_some(options.group_interval)
    },
};

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

/// Sets an option of this engine to a parsed value; passes a parse error on.
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

/// The paper's full synch, persistent direct I/O and normal synch (WALDIO, section 5).
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
        assert_eq!((DESCRIPTOR.flush_interval)(&all), None);
        GROUP_INTERVAL.set(&mut all, "7").unwrap();
        assert_eq!((DESCRIPTOR.flush_interval)(&all), None);
        GROUP_SYNCH.set(&mut all, "4").unwrap();
        assert_eq!((DESCRIPTOR.flush_interval)(&all), Some(Duration::from_millis(7)));
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
