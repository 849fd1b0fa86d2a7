//! The descriptor of the `nvwal` engine for the registry, and the engine's settings.

use duralite_format::nvwal::MAGIC;

use super::options::{NAME, NvwalOptions};
use crate::engine::descriptor::{Descriptor, SharedBytes};
use crate::engine::media::Medium;
use crate::engine::settings::{
    BYTES, CACHE, DIFF, EngineOptions, EngineSetting, LOG_LIMIT, ON_CLOSE, Values,
};
use crate::engines::nvwal::{files, salvage};

/// The engine for byte-addressable memory.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    magic: MAGIC,
    needs: &[Medium::LogMemory],
    settings: &[&SYNC, &DIFF, &HEAP, &BLOCK_BYTES, &ON_CLOSE, &LOG_LIMIT, &CACHE],
    rollback_journals: false,
    writes_home: false,
    // All state that processes share is in the log itself.
    shared: SharedBytes { zeroed: 0, all: 0 },
    format: files::format,
    attach: files::attach,
    attach_outside: files::attach_outside,
    open_read_only: |log| Ok(Box::new(files::look_at(log)?)),
    inspect: files::inspect,
    is_empty: files::is_empty,
    salvage: |log, _, later| salvage::salvage(log, later),
    walk: |log, database, visit| salvage::walk(files::map_read_only(log)?, log.path, database, visit),
    release: |_| Ok(()),
    flush_interval: |_| None,
};

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

/// Sets an option of this engine to a parsed value; passes a parse error on.
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
